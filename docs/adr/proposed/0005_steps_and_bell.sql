-- What a handler does in a transaction of its own, continued: steps; tasks that wait for others; and a bell for tasks that were
-- enqueued by SQL.
--
-- Why so:   see docs/adr/0007. Nothing here locks a row of the mesh before COMMIT.
-- Older binaries: know none of it and need none of it. What a slot of an older node has in these tables waits for a newer owner.
-- It makes new tables and functions, and replaces the text of one function; it locks no table that anybody uses.
-- SQLSTATE: as in migrations/0004_effects.sql.

-- What steps of open tasks came to; of several runs, the lowest attempt counts. The attempt belongs to the key, or the open
-- transaction of a stale run would hold up the run that follows it. Rows of ended tasks are deleted by their slot's owner.
create table ringmesh.step (
    slot    integer not null,
    task    bigint  not null,
    name    text    not null,
    result  json    not null,
    epoch   bigint  not null,
    attempt integer not null,
    made_at timestamptz not null default clock_timestamp(),
    primary key (slot, task, name, attempt)
);

-- Which tasks a task waits for. Written together with the waiting task, which is scheduled for the far end of time, and never
-- changed: a member that is not in `task` has ended. Deleted by the slot's owner once the waiting task has ended.
create table ringmesh.member (
    slot        integer not null,
    task        bigint  not null,               -- the one that waits
    member_slot integer not null,
    member      bigint  not null,
    primary key (slot, task, member_slot, member)
);

