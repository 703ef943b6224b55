-- Ends tasks as finish.sql does, and stores with each what its run has left: messages, further tasks, and which of these wait for
-- which. A statement of its own, so that tasks which leave nothing pay nothing. See docs/adr/0007 and 0008.
-- $1 to $12: as finish.sql. Per message: $13 slot, $14 task, $15 key, $16 target, $17 topic, $18 headers, $19 content type, $20 body.
-- Per further task: $21, $22 the task that leaves it; $23 slot, $24 key, $25 kind, $26 payload, $27 priority, $28 attempts,
-- $29 timeout, $30 due from then (the far end of time: it waits for members), $31 who is hinted of its end. Per member of a
-- waiting task: $32 its place among the further tasks, from 1, $33 the member's.
-- Fence as in finish.sql. The answer: the tasks that ended, with place 0, and the further ones with their places.
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
), archived as (
    insert into ringmesh.finished_task
        (slot, id, key, kind, payload, priority, state, attempt, failures, crashes, epoch, node, result, error,
         created_at, started_at, finished_at)
    select slot, id, key, kind, case when state <> 'succeeded' then payload end, priority, state, attempt, failures, crashes,
           epoch, $1, result::json, case when state <> 'succeeded' then error end,
           created_at, clock_timestamp() - run_us * interval '1 microsecond', clock_timestamp()
    from ended
    returning slot, id
), message as materialized (
    select i.*, nextval('ringmesh.task_id') as number
    from (
        select m.* from unnest($13::integer[], $14::bigint[], $15::text[], $16::text[], $17::text[], $18::text[], $19::text[], $20::bytea[])
            with ordinality as m (slot, task, key, target, topic, headers, content_type, body, place)
        -- Numbers after the transaction's own, and none for what is not ours.
        where pg_current_xact_id() is not null
          and case when (m.slot, m.task) in (select slot, id from ended) then true else false end
        order by m.place
    ) i
), sent as (
    insert into ringmesh.outbox (slot, id, task, key, target, topic, headers, content_type, body)
    select slot, number, task, key, target, topic, headers::json, content_type, body from message
), further as materialized (
    select i.*, nextval('ringmesh.task_id') as number
    from (
        select f.* from unnest($21::integer[], $22::bigint[], $23::integer[], $24::text[], $25::text[], $26::text[], $27::smallint[],
                               $28::integer[], $29::bigint[], $30::timestamptz[], $31::bigint[])
            with ordinality as f (of_slot, of_task, slot, key, kind, payload, priority, max_attempts, timeout_ms, run_at, waiter, place)
        where pg_current_xact_id() is not null
          and case when (f.of_slot, f.of_task) in (select slot, id from ended) then true else false end
        order by f.place
    ) i
), submitted as (
    insert into ringmesh.task (slot, id, key, kind, payload, priority, max_attempts, timeout_ms, waiter, run_at, wait)
    select slot, number, key, kind, payload::json, priority, max_attempts, timeout_ms, waiter, run_at,
           case when run_at > clock_timestamp() then 'scheduled' end
    from further
), joined as (
    insert into ringmesh.member (slot, task, member_slot, member)
    select w.slot, w.number, m.slot, m.number
    from unnest($32::bigint[], $33::bigint[]) as j (waiting, member)
    join further w on w.place = j.waiting
    join further m on m.place = j.member
)
select slot as "slot!", id as "id!", 0::bigint as "place!" from archived
union all
select slot, number, place from further
