-- Begins to lift the holds whose head is gone (it was cancelled while the hold changed). $1 incarnation, $2 boot, $3 slots,
-- $4 epochs. Fence: node row, slot rows. Index: primary keys.
-- `seen` may be older than what the target has become (the next task of the key waits for its retry): the head that was gone
-- stands on the target. Ids are never used twice, so what is gone stays gone. `task` below 0 is the token of the lifting; see
-- lift_done.sql. Skips rows that are locked: they are changing, and this must not wait for a hold.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch
    from unnest($3::integer[], $4::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for share of s
), seen as materialized (
    select h.slot, h.key, h.task
    from live join ringmesh.held_key h on h.slot = live.slot and h.reason <> 'lifting'
    where not exists (select from ringmesh.task t where t.slot = h.slot and t.id = h.task)
), picked as materialized (
    select h.slot, h.key, h.task
    from seen join ringmesh.held_key h
      on h.slot = seen.slot and h.key = seen.key and h.task = seen.task and h.reason <> 'lifting'
    for update of h skip locked
)
update ringmesh.held_key h set task = -h.task, reason = 'lifting', held_until = null
from picked p
where h.slot = p.slot and h.key = p.key and h.task = p.task and h.reason <> 'lifting'
returning h.slot
