-- Deletes idempotency ids past their window, in chunks, by their slot's owner; those whose task is open stay.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 window in ms. Fence: node row, slot rows. Index: idempotency_age, whose
-- condition needs a time that does not move. The look for the task may be stale: what has ended never opens again, and an id
-- that was given anew meanwhile is young, by the target's own condition.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch, clock_timestamp() - $5::bigint * interval '1 millisecond' as before
    from unnest($3::integer[], $4::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for share of s
), old as materialized (
    select o.* from live cross join lateral (
        select i.slot, i.key, i.kind, i.id_key, live.before from ringmesh.idempotency i
        where i.slot = live.slot and i.created_at < live.before
          and not exists (select from ringmesh.task t where t.slot = i.slot and t.id = i.task)
        limit 500
    ) o
    limit 10000
)
delete from ringmesh.idempotency i using old o
where i.slot = o.slot and i.key = o.key and i.kind = o.kind and i.id_key = o.id_key and i.created_at < o.before
