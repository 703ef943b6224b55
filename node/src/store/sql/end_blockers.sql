-- Ends the sessions that hold up the fencer with backend $1: transactions of the node that is being fenced, $2, as long as it
-- has not renewed since $3 (null: whatever it did) and nobody fenced it. Not those that wait for a node's row themselves
-- (another fencer, or a healthy node that hands slots on), and not young ones: these will be gone by themselves.
select count(*) filter (where pg_terminate_backend(a.pid)) as "ended!"
from unnest(pg_blocking_pids($1)) b join pg_stat_activity a on a.pid = b
where a.xact_start < clock_timestamp() - interval '250 milliseconds'
  and not exists (select from pg_locks l
                  where l.pid = a.pid and l.locktype = 'tuple' and l.relation = 'ringmesh.node'::regclass)
  and exists (select from ringmesh.node n
              where n.incarnation = $2 and n.fenced_at is null
                and ($3::bigint is null
                     or $3 = coalesce((select l.renewals from ringmesh.lease l where l.incarnation = n.incarnation
                                       order by l.renewals desc limit 1), n.renewals)))
