-- Bars a node from now on, so that new writers are refused while the fencer waits for its row. A live node's next renewal lifts
-- the bar. $2: the renewals that the caller saw; a node that has renewed since is not barred.
update ringmesh.node n set lease_until = clock_timestamp()
where n.incarnation = $1 and n.fenced_at is null and n.lease_until > clock_timestamp()
  and $2 = coalesce((select l.renewals from ringmesh.lease l where l.incarnation = n.incarnation
                     order by l.renewals desc limit 1), n.renewals)
