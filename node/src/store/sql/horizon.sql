-- For the start of probes. `last_id`: the last number given to a task; it is read first. `here`: this transaction's own
-- number, given after: whoever holds a task number up to `last_id` took a lower one before it. `xmin`: every transaction
-- below it has ended. (pg_snapshot_xmax would not do for `here`: it only passes what has completed.)
-- A number that is not on disk is given out again after a crash. So this transaction writes a message into the WAL that nobody
-- reads, and its commit waits until that, and with it all before it, is on disk: what it answers is never taken back.
select case when is_called then last_value else last_value - 1 end as "last_id!",
       pg_current_xact_id()::text::bigint as "here!",
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as "xmin!",
       pg_logical_emit_message(true, 'ringmesh', '')::text as "written!",
       set_config('synchronous_commit', 'local', true) as "waits!"
from ringmesh.task_id
