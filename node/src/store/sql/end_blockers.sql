-- Ends the sessions that hold up the fencer with backend $1: transactions of the node that is being fenced, $2, as long as it
-- has not renewed since $3 (null: whatever it did) and nobody fenced it. Not those that wait for a node's row themselves
-- (another fencer, or a healthy node that hands slots on), and not young ones: these will be gone by themselves.
-- Handlers may have sessions of another role: their age is seen with pg_read_all_stats only, and they are ended with
-- pg_signal_backend only. What may not be ended is passed over, or its refusal would save all others; the answer names its roles.
select count(*) filter (where case when found.may then pg_terminate_backend(found.pid) end) as "ended!",
       string_agg(distinct found.role, ', ') filter (where not found.may) as spared
from (
    select a.pid, r.rolname::text as role,
           a.xact_start is not null and r.rolsuper <= me.rolsuper
           and (pg_has_role(r.oid, 'USAGE') or pg_has_role('pg_signal_backend', 'USAGE')) as may
    from unnest(pg_blocking_pids($1)) b join pg_stat_activity a on a.pid = b
    join pg_roles r on r.oid = a.usesysid join pg_roles me on me.rolname = current_user
    where coalesce(a.xact_start < clock_timestamp() - interval '250 milliseconds', true)
      and not exists (select from pg_locks l
                      where l.pid = a.pid and l.locktype = 'tuple' and l.relation = 'ringmesh.node'::regclass)
      and exists (select from ringmesh.node n
                  where n.incarnation = $2 and n.fenced_at is null
                    and ($3::bigint is null
                         or $3 = coalesce((select l.renewals from ringmesh.lease l where l.incarnation = n.incarnation
                                           order by l.renewals desc limit 1), n.renewals)))
) found
