-- All unfenced nodes. `lease_ms` is for people; no decision may be taken from it.
select incarnation, boot, name, http, gossip, weight, renewals,
    (extract(epoch from lease_until - clock_timestamp()) * 1000)::bigint as "lease_ms!"
from ringmesh.node where fenced_at is null order by incarnation
