-- Deletes ids past their window, in chunks, by their slot's owner. $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 window in ms.
-- Fence: node row, slot rows. Index: inbox_age. Who applies such an id at this moment waits for the deletion, and is then the first.
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
        select i.ctid as place, live.before from ringmesh.inbox i
        where i.slot = live.slot and i.seen_at < live.before
        limit 500
    ) o
    limit 10000
)
-- By place: see finish.sql.
delete from ringmesh.inbox i using old o where i.ctid = o.place and i.seen_at < o.before
