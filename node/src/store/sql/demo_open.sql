-- Tasks of this run that have not ended.
select count(*) as open from ringmesh.task where kind = 'flight' and payload ->> 'run' = $1
