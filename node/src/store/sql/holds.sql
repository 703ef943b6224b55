-- Which of these slots have held keys, and what is to be done about them. $1 slots. Index: primary keys.
select h.slot as "slot!",
    bool_or(h.reason = 'lifting') as "lifting!",
    bool_or(h.reason = 'kind') as "kind!",
    bool_or(h.reason <> 'lifting'
            and not exists (select from ringmesh.task t where t.slot = h.slot and t.id = h.task)) as "orphaned!",
    bool_or(h.reason in ('retry', 'kind')
            and (h.held_until is null or h.held_until > clock_timestamp() + interval '5 seconds')) as "long!"
from ringmesh.held_key h
where h.slot = any($1::integer[])
group by h.slot
