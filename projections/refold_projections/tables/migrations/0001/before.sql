-- What both sets rest on: which of them is live, and how times are written in sentences.

create table @schema@.refold_live (
    one boolean primary key default true check (one),
    live text collate "C" not null check (live in ('a', 'b')),
    generation bigint not null,
    namespace text not null,
    topic_ids text[] not null,
    time_zone text not null,
    swapped_at timestamptz not null
);

create table @schema@.refold_sets (
    name text primary key check (name in ('a', 'b')),
    state text not null check (state in ('empty', 'filled', 'building', 'verified')),
    since timestamptz not null
);

insert into @schema@.refold_live values (true, 'a', 1, '', '{}', 'UTC', now());
insert into @schema@.refold_sets values ('a', 'filled', now()), ('b', 'empty', now());

-- The zone of the reader: `set refold.time_zone = 'Europe/Berlin'`, else the one given, that of the projector.
-- It reads no table: a function reads with the rights of who asks, and those may be `select` on one view.
create function @schema@.refold_zone(of_projector text)
returns text language sql stable parallel safe as $$
    select coalesce(nullif(current_setting('refold.time_zone', true), ''), of_projector)
$$;

-- A time of day today, else with its date: as refold_projections.fold.sentence.moment.
create function @schema@.refold_moment(at timestamptz, zone text, today timestamptz)
returns text language sql stable parallel safe as $$
    select case when (at at time zone zone)::date = (today at time zone zone)::date
        then to_char(at at time zone zone, 'HH24:MI')
        else to_char(at at time zone zone, 'YYYY-MM-DD HH24:MI')
    end
$$;

-- `said` is an array of texts and of moments (numbers: milliseconds since 1970 UTC).
create function @schema@.refold_sentence(said jsonb, zone text, today timestamptz)
returns text language sql stable parallel safe as $$
    select case when jsonb_array_length(said) = 1 and jsonb_typeof(said -> 0) = 'string' then said ->> 0 else (
        select string_agg(
            case when jsonb_typeof(part) = 'number'
                then @schema@.refold_moment(
                    timestamptz 'epoch' + part::bigint * interval '1 millisecond', zone, today
                )
                else part #>> '{}'
            end, '' order by place)
        from jsonb_array_elements(said) with ordinality as parts(part, place)
    ) end
$$;

create function @schema@.refold_iso(at timestamptz) returns text
language sql stable parallel safe as $$
    select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS') || '+00:00'
$$;

-- The shapes. Each table has two partitions, one a set: a query for the live one is sent to one of them.
-- Texts are compared byte by byte, as Python does. `kept` is what the fold needs to go on: the run's snapshot
-- without slots, and each slot in a snapshot of its own.

create table @schema@.refold_positions (
    of_set text collate "C" not null,
    partition int not null,
    offset_next bigint not null,
    claim_epoch bigint not null,
    claim_id bytea not null,
    n_next bigint not null,
    claim_broken boolean not null,
    command_next bigint not null,
    time_last_ms bigint not null,
    last_offset bigint not null,
    last_claim_id bytea not null,
    last_n bigint not null,
    process text collate "C" not null,
    owner text collate "C" not null,
    app text collate "C" not null,
    partition_count bigint not null,
    topic_ids text[] not null,
    format_level bigint not null,
    released boolean not null,
    unclean_total bigint not null,
    unclean_row bigint not null,
    claimed_at timestamptz,
    writer bytea not null,
    batch bigint not null,
    log_end bigint not null,
    read_at timestamptz not null,
    applied_at timestamptz not null
) partition by list (of_set);

create table @schema@.refold_runs (
    of_set text collate "C" not null,
    run_id text collate "C" not null,
    partition int not null,
    run text collate "C" not null,
    version text collate "C" not null,
    status text collate "C" not null,
    reason text collate "C",
    needs text collate "C",
    said jsonb not null,
    started_at timestamptz not null,
    changed_at timestamptz not null,
    ended_at timestamptz,
    wakes_at timestamptz,
    event_count bigint not null,
    byte_count bigint not null,
    input jsonb,
    result jsonb,
    error_type text collate "C",
    error_message text collate "C",
    done_count int not null,
    in_doubt_count int not null,
    in_doubt_since timestamptz,
    conflict_count int not null,
    remaining jsonb,
    open_count int not null,
    kept bytea not null
) partition by list (of_set);

create table @schema@.refold_steps (
    of_set text collate "C" not null,
    run_id text collate "C" not null,
    slot text collate "C" not null,
    partition int not null,
    step text collate "C" not null,
    born bigint not null,
    policy text collate "C" not null,
    status text collate "C",
    attempt bigint not null,
    since timestamptz,
    at timestamptz,
    effect_key text collate "C" not null,
    arguments jsonb,
    result jsonb,
    error_type text collate "C",
    error_message text collate "C",
    said text collate "C",
    escalated boolean not null,
    absent_until_proven boolean not null,
    conflicted boolean not null,
    kept bytea not null
) partition by list (of_set);

create table @schema@.refold_attempts (
    of_set text collate "C" not null,
    run_id text collate "C" not null,
    slot text collate "C" not null,
    attempt bigint not null,
    partition int not null,
    status text collate "C" not null,
    began_at timestamptz not null,
    timeout_ms bigint not null,
    settle_ms bigint not null,
    generation bigint not null,
    reason text collate "C",
    evidence text collate "C" not null,
    claim_id bytea not null,
    n bigint not null,
    conflict boolean not null
) partition by list (of_set);

create table @schema@.refold_timers (
    of_set text collate "C" not null,
    run_id text collate "C" not null,
    timer_id text collate "C" not null,
    partition int not null,
    kind text collate "C" not null,
    slot text collate "C" not null,
    due_at timestamptz not null
) partition by list (of_set);

create table @schema@.refold_effects (
    of_set text collate "C" not null,
    run_id text collate "C" not null,
    slot text collate "C" not null,
    generation bigint not null,
    partition int not null,
    effect_key text collate "C" not null,
    step text collate "C" not null,
    policy text collate "C" not null,
    attempts bigint not null,
    outcome text collate "C" not null,
    evidence text collate "C",
    amounts jsonb,
    absent_until_proven boolean not null,
    superseded boolean not null,
    first_at timestamptz not null,
    last_at timestamptz not null
) partition by list (of_set);

create table @schema@.refold_rejections (
    of_set text collate "C" not null,
    partition int not null,
    "offset" bigint not null,
    at timestamptz not null,
    run_id text collate "C",
    command_id text collate "C" not null,
    command text collate "C" not null,
    command_offset bigint not null,
    reason text collate "C" not null,
    detail text collate "C" not null,
    by text collate "C",
    raw bytea
) partition by list (of_set);

create table @schema@.refold_findings (
    of_set text collate "C" not null,
    run_id text collate "C" not null,
    finding_id text collate "C" not null,
    partition int not null,
    at timestamptz not null,
    kind text collate "C" not null,
    effect_key text collate "C" not null,
    slot text collate "C" not null,
    step text collate "C" not null,
    detail text collate "C" not null,
    command text collate "C" not null,
    settled boolean not null
) partition by list (of_set);
