-- Second half of fencing, in the transaction that holds the row FOR UPDATE.
update ringmesh.node set fenced_at = clock_timestamp(), fenced_as = $2, fenced_by = $3
where incarnation = $1 and fenced_at is null
