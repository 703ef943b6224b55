-- The slots of the unfenced node named $1.
select s.slot, s.epoch, s.owner as "owner!"
from ringmesh.slot s
join ringmesh.node n on n.incarnation = s.owner
where n.name = $1 and n.fenced_at is null
