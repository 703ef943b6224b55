-- The lease of each node, apart from its row.
--
-- Why so:   a renewal is a new row version, and beside an old snapshot no version goes. Here each lies under a number of its
--           own, and whoever looks for the newest meets it first; the rows of `node`, which every write of an owner locks, stay
--           as they are. See docs/adr/0006.
-- Older binaries: an unfenced node without a lease is one of theirs. As long as there is one, renewals also show their number
--           in `node`, where these binaries look for it. What they see of the lease's end in `node` is far away.
-- It touches no table that anybody uses.

create table ringmesh.lease (
    incarnation bigint      not null,
    renewals    bigint      not null,
    lease_until timestamptz not null,       -- for people; no decision is taken from it
    primary key (incarnation, renewals)     -- the newest first, backwards
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
