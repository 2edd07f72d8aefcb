-- The views: those of the live set, whichever it is in the snapshot of the statement that asks.

create view @schema@.v1_runs as
select
    r.run_id, r.run, r.version, r.status, r.reason, r.needs,
    @schema@.refold_sentence(
        r.said, (select @schema@.refold_zone(time_zone) from @schema@.refold_live), now()
    ) as sentence,
    r.partition, r.started_at, r.changed_at, r.ended_at, r.wakes_at, r.event_count, r.byte_count,
    r.input, r.result, r.error_type, r.error_message,
    r.done_count, r.in_doubt_count, r.in_doubt_since, r.conflict_count
from @schema@.refold_runs r
where of_set = (select live from @schema@.refold_live);

create view @schema@.v1_boundary as
select
    r.run_id, r.status, r.needs, said.sentence,
    jsonb_build_object(
        'run_id', r.run_id, 'run', r.run, 'version', r.version,
        'status', r.status, 'reason', r.reason, 'needs', r.needs,
        'position', jsonb_build_object('partition', r.partition, 'offset', p.offset_next),
        'done', coalesce(s.done, '[]'), 'under_way', coalesce(s.under_way, '[]'),
        'in_doubt', coalesce(s.in_doubt, '[]'), 'failed', coalesce(s.failed, '[]'),
        'remaining', r.remaining, 'sentence', said.sentence
    ) as boundary
from @schema@.refold_runs r
join @schema@.refold_positions p on p.partition = r.partition and p.of_set = (select live from @schema@.refold_live)
cross join lateral (
    select @schema@.refold_sentence(
        r.said, (select @schema@.refold_zone(time_zone) from @schema@.refold_live), now()
    ) as sentence
) said
cross join lateral (
    select
        jsonb_agg(jsonb_build_object(
            'slot', slot, 'step', step, 'attempt', attempt, 'at', @schema@.refold_iso(at)
        ) order by born) filter (where t.status = 'done') as done,
        jsonb_agg(jsonb_build_object(
            'slot', slot, 'step', step, 'attempt', attempt, 'since', @schema@.refold_iso(since),
            'policy', policy, 'effect_key', effect_key
        ) order by born) filter (where t.status = 'under_way') as under_way,
        jsonb_agg(jsonb_build_object(
            'slot', slot, 'step', step, 'attempt', attempt, 'since', @schema@.refold_iso(since),
            'policy', policy, 'effect_key', effect_key
        ) order by born) filter (where t.status = 'in_doubt') as in_doubt,
        jsonb_agg(jsonb_build_object(
            'slot', slot, 'step', step, 'attempt', attempt, 'at', @schema@.refold_iso(at),
            'error', t.said
        ) order by born) filter (where t.status = 'failed') as failed
    from @schema@.refold_steps t
    where t.of_set = (select live from @schema@.refold_live) and t.run_id = r.run_id
) s
where r.of_set = (select live from @schema@.refold_live);

create view @schema@.v1_steps as
select
    run_id, slot, step, born, policy, status, attempt, since, at, effect_key, arguments, result,
    error_type, error_message, escalated, absent_until_proven, conflicted
from @schema@.refold_steps
where of_set = (select live from @schema@.refold_live) and status is not null;

create view @schema@.v1_attempts as
select
    run_id, slot, attempt, status, began_at, timeout_ms, settle_ms, generation, reason,
    string_to_array(evidence, ',') as evidence, encode(claim_id, 'hex') as claim_id, n, conflict
from @schema@.refold_attempts
where of_set = (select live from @schema@.refold_live);

create view @schema@.v1_timers as
select run_id, timer_id, kind, slot, due_at from @schema@.refold_timers
where of_set = (select live from @schema@.refold_live);

create view @schema@.v1_effects as
select
    effect_key, run_id, slot, step, policy, generation, attempts, outcome, evidence, amounts,
    absent_until_proven, first_at, last_at
