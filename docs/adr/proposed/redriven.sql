-- Messages that were put in line again and not tried since, as outbox.sql shows them. They lie below where its looks begin, and behind
-- whatever waits there. Per slot: $1 slot, $2 how many at most. It locks nothing. Index: outbox_again, nearly always empty.
select m.slot as "slot!", m.id as "id!", m.key as "key!", m.target as "target!", m.topic, m.headers::text as headers,
    m.content_type as "content_type!", case when octet_length(m.body) <= 16384 then m.body end as body, m.failures as "failures!",
    (extract(epoch from m.due_at - clock_timestamp()) * 1000)::bigint as in_ms,
    (extract(epoch from clock_timestamp() - m.created_at) * 1000)::bigint as "age_ms!",
    (extract(epoch from clock_timestamp() - m.since) * 1000)::bigint as "tried_ms!"
from unnest($1::integer[], $2::integer[]) as w (slot, room)
cross join lateral (
    select o.* from ringmesh.outbox o
    where o.slot = w.slot and o.again
    order by o.id
    limit w.room
) m
