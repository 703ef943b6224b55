-- What became of messages that were sent: delivered ones are deleted; others wait for their next turn, or are given up.
-- $1 incarnation, $2 boot; per message: $3 slot, $4 epoch, $5 id, $6 failures as seen, $7 delivered, $8 given up, $9 delay in ms,
-- $10 error. Fence: node row, slot rows. A failure names the failures that it was seen with: a repetition, or one that meets a
-- message that was put in line again, changes nothing. Index: primary key.
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
    -- CASE keeps this one look-up in a hash table: a join would compare all pairs.
    select d.*, m.place from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[], $8::boolean[], $9::bigint[],
                           $10::text[])
        as d (slot, epoch, id, failures, delivered, dead, delay_ms, error)
    cross join lateral (
        select o.ctid as place from ringmesh.outbox o where o.slot = d.slot and o.id = d.id limit 1
    ) m
    where case when (d.slot, d.epoch) in (select slot, epoch from live) then true else false end
), gone as (
    delete from ringmesh.outbox o using given d
    -- By place: see finish.sql. Whatever else has become of it, it was delivered.
    where d.delivered and o.ctid = d.place
    returning o.slot, o.id
), kept as (
    update ringmesh.outbox o
    set failures = o.failures + 1, again = false, error = d.error, dead_at = case when d.dead then clock_timestamp() end,
        due_at = case when not d.dead then clock_timestamp() + least(d.delay_ms, 3153600000000) * interval '1 millisecond' end
    from given d
    where not d.delivered and o.ctid = d.place and o.failures = d.failures and coalesce(o.dead_at, 'infinity') = 'infinity'
    returning o.slot, o.id
)
select slot as "slot!", id as "id!" from gone
union all
select slot, id from kept
