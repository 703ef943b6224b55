-- What Postgres holds as claimed under these slots' epochs, up to an id: to find claims whose answer never came.
-- $1 slots, $2 epochs, $3 ids. Index: primary key.
select t.slot, t.id, t.epoch as "epoch!", t.attempt
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as w (slot, epoch, up_to)
join ringmesh.task t on t.slot = w.slot and t.id <= w.up_to and t.epoch = w.epoch
