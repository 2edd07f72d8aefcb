-- The tables of one set, and what they are found by.

create table @set@.positions partition of @schema@.refold_positions (
    of_set default '@name@',
    primary key (partition)
) for values in ('@name@');

create table @set@.runs partition of @schema@.refold_runs (
    of_set default '@name@',
    primary key (run_id)
) for values in ('@name@') with (fillfactor = 85);

create index runs_changed on @set@.runs (changed_at desc, run_id desc);
create index runs_status on @set@.runs (status, changed_at desc, run_id desc);
create index runs_needs on @set@.runs (needs, changed_at desc, run_id desc) where needs is not null;
create index runs_run on @set@.runs (run, changed_at desc, run_id desc);
create index runs_doubt on @set@.runs (in_doubt_since) where in_doubt_since is not null;
create index runs_open on @set@.runs (partition) where open_count > 0;

create table @set@.steps partition of @schema@.refold_steps (
    of_set default '@name@',
    primary key (run_id, slot)
) for values in ('@name@');

create index steps_doubt on @set@.steps (since) where status = 'in_doubt';

create table @set@.attempts partition of @schema@.refold_attempts (
    of_set default '@name@',
    primary key (run_id, slot, attempt)
) for values in ('@name@');

create table @set@.timers partition of @schema@.refold_timers (
    of_set default '@name@',
    primary key (run_id, timer_id)
) for values in ('@name@');

create index timers_due on @set@.timers (due_at);

create table @set@.effects partition of @schema@.refold_effects (
    of_set default '@name@',
    primary key (run_id, slot, generation)
) for values in ('@name@');

create index effects_key on @set@.effects (effect_key);
create index effects_last on @set@.effects (last_at);
-- Of what people look for there are few, among millions that are done.
create index effects_not_done on @set@.effects (outcome, last_at desc) where outcome <> 'done';
create index effects_unproven on @set@.effects (last_at desc) where absent_until_proven;

create table @set@.rejections partition of @schema@.refold_rejections (
    of_set default '@name@',
    primary key (partition, "offset")
) for values in ('@name@');

create index rejections_at on @set@.rejections (at desc);
create index rejections_run on @set@.rejections (run_id);

create table @set@.findings partition of @schema@.refold_findings (
    of_set default '@name@',
    primary key (run_id, finding_id)
) for values in ('@name@');

create index findings_at on @set@.findings (at desc);
create index findings_open on @set@.findings (at desc) where not settled;
