-- All unfenced nodes. A node of the version before has no lease; its own row says then what a lease says.
-- `lease_ms` is for people; no decision may be taken from it. Indexes: node_name_unfenced, lease_pkey.
select n.incarnation, n.boot, n.name, n.http, n.gossip, n.weight, coalesce(l.renewals, n.renewals) as "renewals!",
    (extract(epoch from coalesce(l.lease_until, n.lease_until) - clock_timestamp()) * 1000)::bigint as "lease_ms!"
from ringmesh.node n
left join lateral (
    select renewals, lease_until from ringmesh.lease where incarnation = n.incarnation order by renewals desc limit 1
) l on true
where n.fenced_at is null order by n.incarnation
