-- All logbooks.
select tailnum, flights, cancellations, miles, air_minutes, punctual, longest_run, chain, last_line
from ringmesh_demo.logbook
