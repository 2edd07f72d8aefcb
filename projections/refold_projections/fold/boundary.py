"""The boundary of a run at one log position: done, under way, in doubt, failed, not started."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from refold_projections.fold.state import DONE, OPEN, Attempt, RunState, Slot
from refold_schemas.errors.base import told
from refold_schemas.values import ErrorInfo, Policy

FOR_A_PERSON: Final = frozenset({"crashes_worker", "limit", "undecodable_event", "engine_error"})
"""Reasons to be blocked that other code does not mend: `refold retry` lets the run go on."""
EFFECTLESS: Final = frozenset({"sleep"})
"""Slots that are no steps: they are left out of what people read."""


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step whose outcome is recorded, at `at_ms`; `attempt` is the one that did it."""

    slot: str
    step: str
    attempt: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step under way or in doubt since `since_ms`; `reason` says what is known."""

    slot: str
    step: str
    attempt: int
    since_ms: int
    policy: str
    effect_key: str
    reason: str | None
    escalated: bool


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step whose last observed attempt certainly did not act."""

    slot: str
    step: str
    attempt: int
    at_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """What is known of a run's steps, and what the run waits for.

    `status`: running, waiting, in_doubt, diverged, blocked, cancelling, completed, failed or
    cancelled. `needs`: None, time, person or code. `remaining`: plan names without a done slot,
    None without a plan. `wakes_ms`: when the next timer of a waiting run is due.
    """

    run_id: str
    run: str
    version: str
    status: str
    reason: str | None
    needs: str | None
    done: tuple[DoneStep, ...]
    under_way: tuple[OpenStep, ...]
    in_doubt: tuple[OpenStep, ...]
    failed: tuple[FailedStep, ...]
    remaining: tuple[str, ...] | None
    wakes_ms: int | None
    conflicts: tuple[str, ...]


def boundary(state: RunState, claim_id: bytes) -> Boundary:
    """The boundary of `state` while `claim_id` is the partition's latest claim that counts.

    An attempt is under way while its claim is the latest, in doubt after a later one or after
    `StepInDoubt`. In a run that has ended nothing is under way.
    """
    done: list[DoneStep] = []
    under_way: list[OpenStep] = []
    in_doubt: list[OpenStep] = []
    failed: list[FailedStep] = []
    red: list[str] = []
    for slot in sorted(state.slots.values(), key=lambda s: s.born):
        if slot.conflicted:
            red.append(slot.name)
        match place_of(slot, claim_id):
            case (_, DoneStep() as entry):
                done.append(entry)
            case ("under_way", OpenStep() as entry):
                under_way.append(entry)
            case ("in_doubt", OpenStep() as entry):
                in_doubt.append(entry)
            case (_, FailedStep() as entry):
                failed.append(entry)
    status, reason, needs, wakes = status_of(state, under_way, in_doubt)
    finished = {entry.step for entry in done}
    remaining = None
    if state.plan is not None:
        remaining = tuple(name for name in state.plan if name not in finished)
    return Boundary(
        state.run_id,
        state.run,
        state.version,
        status,
        reason,
        needs,
        tuple(done),
        tuple(under_way),
        tuple(in_doubt),
        tuple(failed),
        remaining,
        wakes,
        tuple(red),
    )


def place_of(slot: Slot, claim_id: bytes) -> tuple[str, DoneStep | OpenStep | FailedStep | None]:
    """Where one slot stands in the boundary (done, under_way, in_doubt, failed), and its entry.

    not_started where it has none; the empty text for what is no step.
    """
    if slot.step in EFFECTLESS and not slot.attempts:
        return "", None
    outcome = slot.outcome
    if outcome is not None and outcome.kind in ("ok", "unrecordable"):
        return "done", DoneStep(slot.name, slot.step, _done_by(slot), outcome.at_ms)
    if slot.unsettled:
        worst = _most_doubtful(slot, claim_id)
        if is_under_way(worst, claim_id):
            return "under_way", _open(slot, worst)
        if slot.policy != Policy.RE_EXECUTABLE.value:
            return "in_doubt", _open(slot, worst)
        # A re-executable one that its process left open is not started: it changes nothing.
        return "not_started", None
    if outcome is None and not slot.failures:
        return "not_started", None
    at_ms = outcome.at_ms if outcome else slot.attempts[-1].at_ms if slot.attempts else 0
    last = slot.attempts[-1] if slot.attempts else None
    error = outcome.error if outcome else last.reported_error if last else None
    words = _error_words(error, ended=outcome is not None)
    return "failed", FailedStep(slot.name, slot.step, slot.tried, at_ms, words)


def is_under_way(attempt: Attempt, claim_id: bytes) -> bool:
    """Whether the attempt is one of the latest claim and nobody doubts it yet."""
    return attempt.status == OPEN and attempt.claim_id == claim_id


def _error_words(error: ErrorInfo | None, *, ended: bool) -> str:
    """The failure in one line."""
    if error is not None:
        return f"{error.type}: {told(error.message).brief}"
    return "it did not happen" if ended else "will be tried again"


def _done_by(slot: Slot) -> int:
    for attempt in slot.attempts:
        if attempt.status == DONE:
            return attempt.number
    return slot.failures + 1 if not slot.attempts else slot.attempts[-1].number


def _most_doubtful(slot: Slot, claim_id: bytes) -> Attempt:
    """The earliest attempt in doubt, else the one that is under way."""
    unsettled = slot.unsettled
    for attempt in unsettled:
        if not is_under_way(attempt, claim_id):
            return attempt
    return unsettled[-1]


def _open(slot: Slot, attempt: Attempt) -> OpenStep:
    return OpenStep(
        slot.name,
        slot.step,
        attempt.number,
        attempt.at_ms,
        slot.policy,
        slot.effect_key,
        # What a person is asked is written with the latest attempt.
        slot.unsettled[-1].reason if slot.escalated else attempt.reason,
        slot.escalated,
    )


def status_of(
    state: RunState, under_way: Sequence[OpenStep], in_doubt: Sequence[OpenStep]
) -> tuple[str, str | None, str | None, int | None]:
    """Status, reason, who is needed, and when the next timer is due.

    What is under way and in doubt is given in the order of birth.
    """
    if state.ended is not None:
        error = state.ended.error
        why = _error_words(error, ended=True) if error else None
        return state.ended.status, why, None, None
    # By its policy nobody but a person settles it, whether or not a worker has said so yet.
    escalated = [e for e in in_doubt if e.escalated or e.policy == Policy.ESCALATE.value]
    timers = [t for t in state.timers.values() if t.kind != "proof"]
    wakes = min((t.deadline_ms for t in timers), default=None)
    if state.cancel is not None:
        why = f"cancel requested by {state.cancel.by}: {state.cancel.why}"
        needs = "person" if escalated and len(escalated) == len(in_doubt) else None
        return "cancelling", why, needs, wakes
    if state.parked is not None:
        kind, reason, detail = state.parked
        needs = "person" if reason in FOR_A_PERSON else "code"
        return kind, detail if kind == "diverged" else f"{reason}: {detail}", needs, wakes
    if in_doubt:
        first = escalated[0] if escalated else in_doubt[0]
        why = (
            first.reason
            or f"{first.slot}: the process that ran it ended before its outcome was recorded"
        )
        busy = under_way or len(escalated) < len(in_doubt)
        return "in_doubt", why, "person" if escalated and not busy else None, wakes
    if under_way or not timers:
        return "running", None, None, wakes
    return "waiting", None, "time", wakes