-- Rung by ringmesh.enqueue: a listener takes these rows and hints the owners. Losing one costs time, never a task.
-- Keyed by the transaction, so that a look finds what has committed since the look before, and nothing else. Not unique: a row
-- of one caller must not make another one wait.
create unlogged table ringmesh.bell (
    xact    xid8    not null,
    slot    integer not null check (slot between 0 and 4095),
    number  bigint  not null,
    urgent  boolean not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

create index bell_xact on ringmesh.bell (xact);

-- When somebody last said that it listens, in seconds of the epoch: without listeners (no node, or older ones only) nobody would take
-- the bells away. A sequence, since it keeps no versions, and is read and set without a lock.
create sequence ringmesh.listening;

-- What a step of this task has come to; null if it has not been made yet.
create function ringmesh.step(task text, epoch bigint, attempt integer, name text, boot bigint default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    own  record;
    kept jsonb;
begin
    own := ringmesh.look(task, epoch, attempt, boot);
    select s.result::jsonb into kept from ringmesh.step s
    where s.slot = own.slot and s.task = own.number and s.name = step.name order by s.attempt limit 1;
    return kept;
end $$;

-- Keeps what a step came to, in the caller's transaction, and answers with what is kept: the first one counts.
create function ringmesh.keep_step(
    task text, epoch bigint, attempt integer, name text, result jsonb, in_savepoint boolean default false, boot bigint default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    own  record;
    kept jsonb;
begin
    if name is null or octet_length(name) not between 1 and 255 then
        raise exception 'name: must have 1 to 255 bytes' using errcode = '22023';
    end if;
    if result is null then
        raise exception 'result: must be JSON, null is written as ''null''' using errcode = '22023';
    end if;
    perform ringmesh.check_json('result', result);
    own := ringmesh.parse_id('task', task);
    perform ringmesh.register(task, epoch, attempt, boot, false, null, in_savepoint);
    insert into ringmesh.step (slot, task, name, result, epoch, attempt)
    select own.slot, own.number, name, result::json, epoch, attempt
    where not exists (select from ringmesh.step s
                      where s.slot = own.slot and s.task = own.number and s.name = keep_step.name and s.attempt < keep_step.attempt)
    on conflict do nothing;
    select s.result::jsonb into kept from ringmesh.step s
    where s.slot = own.slot and s.task = own.number and s.name = keep_step.name order by s.attempt limit 1;
    return kept;
end $$;

-- Tells that a task is due that nobody has hinted, if somebody listens. With the rights of its owner: who may enqueue needs no right
-- on the bell.
create function ringmesh.ring(number bigint, slot integer, urgent boolean) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    insert into ringmesh.bell (xact, slot, number, urgent)
    select pg_current_xact_id(), slot, number, urgent from ringmesh.listening l
    where l.last_value > extract(epoch from clock_timestamp()) - 60;
end;

-- Whatever the default privileges are here: without it those who enqueue today would be refused.
grant execute on function ringmesh.ring(bigint, integer, boolean) to public;

-- As before, and it rings for what is due at once.
create or replace function ringmesh.enqueue(
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
    waits text;
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
    -- Such a number has at least 309 digits in a row, as jsonb writes it: few texts need the exact look. The bound is a hair
    -- below the largest float, since some readers of so many digits round up to infinity there.
    if octet_length(body) > 308 and body ~ '[0-9]{155}[0-9]{154}'
       and jsonb_path_exists(payload, 'strict $.** ? (@.type() == "number") ? (@ >= $bound || @ <= -$bound)',
                             jsonb_build_object('bound', ('179769313486231' || repeat('0', 294))::numeric)) then
        raise exception 'payload: has a number beyond the range of a 64-bit float' using errcode = '22023';
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
    waits := case when run_at > clock_timestamp() then 'scheduled' end;
    insert into ringmesh.task (slot, key, kind, payload, priority, wait, run_at, max_attempts, timeout_ms)
    values (slot, key, kind, body::json, priority, waits, run_at, max_attempts, timeout_ms)
    returning task.id into id;
    if waits is null then
        perform ringmesh.ring(id, slot, priority > 0);
    end if;
    return slot || '-' || id;
end $$;

-- Submits a task that becomes due once all of `tasks` have ended, however they ended. Answers with its id.
create function ringmesh.enqueue_after(
    tasks text[], kind text, key text, payload jsonb default 'null',
    priority integer default 0, max_attempts integer default 10, timeout_ms bigint default 300000
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    its record;
    own record;
    id  text;
begin
    if tasks is null or cardinality(tasks) not between 1 and 10000 then
        raise exception 'tasks: must be 1 to 10000 task ids' using errcode = '22023';
    end if;
    id := ringmesh.enqueue(kind, key, payload, timestamptz '9999-12-31 00:00Z', priority, max_attempts, timeout_ms);
    own := ringmesh.parse_id('id', id);
    for its in select distinct p.slot, p.number from unnest(tasks) as t (id), ringmesh.parse_id('tasks', t.id) p loop
        -- A member that is missing later has ended; so it must be there now, or have been.
        if not exists (select from ringmesh.task t where t.slot = its.slot and t.id = its.number)
           and not exists (select from ringmesh.finished_task f where f.slot = its.slot and f.id = its.number) then
            raise exception 'tasks: there is no task %-%', its.slot, its.number using errcode = 'RM004';
        end if;
        insert into ringmesh.member (slot, task, member_slot, member) values (own.slot, own.number, its.slot, its.number);
    end loop;
    perform ringmesh.ring(own.number, own.slot, false);     -- so that its owner learns of it soon
    return id;
end $$;

-- How the tasks ended for which a task has waited; no state: longer ago than ended tasks are kept.
create function ringmesh.members(task text) returns table (member text, state text, result json, error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
    own record := ringmesh.parse_id('task', task);
begin
    return query
    select m.member_slot || '-' || m.member, f.state, f.result, f.error
    from ringmesh.member m
    left join ringmesh.finished_task f on f.slot = m.member_slot and f.id = m.member
    where m.slot = own.slot and m.task = own.number
    order by m.member_slot, m.member;
end $$;

-- With the rights of their owner, these write what nobody else may: so nobody may call them whom the operator has not named.
-- `ring` stays open to whoever may enqueue.
revoke execute on function
    ringmesh.step(text, bigint, integer, text, bigint),
    ringmesh.keep_step(text, bigint, integer, text, jsonb, boolean, bigint),
    ringmesh.enqueue_after(text[], text, text, jsonb, integer, integer, bigint),
    ringmesh.members(text)
from public;
