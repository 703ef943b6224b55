-- Makes the tasks behind a hold that is being lifted due again, in chunks; until all are, no task of the key may run, so
-- that none overtakes. $1 incarnation, $2 boot, $3 slots, $4 epochs. Index: task_aside.
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
    from live
    join ringmesh.held_key h on h.slot = live.slot and h.reason = 'lifting'
    join ringmesh.task t on t.slot = h.slot and t.wait = 'behind' and t.key = h.key
    limit 10000
)
update ringmesh.task t set wait = null from picked p
where t.slot = p.slot and t.id = p.id and t.wait = 'behind'
returning t.slot, t.id
