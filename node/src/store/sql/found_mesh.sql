-- The first node writes the settings; for every other this does nothing.
insert into ringmesh.mesh (slots, tokens, load_bound, ring_version, ttl_ms, secret_check)
values ($1, $2, $3, $4, $5, $6) on conflict do nothing
