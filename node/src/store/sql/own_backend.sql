-- This session's server process: its number and its start, which tells it from a later one with the same number.
select pid as "pid!", backend_start as "started!" from pg_stat_get_activity(pg_backend_pid())
