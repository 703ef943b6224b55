-- All effects, in the order of their commits within an aircraft.
select line, tailnum, warm, written_at from ringmesh_demo.entry order by seq
