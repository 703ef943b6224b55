-- The longest wait for a start, in ms, of the tasks submitted from $1 to $2 outside of the slots $3.
select max(extract(epoch from started_at - created_at))::double precision * 1000 as ms
from ringmesh.finished_task
where created_at between $1 and $2 and slot <> all($3::integer[])
