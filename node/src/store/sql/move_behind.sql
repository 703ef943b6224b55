-- Moves tasks that wait behind a long-held key out of the due index, in chunks: otherwise each probe steps over them.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs. Fence: node row, slot rows. Index: task_due.
-- It takes a hold before its tasks, against the order of all others (tasks, then holds), and holds in no order. So it waits for
-- neither: what is locked is changing, and its turn comes in the next round. The conditions stand on the targets.
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
), long as materialized (
    -- Only holds that keep something from running: a hold is marked when something is behind it.
    select h.slot, h.key, live.epoch
    from live join ringmesh.held_key h on h.slot = live.slot and h.reason in ('retry', 'kind')
    where (h.held_until is null or h.held_until > clock_timestamp() + interval '5 seconds')
      and exists (select from ringmesh.task t
                  where t.slot = h.slot and t.key = h.key and t.wait is null and t.id <> h.task
                    and t.epoch is distinct from live.epoch)
    for update of h skip locked
), long_held as (
    update ringmesh.held_key h set behind = true
    from long
    where h.slot = long.slot and h.key = long.key and h.reason in ('retry', 'kind')
      and (h.held_until is null or h.held_until > clock_timestamp() + interval '5 seconds')
    returning h.slot, h.key, h.task, long.epoch
), picked as materialized (
    select t.slot, t.id, t.attempt
    from long_held h join ringmesh.task t
      on t.slot = h.slot and t.wait is null and t.key = h.key and t.id <> h.task and t.epoch is distinct from h.epoch
    limit 10000
    for update of t skip locked
)
update ringmesh.task t set wait = 'behind' from picked p
where t.slot = p.slot and t.id = p.id and t.wait is null and t.attempt = p.attempt
returning t.slot, t.id
