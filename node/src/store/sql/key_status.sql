-- A key's slot, its owner, its open tasks and its hold. Reads the open tasks of the key's slot. $1 slot, $2 key.
select s.epoch as "epoch!", n.incarnation as "incarnation?", n.name as "owner?",
    (select count(*) from ringmesh.task t
     where t.slot = s.slot and t.key = $2 and t.epoch is distinct from s.epoch and t.wait is distinct from 'scheduled') as "waiting!",
    (select count(*) from ringmesh.task t where t.slot = s.slot and t.key = $2 and t.epoch = s.epoch) as "running!",
    (select count(*) from ringmesh.task t where t.slot = s.slot and t.key = $2 and t.wait = 'scheduled') as "scheduled!",
    h.reason as "held_for?", h.task as "held_task?", h.held_until as "held_until?",
    (select t.kind from ringmesh.task t where t.slot = h.slot and t.id = h.task) as "held_kind?"
from ringmesh.slot s
left join ringmesh.node n on n.incarnation = s.owner and n.fenced_at is null
left join ringmesh.held_key h on h.slot = s.slot and h.key = $2
where s.slot = $1
