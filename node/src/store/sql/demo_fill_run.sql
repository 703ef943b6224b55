-- Tasks of another run than this write nothing.
insert into ringmesh_demo.run (id) values ($1)
