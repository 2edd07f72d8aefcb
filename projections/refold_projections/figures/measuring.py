"""From an event, and what is remembered of its run, to what is counted: one small rule an event.

It follows `refold_projections.fold.evolve`: what settles an attempt there settles it here.
"""

from collections.abc import Callable
from typing import Any

from refold_projections.figures.cells import observe
from refold_projections.figures.memory import OpenAttempt, OpenRun, OpenSlot, OpenTimer
from refold_projections.figures.spans import (
    Span,
    attempt_span,
    run_span,
    settled_span,
    trace_of,
)
from refold_schemas.events import (
    AttemptReported,
    CommandRejected,
    CursorAdvanced,
    Event,
    EvidenceConflict,
    RunBlocked,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunDiverged,
    RunFailed,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerCancelled,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import Policy

Counts = dict[tuple[str, str], dict[str, int]]
"""Of one record: what to add for each run function and step."""


class Moment:
    """One record being measured: its time and claim, and what it says of anything.

    `claimed_ms` is the time of the claim in force: nothing that runs now began before it.
    """

    __slots__ = ("at_ms", "claimed_ms", "counts", "epoch", "offset", "run_id", "spans")

    def __init__(
        self, offset: int, at_ms: int, epoch: int, claimed_ms: int, *, traces: bool
    ) -> None:
        self.offset, self.at_ms, self.epoch, self.claimed_ms = offset, at_ms, epoch, claimed_ms
        self.run_id = ""
        self.counts: Counts = {}
        self.spans: list[Span] | None = [] if traces else None

    def of(self, run: str, step: str = "") -> dict[str, int]:
        """The counts of a run function, or of a step in it."""
        counts = self.counts.get((run, step))
        if counts is None:
            counts = self.counts[run, step] = {}
        return counts

    def add(self, run: str, step: str, counter: str, amount: int = 1) -> None:
        """Count something."""
        counts = self.of(run, step)
        counts[counter] = counts.get(counter, 0) + amount


def measure(known: OpenRun | None, run_id: str, event: Event, moment: Moment) -> OpenRun | None:
    """Measure an event of a run; returns what is known of it from now on."""
    moment.run_id = run_id
    if known is None and type(event) is RunStarted:
        return _started(run_id, event, moment)
    # Without it: its start was archived, or it ended long ago. Counted, but under no name.
    found = OpenRun(-1, "", moment.at_ms) if known is None else known
    rule = _RULES.get(type(event))
    if rule is not None:
        rule(found, event, moment)
    found.offset = moment.offset
    return known


def claimed(known: OpenRun, run_id: str, moment: Moment, *, released: bool = False) -> bool:
    """Another claim stands, or this one was handed over (`released`): whoever acted acts no more.

    What was open is in doubt. Whether there was anything.
    """
    moment.run_id = run_id
    found = False
    for name, slot in known.slots.items():
        for number, attempt in list(slot.attempts.items()):
            is_over = attempt.epoch < moment.epoch or released
            if not attempt.in_doubt and is_over:
                found = True
                _doubt(known, name, slot, number, attempt, moment, "its claim ended")
    return found


def undecodable(known: OpenRun | None, moment: Moment) -> OpenRun:
    """A body that nobody can read parks its run, as in the fold."""
    if known is None:
        known = OpenRun(moment.offset, "", moment.at_ms)
    moment.add(known.run, "", "records_undecodable")
    known.parked = ("blocked", "undecodable_event", moment.at_ms)
    known.offset = moment.offset
    return known


def _started(run_id: str, event: RunStarted, moment: Moment) -> OpenRun:
    moment.add(event.run, "", "runs_started")
    trace = trace_of(run_id, event.nonce)
    return OpenRun(moment.offset, event.run, moment.at_ms, trace)


def _intended(known: OpenRun, event: StepIntended, moment: Moment) -> None:
    moment.add(known.run, event.step, "attempts_started")
    slot = known.slots.get(event.slot)
    if slot is None:
        slot = known.slots[event.slot] = OpenSlot(event.step, False, {})
    slot.for_person = event.policy == Policy.ESCALATE.value
    slot.repeats = event.policy == Policy.RE_EXECUTABLE.value
    slot.attempts[event.attempt] = OpenAttempt(moment.at_ms, moment.epoch)


def _completed(known: OpenRun, event: StepCompleted, moment: Moment) -> None:
    slot = known.slots.pop(event.slot, None)
    step = event.step or ("" if slot is None else slot.step)
    counts = moment.of(known.run, step)
    counts["steps_done"] = counts.get("steps_done", 0) + 1
    if event.unrecordable is not None:
        counts["steps_unrecordable"] = 1
    if event.model is not None:
        counts["model_calls"] = 1
        for name in ("input_tokens", "output_tokens", "price_usd_micros"):
            amount = getattr(event.model, name)
            if amount:
                counts[name] = amount
    attempt = None if slot is None else slot.attempts.get(event.attempt)
    _ended_attempt(known, event.slot, step, event.attempt, attempt, moment, counts, "ok")
    for number, other in ({} if slot is None else slot.attempts).items():
        if number != event.attempt and other.in_doubt:  # a slot is done if one attempt is
            _settled(known, event.slot, step, number, other, moment, "done")
    known.outcome_at(event.slot, moment.at_ms)


def _failed(known: OpenRun, event: StepFailed, moment: Moment) -> None:
    slot = known.slots.get(event.slot)
    step = event.step or ("" if slot is None else slot.step)
    counts = moment.of(known.run, step)
    attempt = None if slot is None else slot.attempts.pop(event.attempt, None)
    if slot is not None and not slot.attempts:
        del known.slots[event.slot]
    counter = "steps_failed" if event.final else "steps_retried"
    counts[counter] = counts.get(counter, 0) + 1
    _ended_attempt(
        known, event.slot, step, event.attempt, attempt, moment, counts, event.error.type
    )
    known.outcome_at(event.slot, moment.at_ms)


def _ended_attempt(
    known: OpenRun,
    name: str,
    step: str,
    number: int,
    attempt: OpenAttempt | None,
    moment: Moment,
    counts: dict[str, int],
    outcome: str,
) -> None:
    """Duration and span of an attempt with an outcome of its own."""
    # What ran without an intent began behind an outcome, but never under an earlier claim.
    began_ms = max(known.began_ms(name), moment.claimed_ms) if attempt is None else attempt.at_ms
    if attempt is not None and attempt.in_doubt:
        _settled(known, name, step, number, attempt, moment, outcome)
        return
    if not known.run:
        return
    observe(counts, "step_ms", moment.at_ms - began_ms)
    _span_of_attempt(known, name, step, number, began_ms, moment, outcome)


def _in_doubt(known: OpenRun, event: StepInDoubt, moment: Moment) -> None:
    slot = known.slots.get(event.slot)
    attempt = None if slot is None else slot.attempts.get(event.attempt)
    if slot is None or attempt is None:
        return
    slot.for_person = slot.for_person or event.escalated
    if not attempt.in_doubt:
        _doubt(known, event.slot, slot, event.attempt, attempt, moment, event.reason)


def _doubt(
    known: OpenRun,
    name: str,
    slot: OpenSlot,
    number: int,
    attempt: OpenAttempt,
    moment: Moment,
    reason: str,
) -> None:
    if slot.repeats:
        del slot.attempts[number]
        return
    attempt.in_doubt = True
    moment.add(known.run, slot.step, "steps_in_doubt")
    _span_of_attempt(known, name, slot.step, number, attempt.at_ms, moment, "in_doubt", reason)


def _resolved(known: OpenRun, event: StepResolved, moment: Moment) -> None:
    slot = known.slots.get(event.slot)
    if slot is None:
        return
    whole_key = event.verdict in ("done", "absent")
    numbers = list(slot.attempts) if whole_key else [event.attempt]
    for number in numbers:
        attempt = slot.attempts.pop(number, None)
        if attempt is not None:
            _settled(known, event.slot, slot.step, number, attempt, moment, event.verdict)
    if not slot.attempts:
        del known.slots[event.slot]
    if event.verdict == "done":
        moment.add(known.run, slot.step, "steps_done")
    elif event.final:
        moment.add(known.run, slot.step, "steps_failed")
    known.outcome_at(event.slot, moment.at_ms)


def _settled(
    known: OpenRun,
    name: str,
    step: str,
    number: int,
    attempt: OpenAttempt,
    moment: Moment,
    verdict: str,
) -> None:
    moment.add(known.run, step, "steps_settled")
    observe(moment.of(known.run, step), "settle_ms", moment.at_ms - attempt.at_ms)
    if moment.spans is not None and known.trace:
        outcome = "ok" if verdict in ("ok", "done") else "unset"
        moment.spans.append(
            Span(
                settled_span(known.trace, name, number),
                run_span(known.trace, known.life).span,
                f"settle {step}",
                attempt.at_ms,
                max(moment.at_ms, attempt.at_ms),
                outcome,
                {**_said(known, moment, name, step, number), "refold.verdict": verdict},
                (attempt_span(known.trace, name, number),),
            )
        )


def _reported(known: OpenRun, event: AttemptReported, moment: Moment) -> None:
    slot = known.slots.get(event.slot)
    moment.add(known.run, "" if slot is None else slot.step, "attempts_reported")


def _conflict(known: OpenRun, event: EvidenceConflict, moment: Moment) -> None:
    slot = known.slots.get(event.slot)
    step = _step_of(event.slot) if slot is None else slot.step
    moment.add(known.run, step, "evidence_conflicts")


def _step_of(slot: str) -> str:
    """The step's name in a slot: `scope/name#occurrence`."""
    return slot.rpartition("/")[2].rpartition("#")[0]


def _cursor(known: OpenRun, event: CursorAdvanced, moment: Moment) -> None:
    known.outcome_at(event.slot, moment.at_ms)


def _scheduled(known: OpenRun, event: TimerScheduled, moment: Moment) -> None:
    timer = OpenTimer(event.generation, event.slot, event.kind != "proof")
    known.timers[event.timer_id] = timer


def _fired(known: OpenRun, event: TimerFired, moment: Moment) -> None:
    timer = known.timers.get(event.timer_id)
    if timer is None or timer.generation != event.generation:
        return
    del known.timers[event.timer_id]
    if timer.waits:
        known.outcome_at(timer.slot, moment.at_ms)


def _timer_cancelled(known: OpenRun, event: TimerCancelled, moment: Moment) -> None:
    timer = known.timers.get(event.timer_id)
    if timer is not None and timer.generation == event.generation:
        del known.timers[event.timer_id]


def _diverged(known: OpenRun, event: RunDiverged, moment: Moment) -> None:
    moment.add(known.run, "", "runs_diverged")
    known.parked = ("diverged", "diverged", moment.at_ms)


def _blocked(known: OpenRun, event: RunBlocked, moment: Moment) -> None:
    moment.add(known.run, "", "runs_blocked")
    known.parked = ("blocked", event.reason, moment.at_ms)


def _resumed(known: OpenRun, event: RunResumed, moment: Moment) -> None:
    moment.add(known.run, "", "runs_resumed")
    known.parked = None
    if known.ended == "failed":
        known.ended = ""
        known.life += 1
        known.started_ms = moment.at_ms
    known.scopes.clear()
    known.scopes[""] = moment.at_ms


def _cancel_requested(known: OpenRun, event: RunCancelRequested, moment: Moment) -> None:
    moment.add(known.run, "", "cancels_requested")
    known.cancelling = True


def _run_completed(known: OpenRun, event: RunCompleted, moment: Moment) -> None:
    _run_ended(known, "completed", moment, {})


def _run_failed(known: OpenRun, event: RunFailed, moment: Moment) -> None:
    _run_ended(known, "failed", moment, {"error.type": event.error.type})


def _run_cancelled(known: OpenRun, event: RunCancelled, moment: Moment) -> None:
    _run_ended(known, "cancelled", moment, {})


def _run_ended(known: OpenRun, how: str, moment: Moment, said: dict[str, Any]) -> None:
    if known.ended:
        return  # decide never writes two; a reader that meets them keeps the first
    counts = moment.of(known.run)
    counts[f"runs_{how}"] = counts.get(f"runs_{how}", 0) + 1
    known.ended, known.parked = how, None
    if not known.run:
        return
    observe(counts, "run_ms", moment.at_ms - known.started_ms)
    if moment.spans is not None and known.trace:
        earlier = () if known.life == 0 else (run_span(known.trace, known.life - 1),)
        parent = None if known.life == 0 else run_span(known.trace, 0).span
        moment.spans.append(
            Span(
                run_span(known.trace, known.life),
                parent,
                f"run {known.run}",
                known.started_ms,
                max(moment.at_ms, known.started_ms),
                {"completed": "ok", "failed": "error"}.get(how, "unset"),
                {
                    "refold.run_id": moment.run_id,
                    "refold.run": known.run,
                    "refold.status": how,
                    **said,
                },
                earlier,
            )
        )


def _rejected(known: OpenRun, event: CommandRejected, moment: Moment) -> None:
    moment.add(known.run, "", "commands_rejected")


def _said(known: OpenRun, moment: Moment, slot: str, step: str, number: int) -> dict[str, Any]:
    return {
        "refold.run_id": moment.run_id,
        "refold.run": known.run,
        "refold.slot": slot,
        "refold.step": step,
        "refold.attempt": number,
    }


def _span_of_attempt(
    known: OpenRun,
    slot: str,
    step: str,
    number: int,
    began_ms: int,
    moment: Moment,
    outcome: str,
    reason: str = "",
) -> None:
    """`outcome`: ok, in_doubt, or the type of the error that says it did not act."""
    if moment.spans is None or not known.trace:
        return
    said = _said(known, moment, slot, step, number)
    said["refold.outcome"] = outcome if outcome in ("ok", "in_doubt") else "failed"
    if outcome == "in_doubt":
        said["refold.reason"] = reason
    elif outcome != "ok":
        said["error.type"] = outcome
    moment.spans.append(
        Span(
            attempt_span(known.trace, slot, number),
            run_span(known.trace, known.life).span,
            step,
            began_ms,
            max(moment.at_ms, began_ms),
            {"ok": "ok", "in_doubt": "unset"}.get(outcome, "error"),
            said,
            # The attempt before it: failed, or cut by a crash.
            (attempt_span(known.trace, slot, number - 1),) if number > 1 else (),
        )
    )


_RULES: dict[type, Callable[[OpenRun, Any, Moment], None]] = {
    StepIntended: _intended,
    StepCompleted: _completed,
    StepFailed: _failed,
    StepInDoubt: _in_doubt,
    StepResolved: _resolved,
    AttemptReported: _reported,
    EvidenceConflict: _conflict,
    CursorAdvanced: _cursor,
    TimerScheduled: _scheduled,
    TimerFired: _fired,
    TimerCancelled: _timer_cancelled,
    RunDiverged: _diverged,
    RunBlocked: _blocked,
    RunResumed: _resumed,
    RunCancelRequested: _cancel_requested,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
    RunCancelled: _run_cancelled,
    CommandRejected: _rejected,
}
