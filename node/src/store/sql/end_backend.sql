-- Ends a server process, if it still is the one that began then. $1 its number, $2 its start.
select pg_terminate_backend(pid) as "ended!" from pg_stat_get_activity($1::integer) where backend_start = $2::timestamptz
