-- Ends tasks: deletes them and archives how they ended.
-- $1 incarnation, $2 boot; per task: $3 slot, $4 id, $5 epoch, $6 attempt, $7 state, $8 result, $9 error, $10 its run so far
-- in microseconds, $11 whether a failure is added; $12 whether it is the head of a held key.
-- Fence: node row, slot rows; the target repeats epoch and attempt. Missing in the answer: fenced, or ended already.
-- The target is found by place (ctid), which leaves the planner one way. Joined by slot and id, a plan made while the
-- table was empty reads the whole table and compares each row with each task given, and such a plan is kept.
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
    select d.*, t.place
    from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::integer[], $7::text[], $8::text[], $9::text[],
                $10::bigint[], $11::integer[], $12::boolean[])
        as d (slot, id, epoch, attempt, state, result, error, run_us, failed, head)
    cross join lateral (
        select t.ctid as place from ringmesh.task t
        where t.slot = d.slot and t.id = d.id and t.epoch = d.epoch and t.attempt = d.attempt
        limit 1
    ) t
    where case when (d.slot, d.epoch) in (select slot, epoch from live) then true else false end
), ended as (
    delete from ringmesh.task t
    using given d
    where t.ctid = d.place and t.epoch = d.epoch and t.attempt = d.attempt
    returning t.slot, t.id, t.key, t.kind, t.payload, t.priority, t.attempt, t.failures + d.failed as failures, t.crashes,
              t.epoch, t.created_at, d.state, d.result, coalesce(d.error, t.error) as error, d.run_us, d.head
), heads as materialized (
    select e.slot, e.key, e.id from ended e where e.head
), lifting as (
    update ringmesh.held_key h set task = -h.task, reason = 'lifting', held_until = null
    from heads where h.slot = heads.slot and h.key = heads.key and h.task = heads.id and h.behind
), lifted as (
    delete from ringmesh.held_key h
    using heads where h.slot = heads.slot and h.key = heads.key and h.task = heads.id and not h.behind
)
insert into ringmesh.finished_task
    (slot, id, key, kind, payload, priority, state, attempt, failures, crashes, epoch, node, result, error,
     created_at, started_at, finished_at)
select slot, id, key, kind, case when state <> 'succeeded' then payload end, priority, state, attempt, failures, crashes,
       epoch, $1, result::json, case when state <> 'succeeded' then error end,
       created_at, clock_timestamp() - run_us * interval '1 microsecond', clock_timestamp()
from ended
returning slot, id
