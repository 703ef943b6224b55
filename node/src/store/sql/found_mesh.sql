-- The first node writes the settings; for every other this does nothing. A mesh that an older binary founded learns the check of its
-- cluster's id from the first newer node that has its secret.
insert into ringmesh.mesh as mesh (slots, tokens, load_bound, ring_version, ttl_ms, secret_check, cluster_check)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (only_row) do update set cluster_check = excluded.cluster_check
where mesh.cluster_check is null and mesh.secret_check = excluded.secret_check
