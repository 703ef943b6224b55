-- What the steps of a task have come to so far; of several runs, the first one counts. $1 slot, $2 task. Index: primary key.
select distinct on (name) name as "name!", result::text as "result!" from ringmesh.step where slot = $1 and task = $2
order by name, attempt
