"""The fold rule once more, apart from `refold_projections.fold`, so that one checks the other.

It keeps plain mutable records and only what a checker needs; it follows the design's text
(sections 3.1 and 6), not the other implementation.
"""

from dataclasses import dataclass, field
from typing import Any

from refold.log.port import Record
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.errors import HeaderUnreadable

OPEN, DOUBT, DONE = "open", "in_doubt", "done"


@dataclass
class ShadowAttempt:
    """One attempt of a slot, with the true offset of its intent."""

    number: int
    claim: bytes
    n: int
    offset: int
    timeout_ms: int
    settle_ms: int
    status: str = OPEN
    settled_offset: int = -1
    reports: set[str] = field(default_factory=set)


@dataclass
class ShadowSlot:
    """A slot: what was asked of the far system, and what came of it."""

    name: str
    step: str
    policy: str = ""
    attempts: list[ShadowAttempt] = field(default_factory=list)
    keys: dict[int, str] = field(default_factory=dict)
    arguments: Any = None
    escalated: bool = False
    outcome: str | None = None
    order: int | None = None
    conflicts: int = 0

    @property
    def has_effect(self) -> bool:
        """Whether it acts on the far system (a reading step may have an intent too)."""
        return self.policy not in ("", "re_executable")

    def attempt(self, number: int) -> ShadowAttempt | None:
        """The attempt of that number."""
        return next((a for a in self.attempts if a.number == number), None)

    def undecided(self) -> list[ShadowAttempt]:
        """Attempts of which nobody knows the end."""
        return [a for a in self.attempts if a.status in (OPEN, DOUBT)]


@dataclass
class ShadowRun:
    """A run as the log tells it."""

    run_id: str
    run: str
    input: Any
    slots: dict[str, ShadowSlot] = field(default_factory=dict)
    timers: dict[str, tuple[int, str, str, int]] = field(default_factory=dict)
    fired: set[tuple[str, int]] = field(default_factory=set)
    cursors: dict[str, int] = field(default_factory=dict)
    ended: str | None = None
    result: Any = None
    cancelling: bool = False
    parked: str | None = None
    early: set[tuple[bytes, int]] = field(default_factory=set)
    outcomes: int = 0
    events: int = 0
    negative: bool = False
    """Something was declared absent or failed for good: the result may differ from a calm run's."""


@dataclass(frozen=True)
class Fact:
    """One record that counts."""

    offset: int
    kind: str
    run_id: str | None
    event: Any
    claim: bytes
    n: int
    at_ms: int
    command_next: int


_HEADER_KINDS = ("event", "claim", "report")


