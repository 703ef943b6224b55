-- Moves tasks that wait behind a long-held key out of the due index, in chunks: otherwise each probe steps over them.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs. The hold's row is changed first, with its condition on the target.
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
), long_held as (
    update ringmesh.held_key h set behind = true
    from live
    where h.slot = live.slot and h.reason in ('retry', 'kind')
      and (h.held_until is null or h.held_until > clock_timestamp() + interval '5 seconds')
    returning h.slot, h.key, h.task, live.epoch
), picked as materialized (
    select t.slot, t.id, t.attempt
    from long_held h join ringmesh.task t
      on t.slot = h.slot and t.wait is null and t.key = h.key and t.id <> h.task and t.epoch is distinct from h.epoch
    limit 10000
)
update ringmesh.task t set wait = 'behind' from picked p
where t.slot = p.slot and t.id = p.id and t.wait is null and t.attempt = p.attempt
returning t.slot, t.id
