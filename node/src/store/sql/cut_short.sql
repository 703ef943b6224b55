-- Ends an unexpired lease now, so that new writers are refused while the fencer waits for the row. A live node just renews.
-- The condition on renewals keeps a node that has renewed since the caller looked.
update ringmesh.node set lease_until = clock_timestamp()
where incarnation = $1 and renewals = $2 and fenced_at is null and lease_until > clock_timestamp()
