-- Deletes messages that were given up longer ago than ended tasks are kept, in chunks, by their slot's owner.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 retention in ms. Fence: node row, slot rows. Index: outbox_dead. One that is put
-- in line again meanwhile stays, by the target's own condition.
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
        select m.ctid as place, live.before from ringmesh.outbox m
        where m.slot = live.slot and m.dead_at < live.before
        limit 100
    ) o
    limit 1000
)
-- By place: see finish.sql.
delete from ringmesh.outbox m using old o where m.ctid = o.place and m.dead_at < o.before
