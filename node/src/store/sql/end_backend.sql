-- Ends a server process, if it still is the one that began then, and in the transaction that began then: behind a pooler it may
-- serve another client by now. $1 its number, $2 its start, $3 the transaction's (null: whatever it does).
select pg_terminate_backend(pid) as "ended!" from pg_stat_get_activity($1::integer)
where backend_start = $2::timestamptz and ($3::timestamptz is null or xact_start = $3)
