-- Claims due tasks with a priority, each with the due tasks of its key before it: priority orders between keys only.
-- As claim.sql, but for the probe, and a row with id 0 stands only for slots that have such tasks.
-- Index: task_urgent, then task_due from the start of the slot's probe.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch, w.start, w.room
    from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::integer[]) as w (slot, epoch, start, room)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1 and s.settled < $7
    where exists (select from fence)
    order by s.slot
    for share of s
), urgent as materialized (
    select live.slot, live.epoch, live.start, u.key, max(u.id) as last_id
    from live cross join lateral (
        select t.key, t.id
        from ringmesh.task t
        where t.slot = live.slot and t.wait is null and t.priority > 0 and t.epoch is distinct from live.epoch
          and not exists (select from ringmesh.held_key h where h.slot = t.slot and h.key = t.key and h.task <> t.id)
        order by t.id
        limit live.room
    ) u
    group by live.slot, live.epoch, live.start, u.key
), picked as materialized (
    select urgent.slot, urgent.epoch, due.*
    from urgent cross join lateral (
        select t.ctid as place, t.id, t.attempt, t.epoch as lost_epoch, t.trial,
               exists (select from ringmesh.held_key h where h.slot = t.slot and h.key = t.key) as head
        from ringmesh.task t
        where t.slot = urgent.slot and t.id between urgent.start and urgent.last_id and t.key = urgent.key
          and t.wait is null and t.epoch is distinct from urgent.epoch
          and not exists (select from ringmesh.held_key h where h.slot = t.slot and h.key = t.key and h.task <> t.id)
        order by t.id
        limit 32
    ) due
), claimed as (
    update ringmesh.task t
    set attempt = t.attempt + 1, epoch = p.epoch, started_at = clock_timestamp(),
        trial = case when p.lost_epoch is null then -abs(p.trial) when p.trial < 0 then p.trial else -least(p.trial + 1, 2) end,
        crashes = t.crashes + case when p.lost_epoch is not null and p.trial = 2 then 1 else 0 end
    from picked p
    -- By place, and the wait hidden from the planner: see finish.sql.
    where t.ctid = p.place and coalesce(t.wait, '') = '' and t.epoch is distinct from p.epoch and t.attempt = p.attempt
    returning t.slot, t.id, t.attempt, t.epoch, t.key, t.kind,
        case when octet_length(t.payload::text) <= 16384 then t.payload::text end as payload,
        t.priority, t.failures, t.crashes, t.trial, t.max_attempts, t.timeout_ms, t.waiter,
        p.lost_epoch is not null as lost, p.head as head, t.created_at
)
select slot as "slot!", id as "id!", attempt as "attempt!", epoch as "epoch!", key as "key!", kind as "kind!", payload,
    priority as "priority!", failures as "failures!", crashes as "crashes!", trial as "trial!", max_attempts as "max_attempts!",
    timeout_ms as "timeout_ms!", waiter, lost as "lost!", head as "head!", created_at as "created_at!"
from claimed
union all
select slot, 0, count(id)::integer, epoch, '', '', null, 0::smallint, 0, 0, 0::smallint, 0, 0, null, false,
       exists (select from ringmesh.held_key h where h.slot = p.slot), to_timestamp(0)
from picked p
group by slot, epoch
