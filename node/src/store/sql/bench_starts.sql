-- How long after its submit each task from $1 on started, in ms.
select extract(epoch from started_at - created_at)::double precision * 1000 as "ms!"
from ringmesh.finished_task
where id >= $1 and state = 'succeeded' and started_at is not null
