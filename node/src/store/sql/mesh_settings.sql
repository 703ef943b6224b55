-- What all nodes must agree on.
select slots, tokens, load_bound, ring_version, ttl_ms, secret_check, cluster_check, oldest_binary from ringmesh.mesh
