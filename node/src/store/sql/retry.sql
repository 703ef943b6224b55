-- Sends tasks back to wait for their next run, and holds their keys for them.
-- $1 incarnation, $2 boot; per task: $3 slot, $4 id, $5 epoch, $6 attempt, $7 key, $8 delay in ms, $9 failures to add,
-- $10 error. Each key at most once; a delay counts as a hundred years at most. Fence as in finish.sql.
-- Locks: node, slots, tasks, held keys.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch
    from (select distinct slot, epoch from unnest($3::integer[], $5::bigint[]) as u (slot, epoch)) w
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for share of s
), given as materialized (
    -- CASE keeps this one look-up in a hash table: a join would compare all pairs.
    select d.*, t.place from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::integer[], $7::text[], $8::bigint[],
                         $9::integer[], $10::text[])
        as d (slot, id, epoch, attempt, key, delay_ms, failed, error)
    cross join lateral (
        select t.ctid as place from ringmesh.task t
        where t.slot = d.slot and t.id = d.id and t.epoch = d.epoch and t.attempt = d.attempt
        limit 1
    ) t
    where case when (d.slot, d.epoch) in (select slot, epoch from live) then true else false end
), waiting as (
    update ringmesh.task t
    set epoch = null, wait = 'scheduled', run_at = clock_timestamp() + least(d.delay_ms, 3153600000000) * interval '1 millisecond',
        failures = t.failures + d.failed, error = coalesce(d.error, t.error), trial = 0
    from given d
    where t.ctid = d.place and t.epoch = d.epoch and t.attempt = d.attempt
    returning t.slot, t.id, t.key, t.run_at
), held as (
    insert into ringmesh.held_key as h (slot, key, task, reason, held_until)
    select slot, key, id, 'retry', run_at from waiting order by slot, key
    on conflict (slot, key) do update
    set task = excluded.task, reason = excluded.reason, held_until = excluded.held_until
)
select slot as "slot!", id as "id!" from waiting
