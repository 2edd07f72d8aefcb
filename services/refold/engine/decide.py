"""Decide: what events follow from a command, an outcome or a time. Pure; refusing is done here.

Source: design, sections 3.1 (commands), 5 and 6.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from refold_projections.fold import Ended, ParkedCommand, RunState, Slot
from refold_schemas.commands import (
    TEXT_CHARS_MAX,
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
    StartRun,
)
from refold_schemas.events import (
    AmountsDeclared,
    CommandEmitted,
    CommandParked,
    CommandRejected,
    EvidenceConflict,
    FindingRecorded,
    PlanDeclared,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerCancelled,
    TimerScheduled,
)
from refold_schemas.values import (
    DIGEST_OVER_BYTES,
    Argument,
    ErrorInfo,
    ModelUse,
    Unrecordable,
    Value,
    canon_of,
    digest_value,
)

Events = tuple[RunEvent, ...]


class Offer(NamedTuple):
    """What this worker's code says of a run function and an input for it.

    `problem`: why the input is refused. `same_input`: whether it is, in today's type, that of the
    run which has this run_id already.
    """

    version: str
    plan: tuple[str, ...] | None
    problem: str | None
    same_input: bool


class StepTerms(NamedTuple):
    """What the code declares of a step, as far as events record it. Milliseconds."""

    step: str
    policy: str
    timeout_ms: int
    settle_ms: int
    key_ttl_ms: int | None


DETAIL_MAX: Final = 2_000
RAW_MAX: Final = 1_024
"""Bytes of a command that cannot be decoded that its rejection repeats."""


# ---- commands


def rejected(command: Command, offset: int, reason: str, detail: str) -> Events:
    """The one decision of a command that has nothing to say. It always fits: texts are cut."""
    name = type(command).__name__
    told = detail[:DETAIL_MAX]
    return (CommandRejected(command.command_id[:TEXT_CHARS_MAX], name, offset, reason, told, None),)


def undecodable(offset: int, detail: str, data: bytes) -> CommandRejected:
    """The decision of a command that cannot be read, with the beginning of its bytes."""
    return CommandRejected("", "", offset, "undecodable", detail[:DETAIL_MAX], data[:RAW_MAX])


def parked(offset: int, key: bytes | None, schema_id: int, state: str, why: str) -> CommandParked:
    """A command waits; `state` as the event lists them."""
    return CommandParked(offset, key, schema_id, state, why[:DETAIL_MAX])


def unparked(command: ParkedCommand) -> CommandParked:
    """It is decided: this stands in the same batch as the decision."""
    why = "it was parked, and is decided now"
    return CommandParked(command.offset, command.key, command.schema_id, "decided", why)


def emitted(command: Command, offset: int, partition: int, data: bytes) -> CommandEmitted:
    """A command that is to be sent to the partition of its run."""
    command_id, kind = command.command_id[:TEXT_CHARS_MAX], type(command).__name__
    return CommandEmitted(command_id, kind, command.run_id, offset, partition, data)


def start_run(
    state: RunState | None, command: StartRun, offer: Offer | None, nonce: bytes, offset: int
) -> Events:
    """RunStarted and the plan, or why not."""
    if state is not None:
        if command.command_id in state.commands:
            return rejected(command, offset, "duplicate", "this command was decided before")
        same = state.run == command.run and (
            offer.same_input if offer else canon_of(state.input) == canon_of(command.input)
        )
        if same:
            return rejected(
                command, offset, "run_exists", f"run {command.run_id} exists with the same input"
            )
        detail = f"run {command.run_id} exists as {state.run} with other input"
        return rejected(command, offset, "run_exists_other_input", detail)
    if offer is None:
        return rejected(
            command, offset, "unknown_function", f"no run function {command.run!r} is registered"
        )
    if command.version is not None and command.version != offer.version:
        detail = f"{command.run} is offered in version {offer.version}, not {command.version}"
        return rejected(command, offset, "unknown_function", detail)
    if offer.problem is not None:
        return rejected(command, offset, "input_invalid", offer.problem)
    started = RunStarted(
        command.run, offer.version, command.input, nonce, command.command_id, command.by
    )
    return (started,) if offer.plan is None else (started, PlanDeclared(offer.plan))


def cancel_run(state: RunState | None, command: CancelRun, offset: int) -> Events:
    """RunCancelRequested, or why not. What is open is settled before RunCancelled follows."""
    if state is None:
        return rejected(command, offset, "unknown_run", f"there is no run {command.run_id}")
    if command.command_id in state.commands:
        return rejected(command, offset, "duplicate", "this command was decided before")
    if state.ended is not None:
        return rejected(
            command, offset, "run_ended", f"run {command.run_id} {_ended_words(state.ended)}"
        )
    if state.cancel is not None:
        return rejected(command, offset, "duplicate", f"{state.cancel.by} has asked for it before")
    return (RunCancelRequested(command.by, command.why, command.command_id),)


def resolve_step(
    state: RunState | None,
    command: ResolveStep,
    offset: int,
    *,
    under_way: bool,
    believe_in_ms: int,
) -> Events:
    """A person's word on a slot in doubt.

    `under_way`: an attempt of it may still be running in this owner. `believe_in_ms`: how long
    "it did not happen" cannot be believed yet, because a call could still reach the far system
    when the word was given.
    """
    if state is None:
        return rejected(command, offset, "unknown_run", f"there is no run {command.run_id}")
    if command.command_id in state.commands:
        return rejected(command, offset, "duplicate", "this command was decided before")
    slot = state.slots.get(command.slot)
    unsettled = slot.unsettled if slot is not None and slot.outcome is None else ()
    if slot is None or not unsettled or under_way:
        known = "no such slot" if slot is None else _slot_words(slot, under_way)
        return rejected(command, offset, "not_in_doubt", f"{command.slot} is not in doubt: {known}")
    if command.attempt is not None and command.attempt != slot.attempts[-1].number:
        detail = (
            f"{command.slot} has had attempt {slot.attempts[-1].number} since attempt "
            f"{command.attempt}, which this word is about: look again"
        )
        return rejected(command, offset, "other_attempt", detail)
    if command.happened:
        return (
            StepResolved(
                command.slot,
                unsettled[-1].number,
                "done",
                "person",
                command.result,
                None,
                True,
                command.by,
                command.why,
                command.command_id,
            ),
        )
    if believe_in_ms > 0:
        detail = (
            f"an attempt of {command.slot} may still reach the far system for "
            f"{believe_in_ms / 1000:.1f} s: say it again after that"
        )
        return rejected(command, offset, "too_early", detail)
    return (
        StepResolved(
            command.slot,
            unsettled[-1].number,
            "absent",
            "person",
            None,
            None,
            state.cancel is not None,
            command.by,
            command.why,
            command.command_id,
        ),
    )


def retry_run(state: RunState | None, command: RetryRun, offset: int) -> Events:
    """Let a parked run go on, or re-open a failed one at the failure that ended it."""
    if state is None:
        return rejected(command, offset, "unknown_run", f"there is no run {command.run_id}")
    if command.command_id in state.commands:
        return rejected(command, offset, "duplicate", "this command was decided before")
    failed = state.ended is not None and state.ended.status == "failed"
    if state.ended is not None and not failed:
        words = _ended_words(state.ended)
        detail = f"run {command.run_id} {words}: only a failed one can be retried"
        return rejected(command, offset, "run_ended", detail)
    if state.parked is None and not failed:
        detail = f"run {command.run_id} is neither parked nor failed: it goes on by itself"
        return rejected(command, offset, "nothing_to_retry", detail)
    slot = _failed_last(state) if failed else None
    if command.slot is not None and (slot is None or slot.name != command.slot):
        detail = (
            f"{command.slot} is not the failure that ended the run; what came after a failure was "
            "decided on it"
        )
        return rejected(command, offset, "nothing_to_retry", detail)
    return (
        RunResumed(
            command.by,
            command.why,
            None if slot is None else slot.name,
            command.fresh_key,
            command.command_id,
        ),
    )


FINDING_STATUSES: Final = ("open", "agreed", "accepted")
FINDINGS_MAX: Final = 1_000
"""So many findings a run keeps; a further one is refused, none is forgotten."""


def record_finding(state: RunState | None, command: RecordFinding, offset: int) -> Events:
    """FindingRecorded, or why not: what stands on record already is not written again.

    It is refused in no run that there is, ended ones included: it changes nothing but what people
    are told.
    """
    if state is None:
        return rejected(command, offset, "unknown_run", f"there is no run {command.run_id}")
    if command.command_id in state.commands:
        return rejected(command, offset, "duplicate", "this command was decided before")
    if command.slot not in state.slots:
        detail = f"run {command.run_id} has no slot {command.slot}"
        return rejected(command, offset, "unknown_slot", detail)
    if command.status not in FINDING_STATUSES:
        detail = f"status {command.status[:50]!r} is none of {', '.join(FINDING_STATUSES)}"
        return rejected(command, offset, "input_invalid", detail)
    known = state.findings.get(command.finding_id)
    if command.status != "open" and (known is None or not known.is_open):
        what = "is not on record" if known is None else f"was settled before ({known.status})"
        detail = f"finding {command.finding_id} {what}"
        return rejected(command, offset, "nothing_to_settle", detail)
    if command.status == "open" and known is not None:
        # One that a person has dealt with is found again at each look, as nothing is repaired.
        same = known.detail == command.detail and known.status != "agreed"
        if same:
            detail = f"finding {command.finding_id} stands on record ({known.status})"
            return rejected(command, offset, "duplicate", detail)
    if known is None and len(state.findings) >= FINDINGS_MAX:
        detail = f"run {command.run_id} has {FINDINGS_MAX:,} findings, more are not kept"
        return rejected(command, offset, "too_large", detail)
    return (
        FindingRecorded(
            command.finding_id,
            command.kind,
            command.slot,
            command.step,
            command.effect_key,
            command.detail,
            command.command,
            command.status,
            command.by,
            command.why,
            command.command_id,
        ),
    )


def _ended_words(ended: Ended) -> str:
    """`has completed`, `has failed`, `was cancelled`."""
    return "was cancelled" if ended.status == "cancelled" else f"has {ended.status}"


def _failed_last(state: RunState) -> Slot | None:
    """The failed slot whose failure is the run's last outcome."""
    for slot in state.slots.values():
        outcome = slot.outcome
        if outcome is not None and outcome.order == state.order_next - 1:
            return slot if outcome.kind == "failed" else None
    return None


