-- Deletes what belongs to tasks that have ended: their steps, and the lists of whom they waited for; in chunks, by their slot's
-- owner. $1 incarnation, $2 boot, $3 slots, $4 epochs: few slots at a time, in turn, as it looks at each row of theirs. Fence: node row,
-- slot rows. Ended tasks never open again, so the look may be old.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch
    from unnest($3::integer[], $4::bigint[]) as w (slot, epoch)
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for share of s
), steps as materialized (
    -- LATERAL with a limit stays a look-up: EXISTS may become a join, or a hash, of all open tasks.
    select s.ctid as place from live join ringmesh.step s on s.slot = live.slot
    left join lateral (select true as there from ringmesh.task t where t.slot = s.slot and t.id = s.task limit 1) t on true
    where t.there is null
    limit 10000
), members as materialized (
    select m.ctid as place from live join ringmesh.member m on m.slot = live.slot
    left join lateral (select true as there from ringmesh.task t where t.slot = m.slot and t.id = m.task limit 1) t on true
    where t.there is null
    limit 10000
), no_steps as (
    delete from ringmesh.step s using steps o where s.ctid = o.place
    returning 1
), no_members as (
    delete from ringmesh.member m using members o where m.ctid = o.place
    returning 1
)
select (select count(*) from no_steps) + (select count(*) from no_members) as "deleted!"
