-- What a mesh was founded with, one thing more; and what SQL refuses, one thing more.
--
-- Older binaries: they name the columns that they read, and so do not see the new one. The function is the same for them.

alter table ringmesh.mesh add column cluster_check text;    -- a MAC of the cluster's id: tells a wrong one. Null: nobody said it yet

-- As before, and numbers are held to what handlers can read.
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
    insert into ringmesh.task (slot, key, kind, payload, priority, wait, run_at, max_attempts, timeout_ms)
    values (slot, key, kind, body::json, priority,
            case when run_at > clock_timestamp() then 'scheduled' end, run_at, max_attempts, timeout_ms)
    returning task.id into id;
    return slot || '-' || id;
end $$;