from @schema@.refold_effects
where of_set = (select live from @schema@.refold_live);

create view @schema@.v1_rejections as
select
    partition, "offset", at, run_id, command_id, command, command_offset, reason, detail, by, raw
from @schema@.refold_rejections
where of_set = (select live from @schema@.refold_live);

create view @schema@.v1_findings as
select finding_id, at, kind, run_id, effect_key, slot, step, detail, command, settled
from @schema@.refold_findings
where of_set = (select live from @schema@.refold_live);

create view @schema@.v1_partitions as
select
    partition, offset_next, command_next, log_end, greatest(log_end - offset_next, 0) as lag,
    nullif(owner, '') as owner, nullif(encode(claim_id, 'hex'), repeat('0', 32)) as claim_id,
    claim_epoch as epoch, claimed_at, released, read_at, applied_at
from @schema@.refold_positions
where of_set = (select live from @schema@.refold_live);

-- What each view and each column of it says.

comment on view @schema@.v1_runs is 'One row a run, with what it waits for. Times are of the owner''s clock.';
comment on column @schema@.v1_runs.run_id is 'The caller''s name of the run. U+0000 is shown as \u0000, beyond 1,000 bytes it is cut; then a digest stands at its end.';
comment on column @schema@.v1_runs.run is 'Name of the run function.';
comment on column @schema@.v1_runs.version is 'Version of the run function that it was started with.';
comment on column @schema@.v1_runs.status is 'running, waiting, in_doubt, diverged, blocked, cancelling, completed, failed or cancelled.';
comment on column @schema@.v1_runs.reason is 'Why, where the status has a reason.';
comment on column @schema@.v1_runs.needs is 'Who moves it on: null (a worker), time, person or code.';
comment on column @schema@.v1_runs.sentence is 'What an operator is told; times in the zone of refold.time_zone, else the projector''s; today''s without their date.';
comment on column @schema@.v1_runs.partition is 'Where it lives.';
comment on column @schema@.v1_runs.started_at is 'When it was started.';
comment on column @schema@.v1_runs.changed_at is 'Time of its last event, reports not counted.';
comment on column @schema@.v1_runs.ended_at is 'When it completed, failed or was cancelled; null before.';
comment on column @schema@.v1_runs.wakes_at is 'When its next timer is due.';
comment on column @schema@.v1_runs.event_count is 'Events of the run.';
comment on column @schema@.v1_runs.byte_count is 'Their bytes: keys, values and headers.';
comment on column @schema@.v1_runs.input is 'What it was started with, as plain JSON; {"$not_shown": why} where that cannot be.';
comment on column @schema@.v1_runs.result is 'What it returned; null where it has not, or where it returned nothing.';
comment on column @schema@.v1_runs.error_type is 'Class name of what it failed with.';
comment on column @schema@.v1_runs.error_message is 'What that said.';
comment on column @schema@.v1_runs.done_count is 'Steps done.';
comment on column @schema@.v1_runs.in_doubt_count is 'Steps of which nobody knows whether they happened.';
comment on column @schema@.v1_runs.in_doubt_since is 'Since when the first of them is.';
comment on column @schema@.v1_runs.conflict_count is 'Steps whose evidence contradicts the record.';

comment on view @schema@.v1_boundary is 'The boundary of each run: what `refold boundary --json` prints, times in UTC. Ask for one run.';
comment on column @schema@.v1_boundary.run_id is 'The run.';
comment on column @schema@.v1_boundary.status is 'As in v1_runs.';
comment on column @schema@.v1_boundary.needs is 'As in v1_runs.';
comment on column @schema@.v1_boundary.sentence is 'As in v1_runs.';
comment on column @schema@.v1_boundary.boundary is 'done, under_way, in_doubt, failed, remaining; position: the partition and the next offset to be read.';