def _slot_words(slot: Slot, under_way: bool) -> str:
    if slot.outcome is not None:
        return f"its outcome is recorded ({slot.outcome.kind})"
    if under_way:
        return "an attempt of it is under way"
    return "no attempt of it is open"


# ---- steps


def intend(
    slot: str,
    attempt: int,
    generation: int,
    terms: StepTerms,
    fingerprint: bytes,
    effect_key: str,
    arguments: tuple[Argument, ...] | None,
) -> StepIntended:
    """The intent of an attempt. `arguments` is None for a repeat."""
    return StepIntended(
        slot,
        terms.step,
        attempt,
        generation,
        arguments,
        fingerprint,
        effect_key,
        terms.policy,
        terms.timeout_ms,
        terms.settle_ms,
        terms.key_ttl_ms,
    )


def amounts(step: str, arguments: tuple[str, ...]) -> AmountsDeclared:
    """Which arguments of the step the code declares as amounts now."""
    return AmountsDeclared(step, arguments)


def kept_arguments(arguments: Sequence[Argument]) -> tuple[Argument, ...]:
    """Arguments as a step without an intent records them: each over 16 KiB as a digest."""
    for argument in arguments:
        body = argument.value.body
        if body is not None and len(body) > DIGEST_OVER_BYTES:
            break
    else:
        return tuple(arguments)
    return tuple(
        Argument(a.name, digest_value(a.value))
        if a.value.body is not None and len(a.value.body) > DIGEST_OVER_BYTES
        else a
        for a in arguments
    )


