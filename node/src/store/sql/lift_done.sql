-- Ends the lifting of holds that have nothing behind them any more. A statement after lift_behind.sql, so that it sees its
-- work. $1 incarnation, $2 boot, $3 slots, $4 epochs. Fence: node row, slot rows. Index: task_aside.
-- `seen` may be older than what the target has become (a later task of the key waits for its retry, with tasks behind it), and
-- a NOT EXISTS about other rows is not asked again for a row that changed. So the token of the lifting (`task`, below 0, never
-- used twice) stands on the target. Skips rows that are locked: they are changing, and this must not wait for a hold.
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
    from live join ringmesh.held_key h on h.slot = live.slot and h.reason = 'lifting'
    where not exists (select from ringmesh.task t where t.slot = h.slot and t.wait = 'behind' and t.key = h.key)
), picked as materialized (
    select h.slot, h.key, h.task
    from seen join ringmesh.held_key h
      on h.slot = seen.slot and h.key = seen.key and h.task = seen.task and h.reason = 'lifting'
    for update of h skip locked
)
delete from ringmesh.held_key h using picked p
where h.slot = p.slot and h.key = p.key and h.task = p.task and h.reason = 'lifting'
returning h.slot
