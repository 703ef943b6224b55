-- How often nodes of this name started within the last ten minutes and did not leave by themselves. For a growing delay of a
-- name that crash-loops. Reads the node table, which keeps fenced rows for a day.
select count(*) as "starts!" from ringmesh.node
where name = $1 and started_at > clock_timestamp() - interval '10 minutes' and fenced_as is distinct from 'left'
