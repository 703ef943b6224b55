-- Registers a start of a node. No row when an unfenced node of this name exists.
-- Fence: the unique index on unfenced names. $6: TTL in ms.
insert into ringmesh.node (incarnation, boot, name, http, gossip, weight, lease_until)
select nextval('ringmesh.incarnation'), $1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6::bigint / 1000.0)
where not exists (select from ringmesh.node where name = $2 and fenced_at is null)
on conflict do nothing
returning incarnation
