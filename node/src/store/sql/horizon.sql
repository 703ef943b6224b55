-- For the start of probes. `last_id`: the last number given to a task; it is read first. `here`: this transaction's own
-- number, given after: whoever holds a task number up to `last_id` took a lower one before it. `xmin`: every transaction
-- below it that may hold a task number has ended. (pg_snapshot_xmin would wait for all that have written anything, in any
-- database.) Who inserts a task has locked its table before it takes a number, until its transaction has ended for all to
-- see; so whoever is without that lock holds none of these numbers. pg_locks has the lower half of transaction numbers.
-- A number that is not on disk is given out again after a crash. So this transaction writes a message into the WAL that nobody
-- reads, and its commit waits until that, and with it all before it, is on disk: what it answers is never taken back.
with last as materialized (
    select case when is_called then last_value else last_value - 1 end as last_id from ringmesh.task_id
), poll as materialized (
    select last_id, pg_current_xact_id()::text::bigint as here from last
), lock as materialized (
    select virtualtransaction as holder, locktype, mode, transactionid::text::bigint as xid,
           relation = 'ringmesh.task'::regclass
               and database = (select oid from pg_database where datname = current_database()) as on_task
    from pg_locks where granted
)
select last_id as "last_id!",
       here as "here!",
       least(here, (
           select min(here + (own.xid - here % 4294967296 + 6442450944) % 4294967296 - 2147483648)
           from lock writes join lock own on own.holder = writes.holder
           where writes.on_task and writes.mode = 'RowExclusiveLock'
             and own.locktype = 'transactionid' and own.mode = 'ExclusiveLock'
       )) as "xmin!",
       pg_logical_emit_message(true, 'ringmesh', '')::text as "written!",
       set_config('synchronous_commit', 'local', true) as "waits!"
from poll