comment on view @schema@.v1_steps is 'One row a slot that was born: a step of a run.';
comment on column @schema@.v1_steps.run_id is 'The run.';
comment on column @schema@.v1_steps.slot is 'The step''s place in its run: scope/name#occurrence.';
comment on column @schema@.v1_steps.step is 'The step''s name.';
comment on column @schema@.v1_steps.born is 'Order in which the slots of the run were born.';
comment on column @schema@.v1_steps.policy is 're_executable, keyed, resolvable or escalate; empty for a step without an intent.';
comment on column @schema@.v1_steps.status is 'done, under_way, in_doubt, failed or not_started.';
comment on column @schema@.v1_steps.attempt is 'The attempt that did it, is under way or in doubt; else the last one.';
comment on column @schema@.v1_steps.since is 'Since when it is under way or in doubt.';
comment on column @schema@.v1_steps.at is 'When it was done or had failed.';
comment on column @schema@.v1_steps.effect_key is 'The key under which the effect is known outside; empty for a step without an intent.';
comment on column @schema@.v1_steps.arguments is 'Its arguments by name, as plain JSON; null where only the snapshot of an archived run is left.';
comment on column @schema@.v1_steps.result is 'What it returned, as plain JSON.';
comment on column @schema@.v1_steps.error_type is 'Class name of what it failed with.';
comment on column @schema@.v1_steps.error_message is 'What that said.';
comment on column @schema@.v1_steps.escalated is 'It was handed to a person.';
comment on column @schema@.v1_steps.absent_until_proven is 'Said not to have happened, and looked up once more a day later.';
comment on column @schema@.v1_steps.conflicted is 'Evidence contradicts what was settled.';

comment on view @schema@.v1_attempts is 'One row an attempt with an intent.';
comment on column @schema@.v1_attempts.run_id is 'The run.';
comment on column @schema@.v1_attempts.slot is 'The slot.';
comment on column @schema@.v1_attempts.attempt is 'Its number, from 1.';
comment on column @schema@.v1_attempts.status is 'under_way, in_doubt, done, failed, absent, never_started or denied (by a person).';
comment on column @schema@.v1_attempts.began_at is 'When its intent was decided.';
comment on column @schema@.v1_attempts.timeout_ms is 'How long it may take.';
comment on column @schema@.v1_attempts.settle_ms is 'How long after that "absent" is not believed.';
comment on column @schema@.v1_attempts.generation is 'Of its effect key.';
comment on column @schema@.v1_attempts.reason is 'Why it is in doubt, where somebody has said so.';
comment on column @schema@.v1_attempts.evidence is 'Outcomes that were reported late: completed, failed, never_started.';
comment on column @schema@.v1_attempts.claim_id is 'The claim under which it was intended.';
comment on column @schema@.v1_attempts.n is 'The number of its intent within that claim.';
comment on column @schema@.v1_attempts.conflict is 'Its evidence contradicts the record, which was written down.';

comment on view @schema@.v1_timers is 'One row an armed timer.';
comment on column @schema@.v1_timers.run_id is 'The run.';
comment on column @schema@.v1_timers.timer_id is 'Its name within the run.';
comment on column @schema@.v1_timers.kind is 'sleep, backoff, settle, lookup or proof.';
comment on column @schema@.v1_timers.slot is 'The slot that it is of.';
comment on column @schema@.v1_timers.due_at is 'When it is due.';

