-- The unfenced node of a name. Index: node_name_unfenced.
select incarnation, boot, http, renewals from ringmesh.node where name = $1 and fenced_at is null
