"""What has to be remembered of a run that has not ended, so that its next event can be measured."""

from dataclasses import dataclass, field
from typing import Any

SCOPES_MAX = 64
"""Branches of a run whose times are kept; of a step in another one no duration is measured."""


@dataclass(slots=True)
class OpenAttempt:
    """An attempt without an outcome. `epoch` is that of the claim which intended it."""

    at_ms: int
    epoch: int
    in_doubt: bool = False


@dataclass(slots=True)
class OpenSlot:
    """A slot with unsettled attempts. `for_person`: by its policy, or because it was escalated.

    `repeats`: it changes nothing outside, so what its process left open has not started.
    """

    step: str
    for_person: bool
    attempts: dict[int, OpenAttempt]
    repeats: bool = False

    @property
    def doubt_ms(self) -> int | None:
        """Since when its earliest attempt in doubt acts, as the boundary says it; None without."""
        return min((a.at_ms for a in self.attempts.values() if a.in_doubt), default=None)


@dataclass(slots=True)
class OpenTimer:
    """An armed timer; `waits` unless it is one that nobody waits for (`proof`)."""

    generation: int
    slot: str
    waits: bool


@dataclass(slots=True)
class OpenRun:
    """One run. `offset` is that of the last record folded into it.

    `trace` is its trace id (32 hex digits), `life` counts how often it went on after it had
    failed. `scopes` holds when the last outcome of each branch was recorded: what ran next there
    began then. `parked` is kind, reason and since when.
    """

    offset: int
    run: str
    started_ms: int
    trace: str = ""
    life: int = 0
    ended: str = ""
    cancelling: bool = False
    parked: tuple[str, str, int] | None = None
    slots: dict[str, OpenSlot] = field(default_factory=dict)
    timers: dict[str, OpenTimer] = field(default_factory=dict)
    scopes: dict[str, int] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The status as the boundary has it (design, section 8)."""
        if self.ended:
            return self.ended
        if self.cancelling:
            return "cancelling"
        if self.parked is not None:
            return self.parked[0]
        under_way = False
        for slot in self.slots.values():
            for attempt in slot.attempts.values():
                if attempt.in_doubt:
                    return "in_doubt"
                under_way = True
        if under_way or not any(timer.waits for timer in self.timers.values()):
            return "running"
        return "waiting"

    def began_ms(self, slot: str) -> int:
        """When a step without an intent began: at the last outcome of its branch, or around it."""
        scope = slot
        while True:
            scope = scope_of(scope)
            at_ms = self.scopes.get(scope)
            if at_ms is not None:
                return at_ms
            if not scope:
                return self.started_ms

    def outcome_at(self, slot: str, at_ms: int) -> None:
        """An outcome of `slot` was recorded: what is below its branch is over."""
        scope, scopes = scope_of(slot), self.scopes
        if len(scopes) > 1 or (scopes and scope not in scopes):
            below = f"{scope}/" if scope else ""
            for name in [n for n in scopes if n != scope and n.startswith(below)]:
                del scopes[name]
        if scope in scopes or len(scopes) < SCOPES_MAX:
            scopes[scope] = at_ms

    def packed(self) -> list[Any]:
        """The same as JSON can hold it; `unpacked` is its inverse."""
        return [
            self.offset,
            self.run,
            self.started_ms,
            self.trace,
            self.life,
            self.ended,
            self.cancelling,
            self.parked,
            {
                name: [
                    slot.step,
                    slot.for_person,
                    {n: [a.at_ms, a.epoch, a.in_doubt] for n, a in slot.attempts.items()},
                    slot.repeats,
                ]
                for name, slot in self.slots.items()
            },
            {name: [t.generation, t.slot, t.waits] for name, t in self.timers.items()},
            self.scopes,
        ]

    @classmethod
    def unpacked(cls, data: list[Any]) -> "OpenRun":
        """The run of what `packed` gave."""
        offset, run, started_ms, trace, life, ended, *rest = data
        cancelling, parked, slots, timers, scopes = rest
        return cls(
            offset,
            run,
            started_ms,
            trace,
            life,
            ended,
            cancelling,
            None if parked is None else tuple(parked),
            {
                name: OpenSlot(
                    step, person, {int(n): OpenAttempt(*a) for n, a in attempts.items()}, *repeats
                )
                for name, (step, person, attempts, *repeats) in slots.items()
            },
            {name: OpenTimer(*timer) for name, timer in timers.items()},
            dict(scopes),
        )


def scope_of(slot: str) -> str:
    """The branch that a slot, or a branch, stands in.

    >>> scope_of("gather#2[fraud]/check#1"), scope_of("charge#1")
    ('gather#2[fraud]', '')
    """
    return slot.rpartition("/")[0]
