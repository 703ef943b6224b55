-- Tasks of this run that have not ended, or ended badly; the first few.
(select slot, id, key, coalesce(wait, case when epoch is null then 'pending' else 'claimed' end) as state, failures, error
 from ringmesh.task where kind = 'flight' and payload ->> 'run' = $1 order by id limit 5)
union all
(select slot, id, key, state, failures, error
 from ringmesh.finished_task
 where kind = 'flight' and state <> 'succeeded' and payload ->> 'run' = $1 order by id limit 5)
