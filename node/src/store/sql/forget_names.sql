-- Drops what sqlx has prepared by name on this server for others: a handler's statements take the same names. What a pooler
-- itself has prepared for its clients has other names, and stays.
do $$
declare
  statement text;
begin
  for statement in select name from pg_prepared_statements where name like 'sqlx\_s\_%' loop
    execute format('deallocate %I', statement);
  end loop;
end $$
