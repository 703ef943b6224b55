-- Inserts tasks that carry an idempotency id: only those whose id is new; answers with (place, id) of these.
-- The unique row decides, never a lock. Rows go in sorted, so that two batches meet in one order; the caller sets a short
-- timeout and sends each id once per statement. Replays burn a number.
with input as materialized (
    select i.*, nextval('ringmesh.task_id') as id
    from (
        select u.* from unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::integer[],
                               $7::bigint[], $8::bigint[], $9::timestamptz[], $10::text[], $11::bytea[])
            with ordinality as u (slot, key, kind, payload, priority, max_attempts, timeout_ms, waiter, run_at,
                                  id_key, fingerprint, place)
        where pg_current_xact_id() is not null
        order by place
    ) i
), fresh as (
    insert into ringmesh.idempotency (slot, key, kind, id_key, task, fingerprint)
    select slot, key, kind, id_key, id, fingerprint from input order by slot, key, kind, id_key
    on conflict do nothing
    returning task
), inserted as (
    insert into ringmesh.task (slot, id, key, kind, payload, priority, max_attempts, timeout_ms, waiter, run_at, wait)
    select i.slot, i.id, i.key, i.kind, i.payload::json, i.priority, i.max_attempts, i.timeout_ms, i.waiter, i.run_at,
           case when i.run_at > clock_timestamp() then 'scheduled' end
    from input i where (i.id in (select task from fresh)) is true
    returning id
)
select i.place as "place!", i.id as "id!" from input i where (i.id in (select id from inserted)) is true
