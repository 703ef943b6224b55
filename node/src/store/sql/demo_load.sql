-- What a node keeps in memory for an aircraft; runs in the task's transaction.
select run.id as run,
       logbook.flights, logbook.cancellations, logbook.miles, logbook.air_minutes, logbook.punctual,
       logbook.longest_run, logbook.chain, logbook.last_line,
       aircraft.year, aircraft.manufacturer, aircraft.model, aircraft.seats
from ringmesh_demo.run
cross join ringmesh_demo.logbook
left join ringmesh_demo.aircraft using (tailnum)
where logbook.tailnum = $1
