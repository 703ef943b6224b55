-- All slots in order, as two arrays (cheap to decode). No owner reads as 0.
select array_agg(coalesce(owner, 0) order by slot) as "owners!", array_agg(epoch order by slot) as "epochs!"
from ringmesh.slot
