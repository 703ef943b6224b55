-- How many of these tasks ended well.
select count(*) as "count!"
from unnest($1::integer[], $2::bigint[]) as u (slot, id)
join ringmesh.finished_task f on f.slot = u.slot and f.id = u.id and f.state = 'succeeded'
