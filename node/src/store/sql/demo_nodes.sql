-- The latest incarnation of each name.
select distinct on (name) name, incarnation, fenced_at, fenced_as
from ringmesh.node order by name, incarnation desc
