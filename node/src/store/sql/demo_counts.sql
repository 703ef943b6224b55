-- How many flights each node has written.
select node, count(*) as written from ringmesh_demo.entry group by node
