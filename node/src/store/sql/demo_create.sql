-- The demo's own schema, made anew at each start of the demo. Several statements, sent as one simple query: one transaction.
-- `entry` has no unique constraint on purpose: were a flight written twice, the check at the end must be able to see it.
drop schema if exists ringmesh_demo cascade;
create schema ringmesh_demo;

create table ringmesh_demo.run (id text not null);

create table ringmesh_demo.aircraft (
    tailnum      text primary key,
    year         integer,
    manufacturer text,
    model        text,
    seats        integer
);

create table ringmesh_demo.logbook (
    tailnum       text primary key,
    flights       bigint not null default 0,
    cancellations bigint not null default 0,
    miles         bigint not null default 0,
    air_minutes   bigint not null default 0,
    punctual      bigint not null default 0,   -- departures less than 15 minutes late since the last late one
    longest_run   bigint not null default 0,
    chain         bytea  not null,             -- SHA-256(chain before, line as 8 bytes): stands for all lines so far, in order
    last_line     bigint not null default 0
) with (fillfactor = 50);

create table ringmesh_demo.entry (
    seq        bigserial,                      -- within an aircraft: the order of commits, since its logbook row is locked before
    line       bigint      not null,
    tailnum    text        not null,
    node       text        not null,
    epoch      bigint      not null,
    slot       integer     not null,
    task       bigint      not null,
    attempt    integer     not null,
    warm       boolean     not null,           -- the aircraft was in the node's memory
    written_at timestamptz not null default clock_timestamp()
);

create index entry_line on ringmesh_demo.entry (line);
create index entry_slot on ringmesh_demo.entry (slot, epoch);
