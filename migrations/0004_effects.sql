-- What a handler does in a transaction of its own, in any language: guard, complete, apply_once.
--
-- Why so:   see docs/adr/0007. Nothing here locks a row of the mesh before COMMIT.
-- Older binaries: know none of it and need none of it. A task that was completed by SQL is, to its node, one that ended elsewhere.
--           Ids in the inbox of an older node's slots wait for a newer owner to be forgotten.
-- It makes new tables and functions only, and locks no table that anybody uses.
-- SQLSTATE: RM001 the run is stale, RM002 its task has ended, RM003 its node is barred for a moment, RM004 there is no such
-- task; 22023 a bad argument, whose name begins the message; 0A000 a transaction in which this cannot be kept.

-- What transactions have registered for their commit. A row is gone before its transaction ends, so nobody ever sees one, and a
-- crash may empty it. Its key starts with the transaction, whose rows are all that is ever looked for.
create unlogged table ringmesh.at_commit (
    xact    xid8    not null,
    slot    integer not null,
    task    bigint  not null,
    epoch   bigint  not null,
    attempt integer not null,
    boot    bigint,                             -- of the slot's owner, if the caller knows it
    ends    boolean not null default false,     -- complete: ends the task. Else guard: only looks
    result  json,
    last    boolean not null default false,     -- the second firing, after whatever else the transaction has deferred
    primary key (xact, slot, task)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Ids that were applied: ringmesh.apply_once.
create table ringmesh.inbox (
    slot    integer not null,                   -- of the id, as if it were a key
    id      text    collate "C" not null,       -- what is the same id shall not depend on the system's locales
    seen_at timestamptz not null default clock_timestamp(),
    primary key (slot, id)
);

create index inbox_age on ringmesh.inbox (slot, seen_at);

-- Counts ids that came again, for a metric: a row would be locked until the end of each caller's transaction. It also counts
-- those of transactions that came to nothing, and a crash may skip up to 32.
create sequence ringmesh.inbox_again;

-- Takes a task's id apart.
create function ringmesh.parse_id(field text, id text, out slot integer, out number bigint)
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if id !~ '^(0|[1-9][0-9]{0,3})-[1-9][0-9]{0,18}$' or split_part(id, '-', 1)::integer > 4095
       or split_part(id, '-', 2)::numeric > 9223372036854775807 then
        id := null;
    end if;
    if id is null then
        raise exception '%: a task id is SLOT-NUMBER, with a slot from 0 to 4095 and a number from 1', field using errcode = '22023';
    end if;
    slot := split_part(id, '-', 1)::integer;
    number := split_part(id, '-', 2)::bigint;
end $$;

-- Holds JSON to what handlers can read, as ringmesh.enqueue does.
create function ringmesh.check_json(field text, value jsonb) returns void
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    body text := value::text;
begin
    if octet_length(body) > 1048576 then
        raise exception '%: must be JSON of at most 1 MiB', field using errcode = '22023';
    end if;
    if length(body) - length(translate(body, '[{', '')) > 127
       and jsonb_path_exists(value, 'strict $.**{127} ? (@.type() == "array" || @.type() == "object")') then
        raise exception '%: is nested deeper than 127', field using errcode = '22023';
    end if;
    if octet_length(body) > 308 and body ~ '[0-9]{155}[0-9]{154}'
       and jsonb_path_exists(value, 'strict $.** ? (@.type() == "number") ? (@ >= $bound || @ <= -$bound)',
                             jsonb_build_object('bound', ('179769313486231' || repeat('0', 294))::numeric)) then
        raise exception '%: has a number beyond the range of a 64-bit float', field using errcode = '22023';
    end if;
end $$;

-- Says why a run may not write, and always raises. It reads anew: its caller has found a row changed.
create function ringmesh.refuse(slot integer, number bigint, epoch bigint, attempt integer, boot bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    id  text := slot || '-' || number;
    its record;
    how text;
begin
    select t.epoch, t.attempt, s.epoch as present, n.incarnation, n.boot
    into its
    from ringmesh.task t join ringmesh.slot s on s.slot = t.slot
    left join ringmesh.node n on n.incarnation = s.owner and n.fenced_at is null
    where t.slot = refuse.slot and t.id = number;
    if not found then
        select f.state into how from ringmesh.finished_task f where f.slot = refuse.slot and f.id = number limit 1;
        if found then
            raise exception 'task: % has ended as %', id, how using errcode = 'RM002';
        end if;
        raise exception 'task: there is no task %', id using errcode = 'RM004';
    end if;
    if its.present <> epoch or its.incarnation is null then
        raise exception 'epoch: the slot of task % is not owned under % any more', id, epoch using errcode = 'RM001';
    end if;
    if its.boot <> boot then
        raise exception 'boot: the slot of task % is owned by another start of a node', id using errcode = 'RM001';
    end if;
    if its.epoch is distinct from epoch or its.attempt <> attempt then
        raise exception 'attempt: % is not the present claim of task %', attempt, id using errcode = 'RM001';
    end if;
    -- Barred, or it was a moment ago: by what is seen now nothing is wrong with this run.
    raise exception 'task: the node of % is barred for a moment', id
        using errcode = 'RM003', hint = 'Nothing was written. Try the transaction again.';
end $$;

-- Looks at a run, without locks, and answers with its task's numbers.
create function ringmesh.look(
    task text, epoch bigint, attempt integer, boot bigint, out slot integer, out number bigint
) language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    select p.slot, p.number into slot, number from ringmesh.parse_id('task', task) p;
    if epoch is null or epoch < 1 then
        raise exception 'epoch: must be a number from 1' using errcode = '22023';
    end if;
    if attempt is null or attempt < 1 then
        raise exception 'attempt: must be a number from 1' using errcode = '22023';
    end if;
    perform from ringmesh.task t
    join ringmesh.slot s on s.slot = t.slot and s.epoch = t.epoch
    join ringmesh.node n on n.incarnation = s.owner and n.fenced_at is null and (look.boot is null or n.boot = look.boot)
    where t.slot = look.slot and t.id = number and t.epoch = look.epoch and t.attempt = look.attempt;
    if not found then
        perform ringmesh.refuse(slot, number, epoch, attempt, boot);
    end if;
end $$;

-- Looks at a run and registers it for the commit.
-- Refuses what the commit could not keep: isolation levels whose looks are older than their locks; and, unless told that it will
-- not be rolled back, a savepoint, with which the registration would go while the rest of the transaction stays.
create function ringmesh.register(
    task text, epoch bigint, attempt integer, boot bigint, ends boolean, result json, in_savepoint boolean
) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    slot   integer;
    number bigint;
    here   xid8;
    own    ringmesh.at_commit;
    made   xid;
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'a run can only be guarded at READ COMMITTED, this transaction is at %',
            upper(current_setting('transaction_isolation')) using errcode = '0A000';
    end if;
    select l.slot, l.number into slot, number from ringmesh.look(task, epoch, attempt, boot) l;
    here := pg_current_xact_id();
    select a.* into own from ringmesh.at_commit a where a.xact = here and a.slot = slot and a.task = number;
    if not found then
        insert into ringmesh.at_commit (xact, slot, task, epoch, attempt, boot, ends, result)
        values (here, slot, number, epoch, attempt, boot, ends, result)
        returning xmin into made;
        perform from ringmesh.at_commit a where a.xact = here and a.slot = slot and a.task = number;
        if not found then
            raise exception 'a guarded transaction cannot look before its COMMIT'
                using errcode = '0A000', hint = 'Do without SET CONSTRAINTS in it.';
        end if;
    elsif own.epoch <> epoch or own.attempt <> attempt or own.boot <> boot then
        raise exception 'attempt: this transaction is guarded by another claim of task %', task using errcode = 'RM001';
    elsif own.ends and ends then
        raise exception 'task: % is completed by this transaction already', task using errcode = 'RM002';
    elsif ends then
        update ringmesh.at_commit a set ends = true, result = register.result
        where a.xact = here and a.slot = slot and a.task = number
        returning xmin into made;
    end if;
    -- Within a savepoint rows carry a number of its own.
    if made <> here::xid and not coalesce(in_savepoint, false) then
        raise exception 'in_savepoint: this would be forgotten if the savepoint is rolled back'
            using errcode = '0A000', hint = 'Call it before the savepoint, or pass in_savepoint => true.';
    end if;
end $$;

-- At COMMIT: takes the fence's locks in their order (nodes, slots, tasks, held keys) and looks again, so that a fencer waits for
-- no more than a commit. The conditions stand on the rows that are locked; each statement has a snapshot of its own, and names
-- its rows one by one, which leaves the planner one way (see finish.sql).
-- The first firing only puts itself in line again: what the transaction has deferred besides, foreign keys say, may wait for
-- other transactions, and shall do so before these locks are taken.
create function ringmesh.on_commit() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
    its    ringmesh.at_commit[];
    one    ringmesh.at_commit;
    owner  bigint;
    owners bigint[];
    nodes  bigint[];
    stack  text;
begin
    if not new.last then
        update ringmesh.at_commit a set last = true where a.xact = new.xact and a.slot = new.slot and a.task = new.task;
        return null;
    end if;
    -- The first of a transaction does it for all, in one order.
    with gone as (
        delete from ringmesh.at_commit a where a.xact = pg_current_xact_id() returning a.*
    )
    select array_agg(gone::ringmesh.at_commit order by gone.slot, gone.task) into its from gone;
    if its is null then
        return null;
    end if;
    -- Nobody could end a prepared transaction that holds off a fencer; and locks that are taken before COMMIT hold one off for as
    -- long as the client likes. Comments between the words are skipped. No backslash: what one means is up to the caller.
    -- At COMMIT this function stands alone on the stack, or above the COMMIT of a procedure; else somebody else fires it.
    get diagnostics stack = pg_context;
    stack := split_part(stack, chr(10), 2);
    if (stack <> '' and stack !~ '[[:<:]]COMMIT[[:>:]]')
       or current_query() ~* ('[[:<:]](prepare([[:space:]]|/[*].*?[*]/|--.*?[[:cntrl:]])+transaction|'
                              'set([[:space:]]|/[*].*?[*]/|--.*?[[:cntrl:]])+constraints)[[:>:]]') then
        raise exception 'a guarded transaction can neither be prepared nor look before its COMMIT' using errcode = '0A000',
            hint = 'Do without PREPARE TRANSACTION and SET CONSTRAINTS in it.';
    end if;
    foreach one in array its loop
        select s.owner into owner from ringmesh.slot s where s.slot = one.slot and s.epoch = one.epoch;
        owners := owners || owner;
    end loop;
    select array_agg(locked.incarnation) into nodes
    from (
        select n.incarnation from ringmesh.node n
        where n.incarnation = any(owners) and n.fenced_at is null and n.lease_until > clock_timestamp()
        order by n.incarnation
        for key share
    ) locked;
    foreach one in array its loop
        -- A node's boot never changes, so it may be read without its lock.
        perform from ringmesh.slot s
        where s.slot = one.slot and s.epoch = one.epoch and s.owner = any(nodes)
          and (one.boot is null or one.boot = (select n.boot from ringmesh.node n where n.incarnation = s.owner))
        for share;
        if not found then
            perform ringmesh.refuse(one.slot, one.task, one.epoch, one.attempt, one.boot);
        end if;
    end loop;
    -- All tasks in one order, whether they end or not.
    foreach one in array its loop
        if one.ends then
            perform from ringmesh.task t
            where t.slot = one.slot and t.id = one.task and t.epoch = one.epoch and t.attempt = one.attempt for update;
        else
            -- Not FOR KEY SHARE: a claim anew changes no key column, and must wait.
            perform from ringmesh.task t
            where t.slot = one.slot and t.id = one.task and t.epoch = one.epoch and t.attempt = one.attempt for share;
        end if;
        if not found then
            perform ringmesh.refuse(one.slot, one.task, one.epoch, one.attempt, one.boot);
        end if;
    end loop;
    -- As finish.sql; whether it is the head of a held key is looked up, as in cancel.sql. The tasks are locked and checked: each
    -- of them is deleted.
    foreach one in array its loop
        continue when not one.ends;
        with gone as (
            delete from ringmesh.task t
            where t.slot = one.slot and t.id = one.task and t.epoch = one.epoch and t.attempt = one.attempt
            returning t.*
        ), lifting as (
            update ringmesh.held_key h set task = -h.task, reason = 'lifting', held_until = null
            from gone where h.slot = gone.slot and h.key = gone.key and h.task = gone.id and h.behind
        ), lifted as (
            delete from ringmesh.held_key h
            using gone where h.slot = gone.slot and h.key = gone.key and h.task = gone.id and not h.behind
        )
        insert into ringmesh.finished_task
            (slot, id, key, kind, priority, state, attempt, failures, crashes, epoch, node, result, created_at, started_at, finished_at)
        select gone.slot, gone.id, gone.key, gone.kind, gone.priority, 'succeeded', gone.attempt, gone.failures, gone.crashes,
               gone.epoch, s.owner, one.result, gone.created_at, gone.started_at, clock_timestamp()
        from gone join ringmesh.slot s on s.slot = gone.slot;
    end loop;
    return null;
end $$;

create constraint trigger at_commit after insert or update of last on ringmesh.at_commit
deferrable initially deferred for each row execute function ringmesh.on_commit();

-- Also in sessions that say they replicate: there it would be passed over in silence.
alter table ringmesh.at_commit enable always trigger at_commit;

-- Keeps stale runs from committing: raises now if the run is stale, or else at COMMIT if it is by then.
create function ringmesh.guard(
    task text, epoch bigint, attempt integer, in_savepoint boolean default false, boot bigint default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ringmesh.register(task, epoch, attempt, boot, false, null, in_savepoint);
end $$;

-- Ends the task with the caller's transaction: both happen, or neither. Raises as guard does.
create function ringmesh.complete(
    task text, epoch bigint, attempt integer, result jsonb default null,
    in_savepoint boolean default false, boot bigint default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform ringmesh.check_json('result', result);
    perform ringmesh.register(task, epoch, attempt, boot, true, nullif(result, 'null')::json, in_savepoint);
end $$;

-- True for the first transaction that commits with this id, within the window; false for all others. One that is under way with
-- the same id is waited for.
create function ringmesh.apply_once(id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    first boolean;
begin
    if id is null or octet_length(id) not between 1 and 1024 then
        raise exception 'id: must have 1 to 1024 bytes' using errcode = '22023';
    end if;
    insert into ringmesh.inbox (slot, id) values (ringmesh.slot_of(id), id) on conflict do nothing;
    first := found;     -- the next statement sets it anew
    if not first then
        perform nextval('ringmesh.inbox_again');
    end if;
    return first;
end $$;

-- With the rights of their owner, these write what nobody else may: so nobody may call them whom the operator has not named.
revoke execute on function
    ringmesh.look(text, bigint, integer, bigint),
    ringmesh.register(text, bigint, integer, bigint, boolean, json, boolean),
    ringmesh.refuse(integer, bigint, bigint, integer, bigint),
    ringmesh.on_commit(),
    ringmesh.guard(text, bigint, integer, boolean, bigint),
    ringmesh.complete(text, bigint, integer, jsonb, boolean, bigint),
    ringmesh.apply_once(text)
from public;
