-- Messages that wait, of the owner's slots, in the order of their numbers. It locks nothing.
-- Per slot and target: $1 slot, $2 target, $3 start of the look, $4 how many at most. What is not due yet is shown too: it holds
-- back the later ones of its key. Index: outbox_waiting. The start is at most the horizon, so that nothing that commits late is passed.
select m.slot as "slot!", m.id as "id!", m.key as "key!", m.target as "target!", m.topic, m.headers::text as headers,
    m.content_type as "content_type!", case when octet_length(m.body) <= 16384 then m.body end as body, m.failures as "failures!",
    (extract(epoch from m.due_at - clock_timestamp()) * 1000)::bigint as in_ms,
    (extract(epoch from clock_timestamp() - m.created_at) * 1000)::bigint as "age_ms!",
    (extract(epoch from clock_timestamp() - m.since) * 1000)::bigint as "tried_ms!"
from unnest($1::integer[], $2::text[], $3::bigint[], $4::integer[]) as w (slot, target, start, room)
cross join lateral (
    select o.* from ringmesh.outbox o
    where o.slot = w.slot and o.target = w.target and o.dead_at is null and o.id >= w.start
    order by o.id
    limit w.room
) m
