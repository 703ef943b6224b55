-- Registers a start of a node, with its lease. No row when an unfenced node of this name exists.
-- Fence: the unique index on unfenced names. $6: TTL in ms. The node's own `lease_until` is its bar: the far end of time,
-- unless a fencer cuts the node short. Not `infinity`, from which older binaries could not subtract.
with node as (
    insert into ringmesh.node (incarnation, boot, name, http, gossip, weight, lease_until)
    select nextval('ringmesh.incarnation'), $1, $2, $3, $4, $5, timestamptz '9999-12-31 00:00Z'
    where not exists (select from ringmesh.node where name = $2 and fenced_at is null)
    on conflict do nothing
    returning incarnation
)
insert into ringmesh.lease (incarnation, renewals, lease_until)
select incarnation, 0, clock_timestamp() + make_interval(secs => $6::bigint / 1000.0) from node
returning incarnation
