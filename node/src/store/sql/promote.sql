-- Makes scheduled tasks due whose time has come, in chunks, in the order of their times, then of their ids.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 at most per slot, $6 ticket. Fence: node row, slot rows with their
-- tickets. Index: task_scheduled, whose condition needs a time that does not move: `now` is taken once.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch, clock_timestamp() as now
    from unnest($3::integer[], $4::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1 and s.settled < $6
    where exists (select from fence)
    order by s.slot
    for share of s
), picked as materialized (
    select due.* from live cross join lateral (
        select t.ctid as place, live.now from ringmesh.task t
        where t.slot = live.slot and t.wait = 'scheduled' and t.run_at <= live.now
        order by t.run_at, t.id
        limit $5::integer
    ) due
)
update ringmesh.task t set wait = null from picked p
-- By place, and the wait hidden from the planner: see finish.sql.
where t.ctid = p.place and coalesce(t.wait, '') = 'scheduled' and t.run_at <= p.now
returning t.slot, t.id, t.priority
