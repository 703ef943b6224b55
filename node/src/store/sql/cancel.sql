-- Cancels an open task, from any node: deletes and archives it, and lifts the hold of which it is the head. A later finish
-- then gets 0 rows. No fence: this is the submitter's right, not the owner's. $1 slot, $2 id.
with gone as (
    delete from ringmesh.task t where t.slot = $1 and t.id = $2
    returning t.*
), lifting as (
    update ringmesh.held_key h set task = -h.task, reason = 'lifting', held_until = null
    from gone where h.slot = gone.slot and h.key = gone.key and h.task = gone.id and h.behind
), lifted as (
    delete from ringmesh.held_key h
    using gone where h.slot = gone.slot and h.key = gone.key and h.task = gone.id and not h.behind
)
insert into ringmesh.finished_task
    (slot, id, key, kind, payload, priority, state, attempt, failures, crashes, epoch, error, created_at, started_at)
select slot, id, key, kind, payload, priority, 'cancelled', attempt, failures, crashes, epoch, error, created_at,
       case when epoch is not null then started_at end
from gone
returning slot, id
