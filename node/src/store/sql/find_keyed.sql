-- The tasks of idempotency ids that were there before. A second statement, so that it sees what the first waited for.
select w.place as "place!", i.task as "task!", i.fingerprint as "fingerprint!"
from unnest($1::integer[], $2::text[], $3::text[], $4::text[]) with ordinality as w (slot, key, kind, id_key, place)
join ringmesh.idempotency i using (slot, key, kind, id_key)
