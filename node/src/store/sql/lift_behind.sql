-- Makes the tasks behind a hold that is being lifted due again, in chunks; until all are, no task of the key may run, so
-- that none overtakes. $1 incarnation, $2 boot, $3 slots, $4 epochs. Fence: node row, slot rows. Index: task_aside.
-- It looks for tasks without a hold that keeps them, not for holds that are being lifted: were a hold ever lost, what waited
-- behind it would come back. A stale look does no harm: a task that is due under a hold is passed over by claims.
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
    from live join ringmesh.task t on t.slot = live.slot and t.wait = 'behind'
    where not exists (select from ringmesh.held_key h where h.slot = t.slot and h.key = t.key and h.reason <> 'lifting')
    limit 10000
)
update ringmesh.task t set wait = null from picked p
where t.slot = p.slot and t.id = p.id and t.wait = 'behind'
returning t.slot, t.id
