-- Lets tasks go that wait for others, all of which have ended: they are due now, and promote.sql makes them so.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs, $5 ids. Fence: node row, slot rows. That nobody is open is looked at again here;
-- what has ended never opens again, so the look may be old. Repeating it changes nothing.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch
    from (select distinct slot, epoch from unnest($3::integer[], $4::bigint[]) as u (slot, epoch)) w
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for share of s
), given as materialized (
    -- CASE, LATERAL with a limit, and the place leave the planner one way each: see finish.sql.
    select t.place from unnest($3::integer[], $4::bigint[], $5::bigint[]) as d (slot, epoch, id)
    cross join lateral (
        select t.ctid as place from ringmesh.task t
        where t.slot = d.slot and t.id = d.id and t.run_at = timestamptz '9999-12-31 00:00Z'
        limit 1
    ) t
    cross join lateral (select from ringmesh.member m where m.slot = d.slot and m.task = d.id limit 1) any_member
    left join lateral (
        select true as there from ringmesh.member m
        cross join lateral (select from ringmesh.task o where o.slot = m.member_slot and o.id = m.member limit 1) open
        where m.slot = d.slot and m.task = d.id
        limit 1
    ) open on true
    where case when (d.slot, d.epoch) in (select slot, epoch from live) then true else false end and open.there is null
)
update ringmesh.task t set run_at = clock_timestamp()
from given d
where t.ctid = d.place and coalesce(t.wait, '') = 'scheduled' and t.run_at = timestamptz '9999-12-31 00:00Z'
returning t.slot, t.id
