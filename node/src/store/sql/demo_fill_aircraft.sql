-- The register.
insert into ringmesh_demo.aircraft (tailnum, year, manufacturer, model, seats)
select * from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::integer[])