class Shadow:
    """The fold of one partition."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.claim, self.epoch, self.n_next, self.gap = bytes(16), 0, 0, False
        self.command_next = 0
        self.claim_offset = -1
        self.claims: list[tuple[bytes, int]] = []
        self.runs: dict[str, ShadowRun] = {}
        self.gaps = 0

    def feed(self, record: Record) -> Fact | None:
        """One record; the fact that it is, None if it does not count."""
        if record.header is None:
            return None
        try:
            kind, claim, epoch, n, at_ms, command_next = RecordHeader.unpack(record.header)
        except HeaderUnreadable:
            return None
        name = _HEADER_KINDS[kind]
        if name == "claim":
            if epoch <= self.epoch:
                return None
            self.claim, self.epoch, self.n_next, self.gap = claim, epoch, 0, False
            self.claim_offset = record.offset
            self.claims.append((claim, record.offset))
        elif name == "event":
            if claim != self.claim or self.gap or n < self.n_next:
                return None
            if n > self.n_next:
                self.gap = True
                self.gaps += 1
                return None
            self.n_next = n + 1
            self.command_next = command_next
        event = self.codec.decode(record.value or b"")
        run_id = None if record.key is None else record.key.decode()
        fact = Fact(record.offset, name, run_id, event, claim, n, at_ms, command_next)
        if run_id is not None:
            self._run(run_id, fact)
        return fact

    def _run(self, run_id: str, fact: Fact) -> None:
        event = fact.event
        run = self.runs.get(run_id)
        if run is None:
            if type(event).__name__ == "RunStarted":
                run = self.runs[run_id] = ShadowRun(run_id, event.run, event.input)
                run.events = 1
            return
        run.events += 1
        getattr(self, f"_on_{type(event).__name__}", _ignore)(run, event, fact)

    @staticmethod
    def _tell(run: ShadowRun, slot: ShadowSlot, outcome: str) -> None:
        slot.outcome, slot.escalated = outcome, False
        if slot.order is None or outcome != "ok":
            slot.order = run.outcomes
            run.outcomes += 1

    def _on_StepIntended(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        slot = run.slots.setdefault(event.slot, ShadowSlot(event.slot, event.step))
        slot.policy, slot.escalated = event.policy, False
        slot.keys[event.generation] = event.effect_key
        if slot.arguments is None:
            slot.arguments = event.arguments
        attempt = ShadowAttempt(
            event.attempt, fact.claim, fact.n, fact.offset, event.timeout_ms, event.settle_ms
        )
        if (fact.claim, fact.n) in run.early:  # its report was stored first
            attempt.reports.add("never_started")
        slot.attempts.append(attempt)

    def _on_StepCompleted(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        slot = run.slots.get(event.slot)
        if slot is None and event.step is None:
            return
        if slot is None:
            slot = run.slots[event.slot] = ShadowSlot(event.slot, event.step)
        attempt = slot.attempt(event.attempt)
        if attempt is not None:
            attempt.status = DONE
        self._tell(run, slot, "ok" if event.unrecordable is None else "unrecordable")

    def _on_StepFailed(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        slot = run.slots.get(event.slot)
        if slot is None and event.step is None:
            return
        if slot is None:
            slot = run.slots[event.slot] = ShadowSlot(event.slot, event.step)
        attempt = slot.attempt(event.attempt)
        if attempt is not None:
            attempt.status = "failed"
        if event.final and not slot.undecided():
            run.negative = True
            self._tell(run, slot, "failed")

    def _on_StepInDoubt(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        slot = run.slots.get(event.slot)
        if slot is None:
            return
        attempt = slot.attempt(event.attempt)
        if attempt is not None and attempt.status == OPEN:
            attempt.status = DOUBT
        slot.escalated = slot.escalated or event.escalated

    def _on_StepResolved(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        slot = run.slots.get(event.slot)
        if slot is None:
            return
        said = slot.attempt(event.attempt)
        if event.verdict == "done":
            if said is not None:
                said.status = DONE
            self._tell(run, slot, "ok")
            return
        slot.escalated = False
        if event.verdict == "absent":
            for attempt in slot.undecided():
                attempt.status = "denied" if event.evidence == "person" else "absent"
                attempt.settled_offset = fact.offset
        elif said is not None:
            said.status, said.settled_offset = event.verdict, fact.offset
        if event.final and not slot.undecided() and slot.outcome is None:
            run.negative = True
            self._tell(run, slot, "failed" if event.verdict == "failed" else "absent")

    def _on_AttemptReported(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        slot = run.slots.get(event.slot)
        named = [a for a in slot.attempts if (a.claim, a.n) == (fact.claim, fact.n)] if slot else []
        for attempt in named:
            attempt.reports.add(event.outcome)
        if not named and event.outcome == "never_started":
            run.early.add((fact.claim, fact.n))

    def _on_EvidenceConflict(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        if event.slot in run.slots:
            run.slots[event.slot].conflicts += 1

    def _on_CursorAdvanced(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.cursors[event.slot] = event.cursor
        run.outcomes += 1

    def _on_TimerScheduled(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.timers[event.timer_id] = (event.generation, event.kind, event.slot, event.deadline_ms)
        if event.kind == "sleep":
            run.slots.setdefault(event.slot, ShadowSlot(event.slot, "sleep"))

    def _on_TimerFired(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        armed = run.timers.get(event.timer_id)
        if armed is None or armed[0] != event.generation:
            return
        del run.timers[event.timer_id]
        if armed[1] == "sleep":
            self._tell(run, run.slots[armed[2]], "ok")

    def _on_TimerCancelled(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        armed = run.timers.get(event.timer_id)
        if armed is not None and armed[0] == event.generation:
            del run.timers[event.timer_id]

    def _on_RunDiverged(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.parked = "diverged"

    def _on_RunBlocked(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.parked = "blocked"

    def _on_RunResumed(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.parked = None
        if run.ended == "failed":
            run.ended = None
        slot = run.slots.get(event.slot) if event.slot else None
        if slot is not None and slot.outcome == "failed":
            slot.outcome = slot.order = None

    def _on_RunCancelRequested(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.cancelling = True

    def _on_RunCompleted(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.ended, run.result, run.parked = "completed", event.result, None

    def _on_RunFailed(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.ended, run.parked = "failed", None

    def _on_RunCancelled(self, run: ShadowRun, event: Any, fact: Fact) -> None:
        run.ended, run.parked = "cancelled", None


def _ignore(run: ShadowRun, event: Any, fact: Fact) -> None:
    """An event that a checker does not need."""


def differences(shadow: ShadowRun, state: Any) -> str | None:
    """The first difference between the shadow's run and a RunState, None if they agree."""
    ended = None if state.ended is None else state.ended.status
    parked = None if state.parked is None else state.parked.kind
    pairs: list[tuple[str, Any, Any]] = [
        ("ended", shadow.ended, ended),
        ("parked", shadow.parked, parked),
        ("cancel", shadow.cancelling, state.cancel is not None),
        ("events", shadow.events, state.event_count),
        ("outcomes", shadow.outcomes, state.order_next),
        ("slots", sorted(shadow.slots), sorted(state.slots)),
        ("timers", shadow.timers, {k: tuple(t[1:]) for k, t in state.timers.items()}),
        ("cursors", shadow.cursors, {k: c.cursor for k, c in state.cursors.items()}),
    ]
    for what, mine, theirs in pairs:
        if mine != theirs:
            return f"{what}: {mine!r} against {theirs!r}"
    for name, slot in shadow.slots.items():
        other = state.slots[name]
        told = other.outcome
        own = (
            slot.step,
            [(a.number, a.status, a.claim, a.n, frozenset(a.reports)) for a in slot.attempts],
            slot.outcome,
            None if slot.outcome is None else slot.order,
            slot.escalated,
        )
        others = (
            other.step,
            [(a.number, a.status, a.claim_id, a.n, a.evidence) for a in other.attempts],
            None if told is None else told.kind,
            None if told is None else told.order,
            other.escalated,
        )
        if own != others:
            return f"slot {name}: {own!r} against {others!r}"
    return None
