-- The unfenced node of a name. Indexes: node_name_unfenced, lease_pkey.
select n.incarnation, n.boot, n.http, coalesce(l.renewals, n.renewals) as "renewals!"
from ringmesh.node n
left join lateral (
    select renewals from ringmesh.lease where incarnation = n.incarnation order by renewals desc limit 1
) l on true
where n.name = $1 and n.fenced_at is null
