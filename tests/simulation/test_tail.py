"""What the simulation has found in the tail of a partition, each fault by itself."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from refold.engine.clock import Clock
from refold.engine.ending import ClaimEnded, ClaimFenced, ClaimUnknown
from refold.engine.log_clock import LogClock
from refold.engine.tail import Decision, Tail
from refold.log.memory import Faults, MemoryBroker, MemoryLog, ReadCall, ReadFault
from refold.log.port import Entry, Topic
from refold.testing.broken_logs import WrappedLog
from refold.testing.sim_loop import SimProcess, Universe
from refold_projections.fold import Position
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, RecordHeader

OURS, FOREIGN = b"o" * 16, b"f" * 16


def log_clock(clock: Clock) -> LogClock:
    return LogClock(clock, append_ms=0, sent_boot_ms=0, told_boot_ms=0, skew_max_ms=5_000)


class OneFault(Faults):
    def __init__(self, fault: ReadFault) -> None:
        self.fault = fault

    def on_read(self, call: ReadCall) -> ReadFault | None:
        return self.fault


def record(kind: int, claim_id: bytes, epoch: int, n: int) -> Entry:
    return Entry(None, b"body", RecordHeader(kind, claim_id, epoch, n, 0, 0).pack())


def append_behind_a_foreign_claim(
    fault: ReadFault, acked: Callable[[int], None]
) -> list[ClaimEnded]:
    """Our claim stands at 0, a foreign one at 1; our first batch is acknowledged at 2."""
    universe = Universe(Random(1))
    broker = MemoryBroker("t", now_ms=lambda: 0, schedule=universe.schedule_ms)
    broker.put(Topic.EVENTS, 0, [record(KIND_CLAIM, OURS, 1, 0)])
    broker.put(Topic.EVENTS, 0, [record(KIND_CLAIM, FOREIGN, 2, 0)])
    broker.faults = OneFault(fault)
    process = SimProcess(universe, "owner")
    log = MemoryLog("memory://t", broker=broker)
    ended: list[ClaimEnded] = []
    tail = Tail(
        log,
        0,
        OURS,
        Position(1, 1, OURS, 0, False, 0, 0, 0, OURS, 0),
        batch_bytes=1_000,
        timeout_ms=1_000,
        on_report=lambda record: None,
        on_end=ended.append,
        clock=process,
        log_clock=log_clock(process),
    )

    async def main() -> None:
        await log.open(create=True)
        tail.put(Decision([record(KIND_EVENT, OURS, 1, 0)], 100, 0, 0, 0, acked))
        await tail.drained()

    process.start(main())
    universe.run(10_000_000)
    assert process.errors == []
    return ended


def test_a_read_that_returns_the_last_known_record_only_does_not_hide_a_foreign_claim() -> None:
    acted: list[int] = []
    [why] = append_behind_a_foreign_claim(ReadFault(record_count_max=1), acted.append)
    assert isinstance(why, ClaimFenced)
    assert why.claim_id_newer == FOREIGN
    assert acted == []


def test_a_gap_that_cannot_be_read_ends_the_claim_and_nothing_acts() -> None:
    acted: list[int] = []
    [why] = append_behind_a_foreign_claim(ReadFault(refused=True), acted.append)
    assert isinstance(why, ClaimUnknown)
    assert "cannot be read" in str(why)
    assert acted == []


@pytest.mark.parametrize("value", [b"body", b"another"], ids=["a copy", "forged"])
def test_a_record_under_our_next_n_is_our_own_copy_or_ends_the_claim(value: bytes) -> None:
    """Seen on Kafka: a record that somebody wrote in our name made ours a duplicate, unnoticed."""
    universe = Universe(Random(1))
    broker = MemoryBroker("t", now_ms=lambda: 0, schedule=universe.schedule_ms)
    broker.put(Topic.EVENTS, 0, [record(KIND_CLAIM, OURS, 1, 0)])
    ours = record(KIND_EVENT, OURS, 1, 0)
    broker.put(Topic.EVENTS, 0, [ours._replace(value=value)])
    process = SimProcess(universe, "owner")
    log = MemoryLog("memory://t", broker=broker)
    ended: list[ClaimEnded] = []
    acted: list[int] = []
    tail = Tail(
        log,
        0,
        OURS,
        Position(1, 1, OURS, 0, False, 0, 0, 0, OURS, 0),
        batch_bytes=1_000,
        timeout_ms=1_000,
        on_report=lambda record: None,
        on_end=ended.append,
        clock=process,
        log_clock=log_clock(process),
    )

    async def main() -> None:
        await log.open(create=True)
        tail.put(Decision([ours], 100, 0, 0, 0, acted.append))
        await tail.drained()
        await tail.look()

    process.start(main())
    universe.run(10_000_000)
    assert process.errors == []
    if value == b"body":
        assert ended == []
        assert acted == [1], "the copy stands first: there its events are for every reader"
    else:
        [why] = ended
        assert isinstance(why, ClaimUnknown)
        assert "did not write" in str(why)
        assert acted == []


@pytest.mark.parametrize("error", [KeyError("slot"), ZeroDivisionError("bug")])
def test_a_defect_in_what_follows_an_acknowledgement_ends_the_claim_aloud(error: Exception) -> None:
    def acked(offset: int) -> None:
        raise error

    universe = Universe(Random(1))
    broker = MemoryBroker("t", now_ms=lambda: 0, schedule=universe.schedule_ms)
    process = SimProcess(universe, "owner")
    log = MemoryLog("memory://t", broker=broker)
    ended: list[ClaimEnded] = []
    tail = Tail(
        log,
        0,
        OURS,
        Position(),
        batch_bytes=1_000,
        timeout_ms=1_000,
        on_report=lambda record: None,
        on_end=ended.append,
        clock=process,
        log_clock=log_clock(process),
    )

    async def main() -> None:
        await log.open(create=True)
        tail.put(Decision([record(KIND_EVENT, OURS, 1, 0)], 100, 0, 0, 0, acked))
        await tail.drained()

    process.start(main())
    universe.run(10_000_000)
    assert [why.__cause__ for why in ended] == [error]


class AnswersLate(WrappedLog):
    """Says where the log ended when it was asked, after `meanwhile` has been done."""

    meanwhile: Callable[[], Coroutine[Any, Any, None]]

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        found = await self.inner.bounds(topic, partition)
        await self.meanwhile()
        return found


def test_an_append_that_overtakes_a_look_is_no_cut_of_the_log() -> None:
    """A loaded broker answered the look after the append that was sent later."""
    universe = Universe(Random(1))
    broker = MemoryBroker("t", now_ms=lambda: 0, schedule=universe.schedule_ms)
    broker.put(Topic.EVENTS, 0, [record(KIND_CLAIM, OURS, 1, 0)])
    process = SimProcess(universe, "owner")
    log = AnswersLate(MemoryLog("memory://t", broker=broker))
    ended: list[ClaimEnded] = []
    acked: list[int] = []
    tail = Tail(
        log,
        0,
        OURS,
        Position(1, 1, OURS, 0, False, 0, 0, 0, OURS, 0),
        batch_bytes=1_000,
        timeout_ms=1_000,
        on_report=lambda record: None,
        on_end=ended.append,
        clock=process,
        log_clock=log_clock(process),
    )

    async def append() -> None:
        tail.put(Decision([record(KIND_EVENT, OURS, 1, 0)], 100, 0, 0, 0, acked.append))
        await tail.drained()

    log.meanwhile = append

    async def main() -> None:
        await log.open(create=True)
        await tail.look()

    process.start(main())
    universe.run(10_000_000)
    assert process.errors == []
    assert acked == [1]
    assert ended == []
