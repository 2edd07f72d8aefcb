"""Random histories of a partition, whether they make sense or not: a reader takes all of it."""

from typing import NamedTuple

from hypothesis import strategies as st

from refold_projections.fold import (
    Facts,
    PartitionFold,
    RunState,
    Stamp,
    evolve,
)
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, KIND_REPORT, Codec, RecordHeader
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    CursorAdvanced,
    EvidenceConflict,
    FindingRecorded,
    PartitionClaimed,
    PartitionReleased,
    PlanDeclared,
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
from refold_schemas.events.types import RunEvent
from refold_schemas.registry import FileRegistry
from refold_schemas.values import Argument, ErrorInfo, encode_value

CODEC = Codec(FileRegistry())
RUNS = ("run-a", "run-b")
SLOTS = ("charge#1", "mail#1", "gather#1[0]/book#1")
ERROR = ErrorInfo("CardDeclined", "app:CardDeclined", "no", None)
VALUE = encode_value({"ok": True})


class Stored(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    header: bytes | None
    append_ms: int


class Partition:
    """A log and a writer that folds what it writes, as an owner does; `live` is its belief."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self.claim_id = b""
        self.epoch = 0
        self.n = 0
        self.intents: list[tuple[str, str, int, bytes, int]] = []
        self.live: dict[str, RunState] = {}
        self.facts = Facts()

    def store(self, key: bytes | None, value: bytes, header: bytes | None) -> None:
        self.log.append(Stored(len(self.log), key, value, header, len(self.log)))

    def fold(self) -> PartitionFold:
        fold = PartitionFold(CODEC)
        fold.apply_all(self.log)
        return fold

    def claim(self, process: str) -> None:
        """A claim is the barrier: its owner folds what stands before it."""
        self.epoch += 1
        self.claim_id = self.epoch.to_bytes(16, "big")
        event = PartitionClaimed("w", process, "app", "0.1.0", ("r@1",), ("t",), 1, 1)
        header = RecordHeader(KIND_CLAIM, self.claim_id, self.epoch, 0, len(self.log), 0)
        self.store(None, CODEC.encode(event), header.pack())
        fold = self.fold()
        self.n, self.live, self.facts = 0, dict(fold.runs), fold.facts

    def write(self, run_id: str, event: RunEvent) -> None:
        value = CODEC.encode(event)
        at_ms = 1_000 + len(self.log)
        header = RecordHeader(KIND_EVENT, self.claim_id, self.epoch, self.n, at_ms, 0).pack()
        size = len(value) + len(header) + len(run_id)
        stamp = Stamp(at_ms, self.claim_id, self.n, size, self.facts.unclean_total)
        after = evolve(self.live.get(run_id), run_id, event, stamp)
        if after is not None:
            self.live[run_id] = after
        if isinstance(event, StepIntended):
            self.intents.append((run_id, event.slot, event.attempt, self.claim_id, self.n))
        self.store(run_id.encode(), value, header)
        self.n += 1

    def report(self, which: int, outcome: str) -> None:
        if not self.intents:
            return
        run_id, slot, attempt, claim_id, n = self.intents[which % len(self.intents)]
        result = VALUE if outcome == "completed" else None
        event = AttemptReported(slot, attempt, "key", outcome, result, None, "w")
        header = RecordHeader(KIND_REPORT, claim_id, 0, n, 1_000 + len(self.log), 0)
        record = Stored(0, run_id.encode(), CODEC.encode(event), header.pack(), 0)
        self.store(record.key, record.value or b"", record.header)
        stamp = Stamp(header.at_ms, claim_id, n, _size(self.log[-1]), self.facts.unclean_total)
        after = evolve(self.live.get(run_id), run_id, event, stamp)
        if after is not None:
            self.live[run_id] = after


def _size(record: Stored) -> int:
    return len(record.value or b"") + len(record.key or b"") + len(record.header or b"")


def event_of(kind: int, slot: str, attempt: int, flag: bool) -> RunEvent:
    """Any event, whether it makes sense here or not: the fold refuses nothing."""
    arguments = (Argument("pence", encode_value(attempt)),)
    choices: tuple[RunEvent, ...] = (
        RunStarted("r", "1", VALUE, b"n" * 32, f"c{attempt}", "me"),
        PlanDeclared(("charge", "mail")),
        StepIntended(
            slot,
            "charge",
            attempt,
            int(flag),
            arguments if attempt == 1 else None,
            b"f" * 32,
            f"key-{int(flag)}",
            "keyed",
            1_000,
            100,
            None if flag else 0,
        ),
        StepCompleted(
            slot,
            attempt,
            VALUE,
            None,
            None,
            "charge" if flag else None,
            b"f" * 32 if flag else None,
            arguments if flag else None,
        ),
        StepFailed(
            slot,
            attempt,
            ERROR,
            flag,
            not flag,
            "charge" if flag else None,
            b"f" * 32 if flag else None,
            arguments if flag else None,
        ),
        StepInDoubt(slot, attempt, "no answer", flag),
        StepResolved(
            slot,
            attempt,
            ("done", "absent", "failed", "never_started")[attempt % 4],
            "lookup" if flag else "person",
            VALUE,
            ERROR,
            flag,
            None,
            None,
            None,
        ),
        EvidenceConflict(slot, attempt, "absent", "completed"),
        CursorAdvanced("each#1", attempt * 25, 100, VALUE),
        TimerScheduled(f"backoff:{slot}", attempt, "backoff", slot, 5_000),
        TimerScheduled("sleep:sleep#1", attempt, "sleep", "sleep#1", 5_000),
        TimerFired("sleep:sleep#1" if flag else f"backoff:{slot}", attempt),
        TimerCancelled(f"backoff:{slot}", attempt),
        RunDiverged(slot, "step 1 charge: argument pence 1 → 2", "1"),
        RunBlocked("limit", "too much"),
        RunResumed("me", "because", slot if flag else None, flag, "c-9"),
        RunCancelRequested("me", "because", f"c-{attempt}"),
        RunCompleted(VALUE),
        RunFailed(ERROR),
        RunCancelled("because"),
        AmountsDeclared("charge", ("pence",) if flag else ()),
        FindingRecorded(
            f"f-{attempt}",
            "missing",
            slot,
            "charge",
            "key-0",
            "differs",
            "refold history r",
            "open" if flag else "agreed",
            "me",
            "",
            f"c-f-{attempt}",
        ),
    )
    return choices[kind % len(choices)]


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["event"] * 12
            + ["report", "report", "claim", "claim_same", "release", "copy", "fenced", "skip_n"]
            + ["rubbish", "old_claim"]
        ),
        st.integers(0, 21),
        st.sampled_from(RUNS),
        st.sampled_from(SLOTS),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=40,
)


Action = tuple[str, int, str, str, int, bool]
OUTCOMES = ("completed", "failed", "never_started")


def begin() -> Partition:
    partition = Partition()
    partition.claim("p-0")
    partition.write(RUNS[0], event_of(0, SLOTS[0], 1, False))
    return partition


def do(partition: Partition, action: Action) -> None:
    what, kind, run_id, slot, attempt, flag = action
    if what == "event":
        partition.write(run_id, event_of(kind, slot, attempt, flag))
    elif what == "report":
        partition.report(kind, OUTCOMES[attempt % 3])
    elif what == "claim":
        partition.claim(f"p-{len(partition.log)}")
    elif what == "claim_same":
        partition.claim("p-0")
    elif what == "release":
        body = CODEC.encode(PartitionReleased("stop"))
        header = RecordHeader(KIND_EVENT, partition.claim_id, partition.epoch, partition.n, 1, 0)
        partition.store(None, body, header.pack())
        partition.n += 1
    elif what == "copy":  # a stored duplicate, a fenced owner's late event, a doubled claim
        record = partition.log[kind % len(partition.log)]
        if record.header and RecordHeader.unpack(record.header).kind != KIND_REPORT:
            partition.store(record.key, record.value or b"", record.header)
    elif what == "fenced":
        header = RecordHeader(KIND_EVENT, b"x" * 16, 1, kind, 1, 0)
        partition.store(
            run_id.encode(), CODEC.encode(event_of(kind, slot, attempt, flag)), header.pack()
        )
    elif what == "old_claim":
        header = RecordHeader(KIND_CLAIM, b"y" * 16, min(kind % 3, partition.epoch), 0, 1, 0)
        event = PartitionClaimed("w", "old", "app", "0.1.0", (), ("t",), 1, 1)
        partition.store(None, CODEC.encode(event), header.pack())
    elif what == "rubbish":
        partition.store(run_id.encode(), b"\x00\x00\x00", None)
    else:  # an n is missing, as in a cut log: the claim is broken until the next one
        partition.n += 1
        partition.write(run_id, event_of(kind, slot, attempt, flag))
        partition.claim("p-0")


def play(steps: list[Action]) -> Partition:
    partition = begin()
    for action in steps:
        do(partition, action)
    return partition
