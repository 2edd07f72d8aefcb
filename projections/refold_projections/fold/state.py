"""The state of one run as its events make it: immutable, so an older state is free to keep.

Named tuples and not dataclasses: a step makes three of them, and they are four times as fast.
"""

from typing import Final, NamedTuple

import immutables

from refold_schemas.values import Argument, ErrorInfo, Unrecordable, Value

OPEN: Final = "open"
"""Under way while its claim is the latest, in doubt after a later one."""
IN_DOUBT: Final = "in_doubt"
DONE: Final = "done"
ABSENT: Final = "absent"
NEVER_STARTED: Final = "never_started"
FAILED: Final = "failed"
DENIED: Final = "denied"
"""A person said that it did not happen."""

UNSETTLED: Final = frozenset({OPEN, IN_DOUBT})
NEGATIVE: Final = frozenset({ABSENT, NEVER_STARTED, FAILED, DENIED})


class Stamp(NamedTuple):
    """What the record's header says of an event, plus the partition's count of unclean ends."""

    at_ms: int
    claim_id: bytes
    n: int
    size: int = 0
    unclean_total: int = 0


class Attempt(NamedTuple):
    """One execution of a slot, named by its intent's `(claim_id, n)`; `evidence`: reports."""

    number: int
    claim_id: bytes
    n: int
    at_ms: int
    status: str
    timeout_ms: int
    settle_ms: int
    generation: int = 0
    reason: str | None = None
    evidence: frozenset[str] = frozenset()
    reported_result: Value | None = None
    reported_error: ErrorInfo | None = None
    conflict_written: bool = False


class Outcome(NamedTuple):
    """What run code is told of a slot. `order` is its place among the run's outcomes.

    `kind`: ok (value), unrecordable, failed (error), absent (a slot that ended without its effect).
    """

    kind: str
    order: int
    at_ms: int
    value: Value | None = None
    error: ErrorInfo | None = None
    unrecordable: Unrecordable | None = None


class Slot(NamedTuple):
    """A step's place in its run. `born` is its place among the run's slots, timers and loops.

    `step` is the step's name, `sleep` for `ctx.sleep`. `policy` is empty without an intent.
    `key_since_ms` is when the current generation of the key was first intended.
    """

    name: str
    step: str
    born: int
    policy: str = ""
    fingerprint: bytes = b""
    arguments: tuple[Argument, ...] = ()
    effect_key: str = ""
    generation: int = 0
    key_ttl_ms: int | None = None
    key_since_ms: int = 0
    attempts: tuple[Attempt, ...] = ()
    failures: int = 0
    fresh_key: bool = False
    escalated: bool = False
    absent_until_proven: bool = False
    conflicted: bool = False
    outcome: Outcome | None = None

    @property
    def unsettled(self) -> tuple[Attempt, ...]:
        """Attempts whose outcome is not known: under way or in doubt."""
        return tuple(a for a in self.attempts if a.status in UNSETTLED)

    @property
    def tried(self) -> int:
        """How many attempts were observed, of those without an intent the failures."""
        return self.attempts[-1].number if self.attempts else self.failures


class Timer(NamedTuple):
    """An armed timer. One that fired or was cancelled is gone from the state."""

    timer_id: str
    generation: int
    kind: str
    slot: str
    deadline_ms: int


class Cursor(NamedTuple):
    """A `ctx.each` loop: items before `cursor` are done; `state` is what is carried."""

    slot: str
    born: int
    cursor: int
    total: int
    order: int
    at_ms: int
    state: Value


class Parked(NamedTuple):
    """Why no code runs: `kind` is diverged or blocked."""

    kind: str
    reason: str
    detail: str


class Ended(NamedTuple):
    """How a run ended: completed, failed or cancelled."""

    status: str
    at_ms: int
    result: Value | None = None
    error: ErrorInfo | None = None


class Cancel(NamedTuple):
    """Who asked for the run's end, and why."""

    by: str
    why: str


class FormerKey(NamedTuple):
    """An effect key of a slot that a later generation has replaced."""

    generation: int
    effect_key: str


class Finding(NamedTuple):
    """What a reconciliation found of one effect, as it stands since `at_ms` (FindingRecorded)."""

    finding_id: str
    kind: str
    slot: str
    step: str
    effect_key: str
    detail: str
    command: str
    status: str
    at_ms: int

    @property
    def is_open(self) -> bool:
        """Whether record and far system are still known to differ."""
        return self.status == "open"


class RunState(NamedTuple):
    """One run, folded. `order_next` counts outcomes, `born_next` slots and loops.

    `open_slots` holds the names of slots with an unsettled attempt, `red` the attempts whose
    evidence contradicts what was settled and has not been written down yet, `stray` completed or
    failed reports whose intent does not count (the log was cut), `early` the intents reported as
    never started that are not stored yet: all kept by the fold, so that nobody scans the slots.
    `findings` are those of reconciliations by id, `amounts` the names of arguments that are amounts
    by step, `keys_former` the effect keys of a slot that later generations replaced.
    The fields that every event changes come last.
    """

    run_id: str
    run: str
    version: str
    input: Value
    nonce: bytes
    started_ms: int
    era: int = 0
    plan: tuple[str, ...] | None = None
    cancel: Cancel | None = None
    parked: Parked | None = None
    ended: Ended | None = None
    timers: "immutables.Map[str, Timer]" = immutables.Map()
    cursors: "immutables.Map[str, Cursor]" = immutables.Map()
    commands: "immutables.Map[str, bool]" = immutables.Map()
    red: frozenset[tuple[str, int]] = frozenset()
    stray: frozenset[tuple[str, int, str]] = frozenset()
    early: frozenset[tuple[bytes, int]] = frozenset()
    findings: "immutables.Map[str, Finding]" = immutables.Map()
    amounts: "immutables.Map[str, tuple[str, ...]]" = immutables.Map()
    keys_former: "immutables.Map[str, tuple[FormerKey, ...]]" = immutables.Map()
    slots: "immutables.Map[str, Slot]" = immutables.Map()
    open_slots: frozenset[str] = frozenset()
    born_next: int = 0
    order_next: int = 0
    unclean_mark: int = 0
    event_count: int = 0
    byte_count: int = 0
    changed_ms: int = 0
