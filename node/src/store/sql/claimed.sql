-- What Postgres holds as claimed under these slots' epochs, from an id on: to find what an unanswered claim took, which looked
-- from there on. $1 slots, $2 epochs, $3 ids. Index: primary key.
select t.slot, t.id, t.epoch as "epoch!", t.attempt
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as w (slot, epoch, start)
join ringmesh.task t on t.slot = w.slot and t.id >= w.start and t.epoch = w.epoch
