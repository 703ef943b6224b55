-- The whole first schema: the mesh's settings, nodes and slots; open, held and finished tasks; idempotency ids.
--
-- Why so:   every table about work starts its key with `slot`, so that hot statements name slots; rows that change often
--           (node, slot, task) change only columns without an index, so that the change stays on its page (HOT).
-- Older binaries: none exist.
-- It runs in one transaction under an advisory transaction lock, with the schema `ringmesh` already created.

do $$ begin
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception 'ringmesh needs a database with encoding UTF8, this one has %', current_setting('server_encoding');
    end if;
end $$;

-- What every node must agree on before it may compute a placement. One row, written by the first node.
create table ringmesh.mesh (
    only_row      boolean primary key default true check (only_row),
    slots         integer not null,
    tokens        integer not null,             -- ring points per unit of weight
    load_bound    double precision,             -- null: the strict ring
    ring_version  integer not null,
    ttl_ms        bigint  not null,
    secret_check  text    not null,             -- a MAC of a fixed text: tells a wrong cluster secret, not the secret
    oldest_binary bigint  not null default 1    -- the lowest schema number (last migration) a binary must know
);

create sequence ringmesh.incarnation;

-- One row for each start of a node. A fenced row never lives again; a missing row counts as fenced.
create table ringmesh.node (
    incarnation bigint primary key,
    boot        bigint  not null,               -- random: tells two starts apart when a failover hands out a number twice
    name        text    not null,
    http        text    not null,
    gossip      text    not null,
    weight      integer not null check (weight between 1 and 1000),
    started_at  timestamptz not null default clock_timestamp(),
    lease_until timestamptz not null,
    renewals    bigint  not null default 0,
    fenced_at   timestamptz,
    fenced_as   text check (fenced_as in ('expired', 'noticed', 'replaced', 'left')),
    fenced_by   bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

create unique index node_name_unfenced on ringmesh.node (name) where fenced_at is null;

-- Waits, for at most a second, for the lock that a node's lease session holds; answers whether that session has ended. In
-- slices, because a waiter holds a snapshot. Caught here, the timeout is no error in the server's log.
create function ringmesh.session_ended(class integer, number integer) returns boolean
language plpgsql set lock_timeout = '1s' as $$
begin
    perform pg_advisory_lock_shared(class, number);
    perform pg_advisory_unlock_shared(class, number);
    return true;
exception when lock_not_available then
    return false;
end $$;

create table ringmesh.slot (
    slot  integer primary key check (slot between 0 and 4095),
    owner bigint,
    epoch bigint not null default 0,            -- the fencing number: rises by one at each grant, never reset
    settled bigint not null default 0           -- the owner's claims up to this ticket came too late: see docs/adr/0005
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

insert into ringmesh.slot (slot) select generate_series(0, 4095);

-- The slot of a key: the top 12 bits of SHA-256 over its UTF-8 bytes.
-- convert_to, never key::bytea: that cast reads backslashes.
create function ringmesh.slot_of(key text) returns integer
language sql immutable strict parallel safe
return (get_byte(sha256(convert_to(key, 'UTF8')), 0) << 4) | (get_byte(sha256(convert_to(key, 'UTF8')), 1) >> 4);

create sequence ringmesh.task_id;

-- Open work only. A task is running when its epoch is its slot's epoch; under any other epoch it is pending again.
create table ringmesh.task (
    slot         integer  not null,
    -- The transaction takes its number before the task's, also for an insert by hand: see docs/adr/0002.
    id           bigint   not null default case when pg_current_xact_id() is not null then nextval('ringmesh.task_id') end,
    key          text     not null,
    kind         text     not null,
    payload      json     not null,             -- json, not jsonb: numbers and text are kept as sent
    priority     smallint not null default 0 check (priority between 0 and 9),
    wait         text check (wait in ('scheduled', 'behind', 'kind')),  -- null: due. Else why no claim looks at it
    run_at       timestamptz                    -- when wait = 'scheduled': due from then
                 check (run_at >= '0001-01-01Z' and run_at < '10000-01-01Z'),  -- every client can read it
    epoch        bigint,                        -- with attempt: the token of the last claim; null: returned, or never claimed
    attempt      integer  not null default 0,   -- the number of claims; only rises
    started_at   timestamptz,                   -- when it was claimed last
    failures     integer  not null default 0,
    crashes      integer  not null default 0,
    trial        smallint not null default 0,   -- 1: started among few suspects; 2: as the only one; below 0: not started yet
    max_attempts integer  not null default 10 check (max_attempts between 1 and 1000),
    timeout_ms   bigint   not null default 300000 check (timeout_ms between 1 and 86400000),
    waiter       bigint,                        -- the incarnation whose client waits for the end
    error        text,
    created_at   timestamptz not null default clock_timestamp(),
    primary key (slot, id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

create index task_due       on ringmesh.task (slot, id)     where wait is null;
create index task_urgent    on ringmesh.task (slot, id)     where wait is null and priority > 0;
create index task_scheduled on ringmesh.task (slot, run_at, id) where wait = 'scheduled';
create index task_aside     on ringmesh.task (slot, key, id) where wait in ('behind', 'kind');

-- A key of which only one task may run: its head waits for a retry, or for an owner that knows its kind.
create table ringmesh.held_key (
    slot       integer not null,
    key        text    not null,
    task       bigint  not null,                -- the only task of the key that may run. Below 0: none, the hold is being
                                                -- lifted, of the task of that number; so the value names this lifting
    reason     text    not null check (reason in ('retry', 'kind', 'lifting')),
    held_until timestamptz,                     -- when the head is due, as far as known
    behind     boolean not null default false,  -- tasks of this key were moved out of the due index
    primary key (slot, key),
    check ((task < 0) = (reason = 'lifting'))
);

-- One row per idempotency id of a submit. A plain table: a unique index on day partitions would have to contain the day,
-- and then midnight makes two tasks of one id.
create table ringmesh.idempotency (
    slot        integer not null,
    key         text    not null,
    kind        text    not null,
    id_key      text    not null,
    task        bigint  not null,
    fingerprint bytea   not null,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (slot, key, kind, id_key)
);

create index idempotency_age on ringmesh.idempotency (slot, created_at);

-- How tasks ended. By day, so that retention detaches a day instead of deleting rows.
create table ringmesh.finished_task (
    slot        integer  not null,
    id          bigint   not null,
    key         text     not null,
    kind        text     not null,
    payload     json,                           -- kept for dead and cancelled tasks only
    priority    smallint not null,
    state       text     not null check (state in ('succeeded', 'dead', 'cancelled')),
    attempt     integer  not null,
    failures    integer  not null,
    crashes     integer  not null,
    epoch       bigint,
    node        bigint,                         -- the incarnation that ended it; null: cancelled
    result      json,
    error       text,
    created_at  timestamptz not null,
    started_at  timestamptz,
    finished_at timestamptz not null default clock_timestamp()
) partition by range (finished_at);

create index finished_task_id on ringmesh.finished_task (slot, id);

-- Creates the day partitions from yesterday to `ahead` days from now (UTC days). Safe to call at the same time. A day is
-- made apart and attached: that does not wait for readers, nor make writers wait, as `create table … partition of` does.
create function ringmesh.create_days(ahead integer) returns integer
language plpgsql as $$
declare
    day  date;
    name text;
    made integer := 0;
begin
    for day in select (now() at time zone 'UTC')::date + d from generate_series(-1, ahead) d loop
        name := 'finished_task_' || to_char(day, 'YYYYMMDD');
        -- pg_class, not to_regclass: that one may answer from what this session knew before it waited for the lock.
        continue when exists (select from pg_class where relnamespace = 'ringmesh'::regnamespace and relname = name);
        -- Serialises creators; held to the end of the transaction only.
        perform pg_advisory_xact_lock(hashtextextended('ringmesh.create_days', 0));
        continue when exists (select from pg_class where relnamespace = 'ringmesh'::regnamespace and relname = name);
        execute format('create table ringmesh.%I (like ringmesh.finished_task including defaults including constraints)', name);
        execute format('alter table ringmesh.finished_task attach partition ringmesh.%I for values from (%L) to (%L)',
                       name, day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
        made := made + 1;
    end loop;
    return made;
end $$;

select ringmesh.create_days(7);

-- Submits a task from SQL, inside the caller's transaction; answers with its id as the HTTP API writes it ("slot-number").
create function ringmesh.enqueue(
    kind text, key text, payload jsonb default 'null',
    run_at timestamptz default null, priority integer default 0, max_attempts integer default 10,
    timeout_ms bigint default 300000
) returns text
language plpgsql as $$
#variable_conflict use_variable
declare
    slot integer := ringmesh.slot_of(key);
    body text := payload::text;
    id   bigint;
begin
    if key is null or octet_length(key) not between 1 and 1024 then
        raise exception 'key: must have 1 to 1024 bytes' using errcode = '22023';
    end if;
    if kind is null or kind !~ '^[A-Za-z0-9_.:/-]{1,128}$' then
        raise exception 'kind: must have 1 to 128 letters, digits, or one of _ . : / -' using errcode = '22023';
    end if;
    if payload is null or octet_length(body) > 1048576 then
        raise exception 'payload: must be JSON of at most 1 MiB' using errcode = '22023';
    end if;
    -- HTTP's limit. Counting brackets is cheap, and nearly always enough.
    if length(body) - length(translate(body, '[{', '')) > 127
       and jsonb_path_exists(payload, 'strict $.**{127} ? (@.type() == "array" || @.type() == "object")') then
        raise exception 'payload: is nested deeper than 127' using errcode = '22023';
    end if;
    if priority is null or priority not between 0 and 9 then
        raise exception 'priority: must be 0 to 9' using errcode = '22023';
    end if;
    if max_attempts is null or max_attempts not between 1 and 1000 then
        raise exception 'max_attempts: must be 1 to 1000' using errcode = '22023';
    end if;
    if timeout_ms is null or timeout_ms not between 1 and 86400000 then
        raise exception 'timeout_ms: must be 1 to 86400000' using errcode = '22023';
    end if;
    if run_at < '0001-01-01Z' or run_at >= '10000-01-01Z' then
        raise exception 'run_at: must be in the years 1 to 9999' using errcode = '22023';
    end if;
    -- Taken before the number: a probe's start relies on each transaction that holds a number being visible as running.
    perform pg_current_xact_id();
    insert into ringmesh.task (slot, key, kind, payload, priority, wait, run_at, max_attempts, timeout_ms)
    values (slot, key, kind, body::json, priority,
            case when run_at > clock_timestamp() then 'scheduled' end, run_at, max_attempts, timeout_ms)
    returning task.id into id;
    return slot || '-' || id;
end $$;
