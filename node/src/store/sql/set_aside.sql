-- Sets aside claimed tasks whose kind this owner does not know, and holds their keys with that reason.
-- $1 incarnation, $2 boot; $3 slots, $4 ids, $5 epochs, $6 attempts; each key at most once. Fence as in finish.sql.
with fence as materialized (
    select from ringmesh.node
    where incarnation = $1 and boot = $2 and fenced_at is null and lease_until > clock_timestamp()
    for key share
), live as materialized (
    select s.slot, s.epoch
    from (select distinct slot, epoch from unnest($3::integer[], $5::bigint[]) as u (slot, epoch)) w
    join ringmesh.slot s on s.slot = w.slot and s.epoch = w.epoch and s.owner = $1
    where exists (select from fence)
    order by s.slot
    for share of s
), given as materialized (
    -- CASE keeps this one look-up in a hash table: a join would compare all pairs.
    select d.*, t.place from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::integer[]) as d (slot, id, epoch, attempt)
    cross join lateral (
        select t.ctid as place from ringmesh.task t
        where t.slot = d.slot and t.id = d.id and t.epoch = d.epoch and t.attempt = d.attempt
        limit 1
    ) t
    where case when (d.slot, d.epoch) in (select slot, epoch from live) then true else false end
), aside as (
    update ringmesh.task t set epoch = null, wait = 'kind'
    from given d
    where t.ctid = d.place and t.epoch = d.epoch and t.attempt = d.attempt
    returning t.slot, t.id, t.key
), held as (
    insert into ringmesh.held_key as h (slot, key, task, reason)
    select slot, key, id, 'kind' from aside order by slot, key
    on conflict (slot, key) do update
    set task = excluded.task, reason = excluded.reason, held_until = excluded.held_until
)
select slot as "slot!", id as "id!" from aside
