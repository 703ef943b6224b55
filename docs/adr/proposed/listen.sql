-- Takes what ringmesh.enqueue has rung for and hints the owners: by the owners of two slots, see docs/adr/0007.
-- $1 what the look before answered with as `seen` (null: take nothing, only begin; '1:1:': whatever is there), $2 how many at most.
-- It takes what had not committed for the look before: transactions from its xmax on, and those that it saw running. So it
-- walks neither what was taken already, which an old snapshot keeps as dead rows, nor waits for a horizon. If `found` reaches $2, there
-- may be more under the same `seen`. Without bells nothing is written. No fence: a bell that is lost costs a tick. Index: bell_xact.
with fresh as materialized (
    (select b.ctid as place from ringmesh.bell b where b.xact >= pg_snapshot_xmax($1::text::pg_snapshot) order by b.xact limit $2::bigint)
    union all
    (select b.place from pg_snapshot_xip($1::text::pg_snapshot) x (xact)
     cross join lateral (select o.ctid as place from ringmesh.bell o where o.xact = x.xact limit $2::bigint) b)
), rung as (
    delete from ringmesh.bell b where b.ctid = any (array(select place from fresh))
    returning b.slot, b.number, b.urgent
), told as (
    select slot, min(number) as lowest, bool_or(urgent) as urgent from rung group by slot
)
select pg_current_snapshot()::text as "seen!", (select count(*) from fresh) as "found!",
    array(select slot from told order by slot) as "slots!", array(select lowest from told order by slot) as "lowest!",
    array(select urgent from told order by slot) as "urgent!"
