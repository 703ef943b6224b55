-- The unfenced among the nodes that the caller knows ($1), and among all that started after $2.
-- Beside an old snapshot node_name_unfenced keeps an entry for each life that has begun, and unfenced_nodes.sql walks all of them.
-- This meets only those of the named and of the last starts: the condition on fenced_at is written so that this index cannot serve
-- it, and a row for each known number leaves the planner one way. Indexes: node_pkey, lease_pkey.
select n.incarnation as "incarnation!", n.boot as "boot!", n.name as "name!", n.http as "http!", n.gossip as "gossip!",
    n.weight as "weight!", coalesce(l.renewals, n.renewals) as "renewals!",
    (extract(epoch from coalesce(l.lease_until, n.lease_until) - clock_timestamp()) * 1000)::bigint as "lease_ms!"
from (
    select its.* from unnest($1::bigint[]) known(incarnation)
    cross join lateral (select * from ringmesh.node where incarnation = known.incarnation limit 1) its
    union all
    (select * from ringmesh.node where incarnation > $2 order by incarnation)
) n
left join lateral (
    select renewals, lease_until from ringmesh.lease where incarnation = n.incarnation order by renewals desc limit 1
) l on true
where coalesce(n.fenced_at, 'infinity') = 'infinity' order by n.incarnation
