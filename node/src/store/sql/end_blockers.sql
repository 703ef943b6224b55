-- Ends the sessions that hold up the fencer with backend $1: transactions of the node that is being fenced.
select count(*) filter (where pg_terminate_backend(pid)) as "ended!" from unnest(pg_blocking_pids($1)) pid
