-- Hands slots on to the next owner: nothing lies between two owners.
-- $1 incarnation, $2 boot of the owner; $3 the next owner; $4 slots, $5 their epochs. Owner and epoch stand on the target.
-- Tickets begin anew with each owner.
-- Both node rows are locked in the order of their numbers; then the slots ascending.
with nodes as materialized (
    select n.incarnation from ringmesh.node n
    where n.fenced_at is null
      and ((n.incarnation = $1 and n.boot = $2 and n.lease_until > clock_timestamp()) or n.incarnation = $3)
    order by n.incarnation
    for key share
), mine as materialized (
    select s.slot, s.epoch
    from unnest($4::integer[], $5::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where (select count(*) from nodes) = 2
    order by s.slot
    for update of s
)
update ringmesh.slot s set owner = $3, epoch = s.epoch + 1, settled = 0
from mine
where s.slot = mine.slot and s.epoch = mine.epoch and s.owner = $1
returning s.slot
