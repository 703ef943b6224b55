-- The payload of a claimed task, when it was too large to come with the claim. Index: primary key.
select payload::text as "payload!" from ringmesh.task where slot = $1 and id = $2 and epoch = $3 and attempt = $4
