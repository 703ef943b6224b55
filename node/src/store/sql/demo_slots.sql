-- All slots, by number. The time is from before the read: what was submitted earlier than it was submitted while the slots
-- stood so.
select statement_timestamp() as at,
       array_agg(coalesce(owner, 0) order by slot) as owners,
       array_agg(epoch order by slot) as epochs
from ringmesh.slot
