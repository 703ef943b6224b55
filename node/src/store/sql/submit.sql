-- Inserts tasks in the order of the arrays, so that ids rise with it; answers with (place, id) pairs.
-- $9: due from then, if that is ahead. The transaction takes its number before the ids (see horizon.sql).
with input as materialized (
    select i.*, nextval('ringmesh.task_id') as id
    from (
        select u.* from unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::integer[],
                               $7::bigint[], $8::bigint[], $9::timestamptz[])
            with ordinality as u (slot, key, kind, payload, priority, max_attempts, timeout_ms, waiter, run_at, place)
        where pg_current_xact_id() is not null
        order by place
    ) i
), inserted as (
    insert into ringmesh.task (slot, id, key, kind, payload, priority, max_attempts, timeout_ms, waiter, run_at, wait)
    select slot, id, key, kind, payload::json, priority, max_attempts, timeout_ms, waiter, run_at,
           case when run_at > clock_timestamp() then 'scheduled' end
    from input
)
select place as "place!", id as "id!" from input
