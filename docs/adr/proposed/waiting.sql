-- Finds tasks of the owner's slots that wait for others. Per slot: $1 slot, $2 start of the look, at most the horizon; $3 how many at
-- most. It locks nothing. Index: task_scheduled, at the one time that these tasks have, so that neither other scheduled tasks nor the
-- lists of members are walked. A task without members was scheduled for that time by somebody.
select w.slot as "slot!", t.id as "task!"
from unnest($1::integer[], $2::bigint[]) as w (slot, start)
cross join lateral (
    select o.id from ringmesh.task o
    where o.slot = w.slot and o.wait = 'scheduled' and o.run_at = timestamptz '9999-12-31 00:00Z' and o.id >= w.start
    order by o.id
    limit $3::bigint
) t
cross join lateral (select from ringmesh.member m where m.slot = w.slot and m.task = t.id limit 1) any_member
