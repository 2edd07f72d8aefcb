"""Writes a log by hand, as an owner would: claims, events of runs, and what must not count."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from refold.log import Entry, Topic, partition_for
from refold.log.memory import MemoryBroker
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, KIND_REPORT, Codec, RecordHeader
from refold_schemas.events import (
    Event,
    PartitionClaimed,
    PlanDeclared,
    RunStarted,
    StepCompleted,
    StepIntended,
)
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value

CODEC = Codec(FileRegistry())
NOON_MS = 1_785_585_600_000
"""2026-08-01 12:00:00 UTC."""
KEY = "0b7d3f2e-6d8c-5a4b-9e21-000000000001"


@dataclass
class Writer:
    """One owner of one partition, on a broker in memory; time moves by `tick` at each record."""

    broker: MemoryBroker
    partition: int = 0
    claim_id: bytes = b""
    epoch: int = 0
    n: int = 0
    at_ms: int = NOON_MS
    command_next: int = 0
    offsets: list[int] = field(default_factory=list)

    def claim(
        self, owner: str = "worker-1", *, process: str = "p1", epoch: int | None = None
    ) -> int:
        """A claim that counts, unless an older epoch is given."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.claim_id, self.n = bytes([self.epoch]) * 16, 0
        claimed = PartitionClaimed(
            owner,
            process,
            "shop",
            "0.1.0",
            ("shop@1",),
            self.broker.facts.topic_ids,
            self.broker.partition_count,
            1,
        )
        return self._put(None, claimed, KIND_CLAIM)

    def write(self, run_id: str | None, *events: Event) -> int:
        """Events of one run in order; the offset of the last one."""
        offset = -1
        for event in events:
            offset = self._put(run_id, event, KIND_EVENT)
        return offset

    def report(self, run_id: str, event: Event, claim_id: bytes, n: int) -> int:
        """A report: its header names the intent."""
        header = RecordHeader(KIND_REPORT, claim_id, self.epoch, n, self.at_ms, self.command_next)
        return self._store(run_id, CODEC.encode(event), header.pack())

    def raw(self, run_id: str | None, value: bytes, *, header: bytes | None = None) -> int:
        """Bytes that are no event, under the next n unless a header is given."""
        if header is None:
            header = self._header(KIND_EVENT).pack()
            self.n += 1
        return self._store(run_id, value, header)

    def again(self, run_id: str, event: Event, n: int) -> int:
        """A stored copy: the same event under an n that was used."""
        header = self._header(KIND_EVENT)._replace(n=n).pack()
        return self._store(run_id, CODEC.encode(event), header)

    def _header(self, kind: int) -> RecordHeader:
        return RecordHeader(kind, self.claim_id, self.epoch, self.n, self.at_ms, self.command_next)

    def _put(self, run_id: str | None, event: Event, kind: int) -> int:
        header = self._header(kind).pack()
        if kind == KIND_EVENT:
            self.n += 1
        return self._store(run_id, CODEC.encode(event), header)

    def _store(self, run_id: str | None, value: bytes, header: bytes | None) -> int:
        key = None if run_id is None else run_id.encode()
        offset = self.broker.put(Topic.EVENTS, self.partition, [Entry(key, value, header)])
        self.offsets.append(offset)
        self.at_ms += 1_000
        return offset


def writer_for(broker: MemoryBroker, run_id: str) -> Writer:
    """A writer on the partition where the run lives."""
    return Writer(broker, partition_for(run_id, broker.partition_count))


def started(
    *plan: str, run: str = "shop", given: object = None, command_id: str = "c1"
) -> tuple[Event, ...]:
    """RunStarted, and the plan if there is one."""
    begun = RunStarted(run, "1", encode_value(given), bytes(32), command_id, "test")
    return (begun, PlanDeclared(plan)) if plan else (begun,)


def done(slot: str, result: object = "ok") -> StepCompleted:
    """A re-executable step returned."""
    step = slot.partition("#")[0].rpartition("/")[2]
    return StepCompleted(slot, 1, encode_value(result), None, None, step, bytes(32), ())


def intended(
    slot: str,
    *,
    attempt: int = 1,
    policy: str = "escalate",
    timeout_ms: int = 30_000,
    settle_ms: int = 60_000,
    key: str = KEY,
) -> StepIntended:
    """An intent."""
    step = slot.partition("#")[0].rpartition("/")[2]
    arguments: Sequence[object] | None = () if attempt == 1 else None
    return StepIntended(
        slot,
        step,
        attempt,
        0,
        None if arguments is None else (),
        bytes(32),
        key,
        policy,
        timeout_ms,
        settle_ms,
        None,
    )


def acted(slot: str, result: object = "ok", *, attempt: int = 1) -> StepCompleted:
    """A step with an intent returned."""
    return StepCompleted(slot, attempt, encode_value(result), None, None, None, None, None)
