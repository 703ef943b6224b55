-- Shuts slots to every claim and promotion up to a ticket: waits for those that run, and those that arrive later find it.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 ticket. Fence: node row, slot rows. The update conflicts with the share lock
-- of a claim, changes no indexed column (HOT), and never lowers: an answer that was lost does no harm, nor does its repetition.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), mine as materialized (
    select s.slot, s.epoch
    from unnest($3::integer[], $4::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for no key update of s
)
update ringmesh.slot s set settled = greatest(s.settled, $5)
from mine
where s.slot = mine.slot and s.epoch = mine.epoch and s.owner = $1
returning s.slot
