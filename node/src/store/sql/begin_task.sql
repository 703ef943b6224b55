-- The first statement in a task's own transaction: the handler may think for $1 ms between two statements, and the
-- server process is known by number and start. `true`: for this transaction only.
select pid as "pid!", backend_start as "started!", now() as "transaction!",
  set_config('idle_in_transaction_session_timeout', $1, true) as "idle!"
from pg_stat_get_activity(pg_backend_pid())
