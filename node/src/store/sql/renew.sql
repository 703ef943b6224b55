-- Renews a node's lease, also an expired one that nobody fenced. 0 rows: fenced, or unknown to this server.
-- $1 incarnation, $2 boot, $3 TTL in ms. The lease moves to the next number, so that dead versions lie below the living one and
-- are not walked (docs/adr/0006). The history tells a failover that lost WAL.
-- Locks: node, no key update, until the commit: with it a fencer waits, and then finds another counter. Then its lease.
-- Index: lease_pkey.
with me as materialized (
    select lease_until from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null
    for no key update
), moved as (
    -- Not `=`: a renewal that waited for another one of this node finds the row moved on, and moves it further.
    update ringmesh.lease l
    set renewals = l.renewals + 1, lease_until = clock_timestamp() + make_interval(secs => $3::bigint / 1000.0)
    where l.incarnation = $1 and exists (select from me)
      and l.renewals >= (select renewals from ringmesh.lease where incarnation = $1 order by renewals desc limit 1)
    returning l.renewals
), shown as (
    -- Lifts the bar; and shows the counter to nodes of the version before, as long as one is unfenced.
    update ringmesh.node n set renewals = moved.renewals, lease_until = timestamptz '9999-12-31 00:00Z'
    from me, moved
    where n.incarnation = $1 and n.boot = $2 and n.fenced_at is null
      and (me.lease_until < timestamptz '9999-12-31 00:00Z'
           or exists (select from ringmesh.node o
                      where o.fenced_at is null
                        and (select l.renewals from ringmesh.lease l where l.incarnation = o.incarnation
                             order by l.renewals desc limit 1) is null))
)
select renewals as "renewals!",
    substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
        || ':' || (select system_identifier from pg_control_system())::text as "history!"
from moved
