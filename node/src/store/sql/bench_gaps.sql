-- For each slot that lost its owner at $1: from then, or from the submit of the first task that waited if that was later, to
-- the first start under a later epoch, in ms. $2 slot, $3 its epoch before, $4 until when it surely had no new owner.
-- Slots in which no task waited are missing.
select extract(epoch from waited.first_start - greatest($1::timestamptz, waited.first_submit))::double precision * 1000 as "ms!"
from unnest($2::integer[], $3::bigint[], $4::timestamptz[]) as o (slot, epoch, until)
cross join lateral (
    select min(f.started_at) as first_start, min(f.created_at) as first_submit
    from ringmesh.finished_task f
    where f.slot = o.slot and f.epoch > o.epoch and f.created_at < o.until and f.finished_at >= $1
) waited
where waited.first_start is not null