class NoIntent(NamedTuple):
    """What a step without an intent records with its outcome."""

    step: str
    fingerprint: bytes
    arguments: tuple[Argument, ...]


def completed(
    slot: str,
    attempt: int,
    result: Value | None,
    unrecordable: Unrecordable | None,
    model: ModelUse | None,
    bare: NoIntent | None,
) -> StepCompleted:
    """A step returned."""
    if bare is None:
        return StepCompleted(slot, attempt, result, unrecordable, model, None, None, None)
    return StepCompleted(
        slot, attempt, result, unrecordable, model, bare.step, bare.fingerprint, bare.arguments
    )


def failed(
    slot: str,
    attempt: int,
    error: ErrorInfo,
    bare: NoIntent | None,
    *,
    wait_ms: int | None,
    fresh_key: bool,
    at_ms: int,
    generation: int,
) -> Events:
    """An observed failure, and the back-off before the next attempt (`wait_ms` None: final)."""
    step, fingerprint, arguments = (None, None, None) if bare is None else bare
    event = StepFailed(
        slot, attempt, error, wait_ms is None, fresh_key, step, fingerprint, arguments
    )
    if wait_ms is None:
        return (event,)
    return (event, timer("backoff", slot, at_ms + wait_ms, generation))


def rejected_by_lookup(
    slot: Slot,
    error: ErrorInfo,
    *,
    wait_ms: int | None,
    fresh_key: bool,
    at_ms: int,
    generation: int,
) -> Events:
    """The far system refused it for good: a lookup speaks for the key, hence for all attempts."""
    *earlier, last = slot.unsettled
    return (
        *(
            StepResolved(
                slot.name, a.number, "failed", "lookup", None, error, False, None, None, None
            )
            for a in earlier
        ),
        *failed(
            slot.name,
            last.number,
            error,
            None,
            wait_ms=wait_ms,
            fresh_key=fresh_key,
            at_ms=at_ms,
            generation=generation,
        ),
    )


