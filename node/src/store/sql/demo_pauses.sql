-- For each slot that moved ($1) from an epoch ($2): the first flight committed after it, if it was submitted while the slot
-- surely had not moved yet ($3), and the last one committed before it.
select moved.slot, before.ended_at as last_before, after.created_at, after.ended_at as first_after
from unnest($1::integer[], $2::bigint[], $3::timestamptz[]) as moved (slot, epoch, until)
cross join lateral (
    select f.created_at, f.finished_at as ended_at
    from ringmesh_demo.entry e join ringmesh.finished_task f on f.slot = e.slot and f.id = e.task
    where e.slot = moved.slot and e.epoch > moved.epoch
    order by f.finished_at limit 1
) after
left join lateral (
    select max(f.finished_at) as ended_at
    from ringmesh_demo.entry e join ringmesh.finished_task f on f.slot = e.slot and f.id = e.task
    where e.slot = moved.slot and e.epoch = moved.epoch
) before on true
where after.created_at < moved.until
