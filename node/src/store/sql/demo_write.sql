-- One flight's effect; runs in the task's transaction, which carries the fence.
-- The chain stands for all that was written before: if it is another one than the run computed from, nothing is written.
with logged as (
    update ringmesh_demo.logbook
    set flights = $3, cancellations = $4, miles = $5, air_minutes = $6, punctual = $7, longest_run = $8, chain = $9,
        last_line = $10
    where tailnum = $1 and chain = $2
    returning tailnum
)
insert into ringmesh_demo.entry (line, tailnum, node, epoch, slot, task, attempt, warm)
select $10, tailnum, $11, $12, $13, $14, $15, $16 from logged
