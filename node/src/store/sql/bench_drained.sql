-- How many tasks from $1 on ended well, when the first started and when the last ended.
select count(*) as "count!", min(started_at) as first_start, max(finished_at) as last_end
from ringmesh.finished_task
where id >= $1 and state = 'succeeded'
