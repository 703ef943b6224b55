-- As submit_keyed.sql, for a batch in which only some tasks carry an idempotency id: those without one are always inserted.
-- One statement, so that the ids rise in the order of the arrays; answers with (place, id) of the inserted.
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
    select slot, key, kind, id_key, id, fingerprint from input where id_key is not null
    order by slot, key, kind, id_key
    on conflict do nothing
    returning task
), picked as (
    select * from input where id_key is null
    union all
    select i.* from input i where (i.id in (select task from fresh)) is true
), inserted as (
    insert into ringmesh.task (slot, id, key, kind, payload, priority, max_attempts, timeout_ms, waiter, run_at, wait)
    select slot, id, key, kind, payload::json, priority, max_attempts, timeout_ms, waiter, run_at,
           case when run_at > clock_timestamp() then 'scheduled' end
    from picked
    returning id
)
select i.place as "place!", i.id as "id!" from input i where (i.id in (select id from inserted)) is true
