-- Waits for every statement about these slots that still runs, and keeps others out until the end of the transaction.
-- $1 incarnation, $2 slots.
select slot from ringmesh.slot where owner = $1 and slot = any($2::integer[]) order by slot for update
