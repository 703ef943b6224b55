-- First half of fencing. FOR UPDATE, because only that conflicts with the FOR KEY SHARE of the node's own writers. Once the row
-- is locked no renewal is under way and none can begin: whether the node has renewed is for the next statement to decide.
-- $2: null, or the renewals that the fencer saw. By this statement's snapshot, which may be older than its lock, it decides
-- nothing; it spares a node that is known to live the lock.
select n.incarnation from ringmesh.node n
where n.incarnation = $1 and n.fenced_at is null
  and ($2::bigint is null
       or $2 = coalesce((select l.renewals from ringmesh.lease l where l.incarnation = n.incarnation
                         order by l.renewals desc limit 1), n.renewals))
for update
