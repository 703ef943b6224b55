-- Second half of fencing, in the transaction that holds the row FOR UPDATE; a statement of its own, so that its snapshot is younger
-- than the lock and holds every renewal that got through. Read committed only.
-- $4: null, or the renewals that the fencer saw: a node that has renewed since is alive, and gives 0 rows.
update ringmesh.node n
set fenced_at = clock_timestamp(), fenced_as = $2, fenced_by = $3,
    renewals = coalesce((select l.renewals from ringmesh.lease l where l.incarnation = n.incarnation
                         order by l.renewals desc limit 1), n.renewals)
where n.incarnation = $1 and n.fenced_at is null
  and ($4::bigint is null
       or $4 = coalesce((select l.renewals from ringmesh.lease l where l.incarnation = n.incarnation
                         order by l.renewals desc limit 1), n.renewals))
