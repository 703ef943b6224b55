-- How large the archive is: how far a drain is, without reading what it writes.
select coalesce(sum(pg_relation_size(inhrelid)), 0)::bigint as "bytes!"
from pg_inherits where inhparent = 'ringmesh.finished_task'::regclass
