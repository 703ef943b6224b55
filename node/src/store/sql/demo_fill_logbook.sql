-- An empty logbook for each key; $2: the chain before the first line.
insert into ringmesh_demo.logbook (tailnum, chain) select tailnum, $2 from unnest($1::text[]) as of (tailnum)
