-- First half of fencing. FOR UPDATE, because only that conflicts with the FOR KEY SHARE of the node's own writers.
-- $2: null, or the renewals that the fencer saw: a node that has renewed since is alive, and gives 0 rows.
select incarnation from ringmesh.node
where incarnation = $1 and fenced_at is null and ($2::bigint is null or renewals = $2)
for update
