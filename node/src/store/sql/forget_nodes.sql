-- Forgets nodes that were fenced a day ago and own no slot. A missing row counts as fenced, so nothing changes by it.
delete from ringmesh.node n
where n.fenced_at < clock_timestamp() - interval '1 day'
  and not exists (select from ringmesh.slot s where s.owner = n.incarnation)
