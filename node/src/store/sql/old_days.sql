-- The days of finished tasks that ended before the retention time, oldest first, and how far each is on its way out: still a
-- partition, being detached (whoever did it was interrupted), or detached and not dropped. $1 retention in ms.
select c.relname::text as "name!", i.inhrelid is not null as "attached!", coalesce(i.inhdetachpending, false) as "pending!"
from pg_class c
left join pg_inherits i on i.inhrelid = c.oid and i.inhparent = 'ringmesh.finished_task'::regclass
where c.relnamespace = 'ringmesh'::regnamespace and c.relkind = 'r' and c.relname ~ '^finished_task_[0-9]{8}$'
  and to_date(right(c.relname, 8), 'YYYYMMDD') + 1
      <= ((clock_timestamp() - $1::bigint * interval '1 millisecond') at time zone 'UTC')::date
order by c.relname
