-- Messages to other systems, stored in the transaction that they speak of and relayed by their slot's owner.
--
-- Why so:   see docs/adr/0008. A message's number comes from the sequence of the tasks, so that the horizon (docs/adr/0002) holds for
--           messages as well. There is no cursor: what was delivered is deleted.
-- Older binaries: relay nothing. Messages of their slots wait for a newer owner.
-- It makes new tables and functions, and locks no table that anybody uses.

-- Which targets a node may send to, by its configuration: names only. A target is known while some unfenced node knows it.
create table ringmesh.target (
    name        text   not null check (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    incarnation bigint not null,
    primary key (name, incarnation)
);

create table ringmesh.outbox (
    slot         integer not null,              -- of the task, so that its owner relays
    id           bigint  not null,              -- from ringmesh.task_id; with the slot it is the Idempotency-Key
    task         bigint  not null,
    key          text    not null,              -- messages of a key to a target go in the order of their ids
    target       text    not null,
    topic        text,                          -- a routing key, the end of a subject
    headers      json,
    content_type text    not null default 'application/json',
    body         bytea   not null,
    failures     integer not null default 0,    -- a token as well: only rises
    due_at       timestamptz,                   -- after a failure: not before
    dead_at      timestamptz,                   -- given up; waits for somebody to send it again
    again        boolean not null default false,    -- put in line again, and not tried since
    error        text,
    created_at   timestamptz not null default clock_timestamp(),
    since        timestamptz not null default clock_timestamp(),    -- from when on it is tried: written, or put in line again
    primary key (slot, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

create index outbox_waiting on ringmesh.outbox (slot, target, id) where dead_at is null;
create index outbox_dead    on ringmesh.outbox (slot, dead_at)    where dead_at is not null;
create index outbox_again   on ringmesh.outbox (slot, id)         where again;

-- Checks a message and stores it; `place` begins the names of its fields in errors.
create function ringmesh.put_message(
    place text, task text, epoch bigint, attempt integer, target text, body jsonb, topic text, headers jsonb, in_savepoint boolean,
    boot bigint
) returns text
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    own record;
    id  bigint;
begin
    if target is null or not exists (
        select from ringmesh.target t join ringmesh.node n on n.incarnation = t.incarnation and n.fenced_at is null
        where t.name = target
    ) then
        raise exception '%target: % is not in the list of targets of any node', place, coalesce(quote_literal(target), 'null')
            using errcode = '22023';
    end if;
    if body is null then
        raise exception '%body: must be JSON, null is written as ''null''', place using errcode = '22023';
    end if;
    perform ringmesh.check_json(place || 'body', body);
    if octet_length(topic) not between 1 and 255 or topic ~ '[\x01-\x20\x7f]' then
        raise exception '%topic: must have 1 to 255 bytes, without spaces or control characters', place using errcode = '22023';
    end if;
    if jsonb_typeof(headers) <> 'object' or octet_length(headers::text) > 8192 then
        raise exception '%headers: must be an object of at most 8 KiB', place using errcode = '22023';
    end if;
    perform from jsonb_each(headers) h (name, value)
    where h.name !~ '^[A-Za-z0-9!#$%&*+.^_`|~-]{1,128}$' or jsonb_typeof(h.value) <> 'string'
       or h.value #>> '{}' ~ '[\x01-\x08\x0a-\x1f\x7f]'
       or lower(h.name) like 'ringmesh-%'
       or lower(h.name) = any ('{host,connection,content-length,content-type,transfer-encoding,upgrade,te,trailer,expect}'::text[])
       or lower(h.name) = any ('{idempotency-key,authorization,proxy-authorization}'::text[]);
    if found then
        raise exception '%headers: names must be tokens that are not reserved, values texts without control characters', place
            using errcode = '22023';
    end if;
    perform ringmesh.register(task, epoch, attempt, boot, false, null, in_savepoint);
    select t.slot, t.id as number, t.key into own
    from ringmesh.parse_id('task', task) p join ringmesh.task t on t.slot = p.slot and t.id = p.number;
    -- register has taken the transaction's number, before this one.
    insert into ringmesh.outbox (slot, id, task, key, target, topic, headers, body)
    values (own.slot, nextval('ringmesh.task_id'), own.number, own.key, target, topic, headers::json, convert_to(body::text, 'UTF8'))
    returning outbox.id into id;
    return own.slot || '-' || id;
end $$;

-- Sends a message if and when the caller's transaction commits, which it only does if the run is not stale by then. Answers with
-- the message's id. Its key is the task's.
create function ringmesh.send(
    task text, epoch bigint, attempt integer, target text, body jsonb,
    topic text default null, headers jsonb default null, in_savepoint boolean default false, boot bigint default null
) returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    select ringmesh.put_message('', task, epoch, attempt, target, body, topic, headers, in_savepoint, boot);
end;

-- As ringmesh.complete: ends a task as succeeded, together with the transaction that it is called in, or not at all. Raises as guard does.
-- `messages` are sent with it: [{"target": …, "body": …, "topic": …, "headers": …}, …].
create function ringmesh.complete_with(
    task text, epoch bigint, attempt integer, result jsonb, messages jsonb,
    in_savepoint boolean default false, boot bigint default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    message jsonb;
    field   text;
    place   integer := 0;
begin
    perform ringmesh.check_json('result', result);
    if jsonb_typeof(messages) <> 'array' or jsonb_array_length(messages) > 1000 then
        raise exception 'messages: must be an array of at most 1000' using errcode = '22023';
    end if;
    perform ringmesh.register(task, epoch, attempt, boot, true, result::json, in_savepoint);
    for message in select m from jsonb_array_elements(messages) m loop
        if jsonb_typeof(message) <> 'object' then
            raise exception 'messages[%]: must be an object', place using errcode = '22023';
        end if;
        select k into field from jsonb_object_keys(message) k where k not in ('target', 'body', 'topic', 'headers') limit 1;
        if found then
            raise exception 'messages[%].%: there is no such field', place, field using errcode = '22023';
        end if;
        perform ringmesh.put_message(format('messages[%s].', place), task, epoch, attempt, message ->> 'target', message -> 'body',
                                     message ->> 'topic', nullif(message -> 'headers', 'null'), in_savepoint, boot);
        place := place + 1;
    end loop;
end $$;

-- Puts a dead message in line again, under its own id; answers with how many that were. It may run on any node, as a cancel may: it
-- is the operator's right, not the owner's.
create function ringmesh.redrive(slot integer, id bigint) returns integer
language sql volatile set search_path = pg_catalog, pg_temp
begin atomic
    with again as (
        update ringmesh.outbox o set dead_at = null, due_at = null, again = true, failures = o.failures + 1, since = clock_timestamp()
        where o.slot = redrive.slot and o.id = redrive.id and o.dead_at is not null
        returning 1
    )
    select count(*)::integer from again;
end;

revoke execute on function
    ringmesh.send(text, bigint, integer, text, jsonb, text, jsonb, boolean, bigint),
    ringmesh.complete_with(text, bigint, integer, jsonb, jsonb, boolean, bigint),
    ringmesh.put_message(text, text, bigint, integer, text, jsonb, text, jsonb, boolean, bigint),
    ringmesh.redrive(integer, bigint)
from public;
