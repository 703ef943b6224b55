-- Tasks as a reader sees them, open or finished; one statement, or a task could end between two looks and be in neither.
-- An open task has no start to show: its claim is all that Postgres knows of it, and it may wait in its lane still.
-- $1 slots, $2 ids. Indexes: task's primary key, finished_task_id of each day.
select w.place as "place!", t.slot as "slot!", t.id as "id!", t.key as "key!", t.kind as "kind!",
    case when t.wait = 'scheduled' then 'scheduled'
         when t.epoch = s.epoch and n.incarnation is not null then 'running' else 'pending' end as "state!",
    t.priority as "priority!", t.attempt as "attempt!", t.failures as "failures!", t.crashes as "crashes!",
    t.max_attempts, null as result, t.error, t.created_at as "created_at!",
    null::timestamptz as started_at, null::timestamptz as finished_at, t.run_at,
    case when t.epoch = s.epoch then n.name end as node, case when t.epoch = s.epoch then t.epoch end as epoch
from unnest($1::integer[], $2::bigint[]) with ordinality as w (slot, id, place)
join ringmesh.task t on t.slot = w.slot and t.id = w.id
join ringmesh.slot s on s.slot = t.slot
left join ringmesh.node n on n.incarnation = s.owner and n.fenced_at is null
union all
select w.place, f.slot, f.id, f.key, f.kind, f.state, f.priority, f.attempt, f.failures, f.crashes, null,
    f.result::text, f.error, f.created_at, f.started_at, f.finished_at, null, n.name, f.epoch
from unnest($1::integer[], $2::bigint[]) with ordinality as w (slot, id, place)
join ringmesh.finished_task f on f.slot = w.slot and f.id = w.id
left join ringmesh.node n on n.incarnation = f.node
