-- Renews a node's lease, also an expired one that nobody fenced. 0 rows: fenced, or unknown to this server.
-- $1 incarnation, $2 boot, $3 TTL in ms. One HOT update. The history tells a failover that lost WAL.
update ringmesh.node
set renewals = renewals + 1, lease_until = clock_timestamp() + make_interval(secs => $3::bigint / 1000.0)
where incarnation = $1 and boot = $2 and fenced_at is null
returning renewals,
    substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
        || ':' || (select system_identifier from pg_control_system())::text as "history!"
