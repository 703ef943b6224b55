-- What became of claimed tasks after a write whose answer never came, or lacked them; one snapshot, so that none is in
-- neither table. A cancel keeps the numbers of the claim that it ends: it is not ours. $1 slots, $2 ids, $3 epochs, $4 attempts. Indexes: task's primary key, finished_task_id of each day.
select w.slot as "slot!", w.id as "id!",
    exists (select from ringmesh.task t
            where t.slot = w.slot and t.id = w.id and t.epoch = w.epoch and t.attempt = w.attempt) as "open!",
    exists (select from ringmesh.task t where t.slot = w.slot and t.id = w.id) as "there!",
    exists (select from ringmesh.finished_task f
            where f.slot = w.slot and f.id = w.id and f.epoch = w.epoch and f.attempt = w.attempt
              and f.state <> 'cancelled') as "ours!"
from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::integer[]) as w (slot, id, epoch, attempt)
