-- In how many milliseconds the next scheduled task of these slots is due; null: none. Index: task_scheduled.
select (extract(epoch from min(due.run_at) - clock_timestamp()) * 1000)::bigint as in_ms
from unnest($1::integer[]) as w (slot) cross join lateral (
    select t.run_at from ringmesh.task t
    where t.slot = w.slot and t.wait = 'scheduled'
    order by t.run_at
    limit 1
) due