comment on view @schema@.v1_effects is 'The ledger: one row an effect key that was intended.';
comment on column @schema@.v1_effects.effect_key is 'The key; the far system knows the effect by it.';
comment on column @schema@.v1_effects.run_id is 'The run.';
comment on column @schema@.v1_effects.slot is 'The slot.';
comment on column @schema@.v1_effects.step is 'The step''s name.';
comment on column @schema@.v1_effects.policy is 'keyed, resolvable or escalate.';
comment on column @schema@.v1_effects.generation is 'Rises when a slot gets another key.';
comment on column @schema@.v1_effects.attempts is 'Attempts under this key.';
comment on column @schema@.v1_effects.outcome is 'done, failed, absent, denied (a person says so), never_started, in_doubt or under_way.';
comment on column @schema@.v1_effects.evidence is 'How that is known: answer (the call''s own), lookup, person, late_report or owner; null while it is not.';
comment on column @schema@.v1_effects.amounts is 'The arguments that the step declares as amounts, by name: exact numbers, null for what is none.';
comment on column @schema@.v1_effects.absent_until_proven is 'Said not to have happened, and looked up once more a day later.';
comment on column @schema@.v1_effects.first_at is 'When the first attempt under this key was intended.';
comment on column @schema@.v1_effects.last_at is 'When the latest one was, or its outcome.';

comment on view @schema@.v1_rejections is 'Commands that were rejected.';
comment on column @schema@.v1_rejections.partition is 'The partition of both the event and the command.';
comment on column @schema@.v1_rejections."offset" is 'Of the rejection in ns.events.';
comment on column @schema@.v1_rejections.at is 'When it was decided.';
comment on column @schema@.v1_rejections.run_id is 'The run, if it names one.';
comment on column @schema@.v1_rejections.command_id is 'The sender''s id of the command; empty where it could not be read.';
comment on column @schema@.v1_rejections.command is 'Its type.';
comment on column @schema@.v1_rejections.command_offset is 'Of the command in ns.commands.';
comment on column @schema@.v1_rejections.reason is 'duplicate and run_exists lose nothing: what was asked for is done, or being done.';
comment on column @schema@.v1_rejections.detail is 'In words.';
comment on column @schema@.v1_rejections.by is 'Who sent it; null: the event does not say.';
comment on column @schema@.v1_rejections.raw is 'The first 1,024 bytes of one that could not be decoded.';

comment on view @schema@.v1_findings is 'What reconciliations found, one row a finding, as it stands.';
comment on column @schema@.v1_findings.finding_id is 'Its name.';
comment on column @schema@.v1_findings.at is 'When that was recorded.';
comment on column @schema@.v1_findings.kind is 'missing, unexpected, different, conflict or settleable.';
comment on column @schema@.v1_findings.run_id is 'The run.';
comment on column @schema@.v1_findings.effect_key is 'The key that was looked up.';
comment on column @schema@.v1_findings.slot is 'The slot.';
comment on column @schema@.v1_findings.step is 'The step''s name.';
comment on column @schema@.v1_findings.detail is 'In words.';
comment on column @schema@.v1_findings.command is 'The command that would settle it.';
comment on column @schema@.v1_findings.settled is 'A later look found agreement, or a person has dealt with it.';

comment on view @schema@.v1_partitions is 'How far the tables are, a row a partition; these three belong together: rows, position, claim.';
comment on column @schema@.v1_partitions.partition is 'The partition of ns.events.';
comment on column @schema@.v1_partitions.offset_next is 'The next event to be read: everything before it is in the tables.';
comment on column @schema@.v1_partitions.command_next is 'The next command to be decided, as of there.';
comment on column @schema@.v1_partitions.log_end is 'Where the log ended when it was looked at.';
comment on column @schema@.v1_partitions.lag is 'Records that were not applied then.';
comment on column @schema@.v1_partitions.owner is 'Whose the latest claim that counts is.';
comment on column @schema@.v1_partitions.claim_id is 'That claim.';
comment on column @schema@.v1_partitions.epoch is 'Its epoch.';
comment on column @schema@.v1_partitions.claimed_at is 'When it was written.';
comment on column @schema@.v1_partitions.released is 'Its owner has handed over since: nobody owns the partition.';
comment on column @schema@.v1_partitions.read_at is 'When the projector looked at the log last, on its own clock.';
comment on column @schema@.v1_partitions.applied_at is 'When it applied something last.';
