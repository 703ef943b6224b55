-- In how many milliseconds the next scheduled task of each of these slots is due, if within a minute; 0 or less: due now.
-- $1 slots. Index: task_scheduled.
select w.slot as "slot!", (extract(epoch from due.run_at - clock_timestamp()) * 1000)::bigint as "in_ms!"
from unnest($1::integer[]) as w (slot) cross join lateral (
    select t.run_at from ringmesh.task t
    where t.slot = w.slot and t.wait = 'scheduled'
    order by t.run_at
    limit 1
) due
where due.run_at < clock_timestamp() + interval '1 minute'
