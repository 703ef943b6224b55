-- Which of the owner's slots have due tasks that are not claimed: the look that finds what no hint told. It locks nothing,
-- so that an idle mesh writes nothing. $1 slots, $2 epochs, $3 starts of their probes. Indexes: task_due, task_urgent.
select w.slot as "slot!", exists (
    select from ringmesh.task t
    where t.slot = w.slot and t.wait is null and t.priority > 0 and t.epoch is distinct from w.epoch
) as "urgent!"
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as w (slot, epoch, start)
-- Not EXISTS, which may become a join that compares each slot with each task: see finish.sql.
cross join lateral (
    select from ringmesh.task t
    where t.slot = w.slot and t.id >= w.start and t.wait is null and t.epoch is distinct from w.epoch
      and not exists (select from ringmesh.held_key h where h.slot = t.slot and h.key = t.key and h.task <> t.id)
    limit 1
) due