def in_doubt(slot: str, attempt: int, reason: str, *, escalated: bool) -> StepInDoubt:
    """Nobody knows whether the attempt acted."""
    return StepInDoubt(slot, attempt, reason, escalated)


def resolved(
    slot: str,
    attempt: int,
    verdict: str,
    evidence: str,
    *,
    result: Value | None = None,
    error: ErrorInfo | None = None,
    final: bool = False,
) -> StepResolved:
    """An attempt in doubt was settled by evidence."""
    return StepResolved(slot, attempt, verdict, evidence, result, error, final, None, None, None)


def conflicts_found(state: RunState) -> Events:
    """EvidenceConflict for each contradiction that the fold knows and nobody has written."""
    events: list[RunEvent] = []
    for name, number in sorted(state.red):
        attempt = next(a for a in state.slots[name].attempts if a.number == number)
        told = ", ".join(sorted(attempt.evidence))
        events.append(EvidenceConflict(name, number, attempt.status, told))
    for name, number, outcome in sorted(state.stray):
        settled = "its intent does not count: the log was cut"
        events.append(EvidenceConflict(name, number, settled, outcome))
    return tuple(events)


# ---- time


def timer(kind: str, slot: str, deadline_ms: int, generation: int) -> TimerScheduled:
    """A timer of `slot`. `generation` is larger than any that this timer had before."""
    return TimerScheduled(f"{kind}:{slot}", generation, kind, slot, deadline_ms)


# ---- ends


def run_ended(
    state: RunState, end: RunCompleted | RunFailed | RunCancelled, proof_ms: int, lookups: set[str]
) -> Events:
    """The end of a run: no timer of it is needed any more, except for proofs of absence.

    Each "absent" that was a slot's last word is looked up once more. Where a later attempt did it
    there is nothing to ask: the same key finds that one. `lookups`: the steps that can be looked
    up. Source: design, section 6, `absent_until_proven`.
    """
    needless = [
        TimerCancelled(t.timer_id, t.generation)
        for t in sorted(state.timers.values())
        if t.kind != "proof"
    ]
    proofs = [
        timer("proof", s.name, proof_ms, state.event_count + 1)
        for s in sorted(state.slots.values(), key=lambda s: s.born)
        if s.step in lookups and owes_proof(s)
    ]
    return (*needless, end, *proofs)


def owes_proof(slot: Slot) -> bool:
    """Whether its last word is an absence that nobody has contradicted yet."""
    conflicted = any(last.conflict_written for last in slot.attempts[-1:])
    return slot.absent_until_proven and not conflicted and not _is_ok(slot)


def _is_ok(slot: Slot) -> bool:
    return slot.outcome is not None and slot.outcome.kind in ("ok", "unrecordable")
