-- Takes slots that have no owner, or a fenced one.
-- $1 incarnation, $2 boot of the taker; $3 slots, $4 the epochs that the taker read. The epoch stands on the target row:
-- a slot that was granted since has another one. A missing owner row counts as fenced. Tickets begin anew with each owner.
-- Locks: node, then slots ascending.
with me as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), free as materialized (
    select s.slot, s.epoch
    from unnest($3::integer[], $4::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch
    where exists (select from me)
      and (s.owner is null
           or not exists (select from ringmesh.node n where n.incarnation = s.owner and n.fenced_at is null))
    order by s.slot
    for update of s skip locked
)
update ringmesh.slot s set owner = $1, epoch = s.epoch + 1, settled = 0
from free
where s.slot = free.slot and s.epoch = free.epoch and s.owner is distinct from $1
returning s.slot, s.epoch
