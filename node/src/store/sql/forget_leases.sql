-- Forgets the leases of nodes that are fenced or missing. Both are so for ever, and a fenced row has its last counter.
delete from ringmesh.lease l
where not exists (select from ringmesh.node n where n.incarnation = l.incarnation and n.fenced_at is null)
