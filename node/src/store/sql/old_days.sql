-- The day partitions of finished tasks that end before the retention time, oldest first. $1 retention in ms.
select c.relname::text as "name!"
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'ringmesh.finished_task'::regclass
  and c.relname ~ '^finished_task_[0-9]{8}$'
  and to_date(right(c.relname, 8), 'YYYYMMDD') + 1
      <= ((clock_timestamp() - $1::bigint * interval '1 millisecond') at time zone 'UTC')::date
order by c.relname
