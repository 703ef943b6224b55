-- Ends the lifting of holds that have nothing behind them any more. A statement after lift_behind.sql, so that it sees its
-- work. $1 incarnation, $2 boot, $3 slots, $4 epochs.
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
)
delete from ringmesh.held_key h using live
where h.slot = live.slot and h.reason = 'lifting'
  and not exists (select from ringmesh.task t where t.slot = h.slot and t.wait = 'behind' and t.key = h.key)
returning h.slot
