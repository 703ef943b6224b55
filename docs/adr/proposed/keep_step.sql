-- Keeps what a step of a run came to, under the fence of its task; answers with what is kept. 0 rows: fenced, or ended.
-- $1 incarnation, $2 boot, $3 slots, $4 epochs (one of each), $5 id, $6 attempt, $7 name, $8 result. Locks: node, slot, task.
-- FOR SHARE, since a claim anew changes no key column and must wait. Two of one run: the first one counts, see the plan.
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
), mine as materialized (
    select t.slot, t.id, t.epoch, t.attempt from ringmesh.task t
    where t.slot = ($3::integer[])[1] and t.id = $5 and t.epoch = ($4::bigint[])[1] and t.attempt = $6 and exists (select from live)
    for share of t
), earlier as materialized (
    -- Of a run before, which had committed before this one was claimed.
    select s.result from mine cross join lateral (
        select k.result from ringmesh.step k
        where k.slot = mine.slot and k.task = mine.id and k.name = $7 and k.attempt < mine.attempt
        order by k.attempt
        limit 1
    ) s
), kept as (
    insert into ringmesh.step as s (slot, task, name, result, epoch, attempt)
    select slot, id, $7, $8::text::json, epoch, attempt from mine where not exists (select from earlier)
    on conflict (slot, task, name, attempt) do update set made_at = s.made_at
    returning s.result
)
select result::text as "result!" from earlier
union all
select result::text from kept
