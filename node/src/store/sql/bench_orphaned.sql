-- Which of the slots $1 still belong to the incarnation $2, by a snapshot taken after the time given.
select statement_timestamp() as "at!",
       array(select slot from ringmesh.slot where slot = any($1::integer[]) and owner = $2) as "slots!: Vec<i32>"
