"""What to do next about a slot that has no outcome: a pure function of its record and the clock.

Source: design, section 6; explored by `tests/model`.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from refold_projections.fold import (
    ABSENT,
    FAILED,
    NEVER_STARTED,
    Attempt,
    RunState,
    Slot,
    is_under_way,
)
from refold_schemas.values import Policy


class Do(Enum):
    """The next move."""

    NOTHING = "nothing"
    """Something is under way or a timer is armed; it will come back."""
    SETTLE = "settle"
    """A late report settles `attempt` as `verdict`."""
    ATTEMPT = "attempt"
    """Intend the next attempt, under the next generation if `fresh`."""
    LOOK_UP = "look_up"
    """Ask the far system by key; "absent" may be believed if `believe`."""
    ESCALATE = "escalate"
    """Hand the slot to a person."""
    FAIL = "fail"
    """Every attempt is known not to have acted and no retry is left: the failure is final."""
    BLOCK = "block"
    """Tried too often without an effect: the run is parked for a person."""


class Move(NamedTuple):
    """A move with what it needs; `wait_ms`: before it is made (0: now)."""

    do: Do
    attempt: Attempt | None = None
    verdict: str = ""
    believe: bool = False
    fresh: bool = False
    wait_ms: int = 0
    reason: str = ""


class Facts(NamedTuple):
    """What the owner knows and the record does not. Milliseconds.

    `running`: attempt numbers whose call has not ended in this process. `believe_in_ms`: how long
    until "absent" may be believed. `wall_ms`: now. `since_end_ms`: since the last attempt ended
    here. `expired`: an acquisition whose handle ran out. `timeout_ms`: of an attempt made today.
    `log_ms`: what the log's clock shows at
    the latest, `skew_max_ms`: how far off it an event's time may be.
    """

    claim_id: bytes
    wall_ms: int
    believe_in_ms: int
    since_end_ms: int
    running: frozenset[int]
    timeout_ms: int
    has_lookup: bool
    retries_left: bool
    lookup_for_ms: int
    expired: bool
    repeats_max: int
    repeat_first_ms: int
    repeat_max_ms: int
    log_ms: int
    skew_max_ms: int


VERDICTS: Final = {"completed": "done", "failed": "failed", "never_started": "never_started"}


def next_move(state: RunState, slot: Slot, facts: Facts) -> Move:
    """The next move for `slot`.

    In a run that is being cancelled no attempt starts; a slot whose attempts are all settled needs
    nothing more there.
    """
    if slot.outcome is not None and not facts.expired:
        return Move(Do.NOTHING)
    unsettled = slot.unsettled
    if any(is_under_way(a, facts.claim_id) for a in unsettled):
        return Move(Do.NOTHING)
    for attempt in unsettled:
        verdict = _reported(attempt)
        if verdict:
            return Move(Do.SETTLE, attempt, verdict)
    if any(f"{kind}:{slot.name}" in state.timers for kind in ("backoff", "settle", "lookup")):
        return Move(Do.NOTHING)
    if not unsettled:
        if state.cancel is not None:
            return Move(Do.NOTHING)
        failed = [a for a in slot.attempts if a.status == FAILED]
        if failed and not facts.retries_left:
            return Move(Do.FAIL, failed[-1])
        fruitless = [a for a in slot.attempts if a.status in (ABSENT, NEVER_STARTED)]
        absent = sum(a.status == ABSENT for a in fruitless)
        if absent > facts.repeats_max:
            return Move(Do.BLOCK, reason=f"{absent} attempts of {slot.name} had no effect")
        fresh = slot.fresh_key or facts.expired
        return Move(Do.ATTEMPT, fresh=fresh, wait_ms=_repeat_wait(fruitless, facts))
    if slot.escalated:
        return Move(Do.NOTHING)
    if slot.policy == Policy.RE_EXECUTABLE.value:
        if state.cancel is not None:
            return Move(Do.SETTLE, unsettled[-1], "absent")
        return Move(Do.ATTEMPT)
    if slot.policy == Policy.KEYED.value and state.cancel is None:
        if len(slot.attempts) <= facts.repeats_max and key_lives(slot, unsettled, facts):
            return Move(Do.ATTEMPT, wait_ms=_repeat_wait(unsettled, facts))
        reason = "its key may have been forgotten by the far system"
        return _ask(unsettled, facts, reason)
    if slot.policy == Policy.ESCALATE.value:
        return Move(Do.ESCALATE, unsettled[-1], reason=_reason(unsettled[-1], ""))
    return _ask(unsettled, facts, "")


def key_lives(slot: Slot, unsettled: tuple[Attempt, ...], facts: Facts) -> bool:
    """Whether a repeat sent now surely ends while the far system still knows the key.

    The intent's time is that of another wall clock, off the log's by `skew_max_ms` at most; now
    is what the log's clock shows at the latest, so no jump of a clock makes a key live longer.
    Where the intent lies ahead of it a clock was set back, and nobody knows how old the key is.
    """
    if slot.key_ttl_ms is None:
        return True
    age_ms = facts.log_ms - (slot.key_since_ms - facts.skew_max_ms)
    acts_ms = max(facts.timeout_ms, unsettled[-1].timeout_ms)
    return age_ms >= 0 and age_ms + acts_ms < slot.key_ttl_ms


def _ask(unsettled: tuple[Attempt, ...], facts: Facts, reason: str) -> Move:
    last = unsettled[-1]
    if not facts.has_lookup:
        return Move(Do.ESCALATE, last, reason=_reason(last, reason))
    since_ms = max(a.at_ms + a.timeout_ms + a.settle_ms for a in unsettled)
    if facts.wall_ms - since_ms > facts.lookup_for_ms:
        told = "no lookup has answered for too long"
        return Move(Do.ESCALATE, last, reason=_reason(last, told))
    believe = facts.believe_in_ms <= 0 and not facts.running
    return Move(Do.LOOK_UP, last, believe=believe)


def _reported(attempt: Attempt) -> str:
    """What the reports settle the attempt as; nothing if they are none or contradict each other."""
    if "completed" in attempt.evidence:
        return "done"
    if len(attempt.evidence) == 1:
        return VERDICTS[next(iter(attempt.evidence))]
    return "failed" if "failed" in attempt.evidence else ""


def _repeat_wait(tried: Sequence[Attempt], facts: Facts) -> int:
    """No wait at a takeover, an exponential one where this owner tried in vain itself."""
    own = [a for a in tried if a.claim_id == facts.claim_id]
    if not own:
        return 0
    wait_ms = facts.repeat_first_ms << min(len(own) - 1, 16)
    return max(0, min(wait_ms, facts.repeat_max_ms) - facts.since_end_ms)


def _reason(attempt: Attempt, added: str) -> str:
    """Why a person is asked."""
    first = attempt.reason or "the process that ran it ended before its outcome was recorded"
    return f"{first}; {added}" if added else first


def believe_in_ms(
    slot: Slot,
    claim_id: bytes,
    *,
    boot_ms: int,
    claimed_boot_ms: int,
    ended_boot_ms: dict[int, int],
    running: frozenset[int],
) -> int:
    """Milliseconds until "absent" may be believed of the slot's key; 0 or less: so long ago.

    An attempt of the current claim counts `settle` from its own end (`ended_boot_ms` by number),
    never from the claim; one of an earlier claim counts `(timeout + settle) * 1.01` from the
    acknowledgement of *our* claim, on our boot clock, never from a wall time in the log. Over all
    unsettled attempts, with their recorded timeouts. While a call still runs: at least a second.
    """
    until = claimed_boot_ms
    for attempt in slot.unsettled:
        if attempt.claim_id == claim_id:
            ended = ended_boot_ms.get(attempt.number, boot_ms)  # not ended: not yet
            until = max(until, ended + attempt.settle_ms)
        else:
            wait = (attempt.timeout_ms + attempt.settle_ms) * 101 // 100 + 1
            until = max(until, claimed_boot_ms + wait)
    if running:
        until = max(until, boot_ms + 1000)
    return until - boot_ms
