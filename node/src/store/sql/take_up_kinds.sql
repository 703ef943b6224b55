-- Makes tasks due again that were set aside, now that their owner knows their kind; in chunks. The hold stays until the
-- head ends. $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 known kinds. Index: task_aside.
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
), picked as materialized (
    select t.slot, t.id
    from live join ringmesh.task t on t.slot = live.slot and t.wait = 'kind' and t.kind = any($5::text[])
    limit 1000
)
update ringmesh.task t set wait = null from picked p
where t.slot = p.slot and t.id = p.id and t.wait = 'kind'
returning t.slot, t.id
