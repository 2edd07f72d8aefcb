"""The contract of the Log port as checks, which every adapter passes and broken logs do not.

Each check is a plain async function of a `MakeLog`; `LogConformance` runs them all under pytest:

    class TestSqliteLog(LogConformance):
        @pytest.fixture
        def log(self, tmp_path: Path) -> Log:
            return SqliteLog(tmp_path / "log.db")

That alone runs what one handle can show. A class that overrides `make_log` too says by `can` what
else may be done to the log; a check that needs more than that is skipped by the name of the need.
No check expects an empty log, so that a slow broker can keep its topics from one to the next.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum
from typing import ClassVar

import pytest

from refold.log import Ack, Entry, Log, Record, Topic, batch_size
from refold_schemas.errors import (
    BatchRefused,
    BatchTooLarge,
    LogMissing,
    OffsetOutOfRange,
    RefoldError,
)

CHECK_TIMEOUT_S = 120.0
"""A check that hangs has failed; far above what a slow machine needs."""


class Can(StrEnum):
    """What a test may do to a log beyond using one handle, each with a name of its own."""

    HANDLES = "open several handles on one log, as several processes do"
    MAKE = "begin with a log that nobody has made yet"
    KILL = "end a handle as SIGKILL ends its process"
    HOLES = "leave out offsets"
    COMPACT = "run the cleaner on the compacted topic"
    UNANSWERED = "make an append whose answer is lost"
    LEASES = "suggest partitions to several owners"


class MakeLog:
    """Makes handles on one log, and does to that log what no handle can.

    Called, it returns a handle, not opened yet. Subclasses say in `can` which methods they have.
    """

    can: ClassVar[frozenset[Can]] = frozenset()
    lost_answers: ClassVar[tuple[str, ...]] = ()
    """The ways in which `append_unanswered` can lose an answer."""
    round_ms: int = 20
    """How often the leases are asked; a dead owner's are free within a hundred rounds."""

    def __init__(self, log: Log) -> None:
        self._first: Log | None = log

    def __call__(self) -> Log:
        """Another handle on the log."""
        if self._first is None:
            raise AssertionError("this check needs a second handle: override make_log")
        first, self._first = self._first, None
        return first

    async def pass_time(self, time_ms: int) -> None:
        """Let time go by: real time, or that of the simulation."""
        await asyncio.sleep(time_ms / 1000)

    async def kill(self, log: Log) -> None:
        """End `log` as if its process were killed."""
        raise NotImplementedError

    async def hole(self, log: Log, topic: Topic, partition: int, count: int) -> None:
        """Leave out the next `count` offsets."""
        raise NotImplementedError

    async def compact(self, log: Log) -> None:
        """Have the compacted topic cleaned now."""
        raise NotImplementedError

    async def append_unanswered(
        self, way: str, log: Log, topic: Topic, partition: int, entries: Sequence[Entry]
    ) -> Ack:
        """Append on `log` and lose the answer in this `way`: what does the log say or raise?"""
        raise NotImplementedError


Check = Callable[[MakeLog], Awaitable[None]]
CHECKS: list[Check] = []
NEEDS: dict[Check, frozenset[Can]] = {}


def _check(*needs: Can) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS.append(check)
        NEEDS[check] = frozenset(needs)
        return check

    return register


async def run_check(check: Check, make_log: MakeLog) -> None:
    """Run one check within `CHECK_TIMEOUT_S`. A check that fails raises AssertionError, or more."""
    async with asyncio.timeout(CHECK_TIMEOUT_S):
        await check(make_log)


class LogConformance:
    """Base of an adapter's test class: override `log`, and `make_log` for what else it can."""

    @pytest.fixture
    def log(self) -> Log:
        """The log under test, not opened."""
        raise NotImplementedError("an adapter's test class provides the fixture `log`")

    @pytest.fixture
    def make_log(self, log: Log) -> MakeLog:
        """What may be done to it: by default, use this one handle."""
        return MakeLog(log)

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conforms(self, check: Check, make_log: MakeLog) -> None:
        """One check of the suite."""
        missing = NEEDS[check] - make_log.can
        if missing:
            pytest.skip(f"{type(make_log).__name__} cannot {'; '.join(sorted(missing))}")
        asyncio.run(run_check(check, make_log))


# What the checks are written with


@contextlib.asynccontextmanager
async def _opened(make_log: MakeLog) -> AsyncIterator[Log]:
    log = make_log()
    await log.open(create=True)
    try:
        yield log
    finally:
        await log.close()


@contextlib.asynccontextmanager
async def _two(make_log: MakeLog) -> AsyncIterator[tuple[Log, Log]]:
    async with _opened(make_log) as one, _opened(make_log) as other:
        yield one, other


async def _end(log: Log, topic: Topic = Topic.EVENTS, partition: int = 0) -> int:
    return (await log.bounds(topic, partition))[1]


async def _read_all(
    log: Log, offset: int, topic: Topic = Topic.EVENTS, partition: int = 0, size_max: int = 1 << 20
) -> list[Record]:
    found: list[Record] = []
    while records := await log.read(topic, partition, offset, size_max=size_max):
        assert records[0].offset >= offset, "a read must not go back"
        found.extend(records)
        offset = records[-1].offset + 1
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "offsets must rise, none twice"
    return found


def _offset(ack: Ack) -> int:
    assert ack.offset is not None, "with no fault about, an append is acknowledged"
    assert ack.offset >= 0, "with no fault about, an append is acknowledged"
    return ack.offset


def _entries(records: Sequence[Record]) -> list[Entry]:
    return [Entry(record.key, record.value, record.header) for record in records]


def _batch(name: str, count: int, size: int = 20) -> list[Entry]:
    """`count` entries that no other batch has, each with a value of `size` bytes at least."""
    return [
        Entry(
            f"run-{name}".encode(),
            f"{name}/{at}/".encode().ljust(size, b"."),
            bytes([1, at % 256]) + os.urandom(48),
        )
        for at in range(count)
    ]


async def _append_and_compare(
    log: Log, entries: list[Entry], topic: Topic = Topic.EVENTS, partition: int = 0
) -> int:
    """Append, and find exactly this at the acknowledged place and nothing after it."""
    before = await _end(log, topic, partition)
    base = _offset(await log.append(topic, partition, entries))
    assert base >= before, "a batch is stored after everything that was there"
    found = await _read_all(log, base, topic, partition)
    assert len(found) == len(entries), "all records of the batch, and each once"
    assert [record.offset for record in found] == list(range(base, base + len(entries)))
    assert _entries(found) == entries
    return base


# Appending and reading


@_check(Can.MAKE)
async def check_a_missing_log_is_said_and_made_only_when_asked(make_log: MakeLog) -> None:
    """`create=False` never makes anything; `create=True` says whether it did."""
    log = make_log()
    with pytest.raises(LogMissing):
        await log.open(create=False)
    await log.close()
    log = make_log()
    assert await log.open(create=True) is True
    other = make_log()
    assert await other.open(create=True) is False
    await other.close()
    again = make_log()
    assert await again.open(create=False) is False
    await again.close()
    await log.close()


@_check()
async def check_facts_are_complete(make_log: MakeLog) -> None:
    """What a claim records is there: namespace, count, an id for each topic, the batch limit."""
    async with _opened(make_log) as log:
        facts = log.facts
        assert facts.namespace
        assert facts.partition_count >= 1
        assert len(facts.topic_ids) == len(Topic)
        assert all(facts.topic_ids), "an id must not be empty"
        assert len(set(facts.topic_ids)) == len(Topic), "each topic has an id of its own"
        assert facts.batch_size_max >= 64 * 1024
        assert "://" in log.url


@_check(Can.HANDLES)
async def check_every_handle_shows_the_same_facts(make_log: MakeLog) -> None:
    """Two processes compare facts through their claims, so they must agree on them."""
    async with _two(make_log) as (one, other):
        assert one.facts == other.facts


@_check()
async def check_the_acknowledged_offset_is_that_of_the_first_record(make_log: MakeLog) -> None:
    """The acknowledged base offset is the compare-and-set: where the end was, if nobody wrote."""
    async with _opened(make_log) as log:
        for count in (1, 2, 5):
            end = await _end(log)
            base = await _append_and_compare(log, _batch(f"base-{count}", count))
            assert base == end
            assert await _end(log) == base + count


@_check()
async def check_a_batch_is_whole_contiguous_and_in_order(make_log: MakeLog) -> None:
    """All records are readable afterwards, one after the other, in their order."""
    async with _opened(make_log) as log:
        for count in (1, 2, 3, 64, 200):
            await _append_and_compare(log, _batch(f"whole-{count}", count, size=300))


@_check()
async def check_a_batch_does_not_lose_its_tail(make_log: MakeLog) -> None:
    """One large record among small ones: a builder that is full must not drop the rest.

    Source: aiokafka 0.14, `BatchBuilder.append` returns None when the batch (16 KiB) is full.
    """
    async with _opened(make_log) as log:
        for large in (16 * 1024, 40 * 1024, 60 * 1024):
            batch = _batch(f"tail-{large}", 4)
            batch[1] = batch[1]._replace(value=os.urandom(large))
            if batch_size(batch) <= log.facts.batch_size_max:
                await _append_and_compare(log, batch)


@_check()
async def check_sizes_from_15000_to_17000_bytes(make_log: MakeLog) -> None:
    """Around the default batch size of Kafka's clients nothing changes."""
    async with _opened(make_log) as log:
        for size in range(15_000, 17_001, 125):
            batch = _batch(f"size-{size}", 4)
            rest = size - batch_size(batch)
            batch[2] = batch[2]._replace(value=(batch[2].value or b"") + os.urandom(rest))
            assert batch_size(batch) == size
            await _append_and_compare(log, batch)


@_check()
async def check_a_batch_over_the_limit_is_refused_whole(make_log: MakeLog) -> None:
    """Exactly the limit is stored; one byte more is refused before anything is, with the sizes."""
    async with _opened(make_log) as log:
        limit = log.facts.batch_size_max
        for over in (0, 1, 2, 1000):
            batch = _batch(f"limit-{over}", 3)
            rest = limit + over - batch_size(batch)
            batch[0] = batch[0]._replace(value=(batch[0].value or b"") + os.urandom(rest))
            if over == 0:
                await _append_and_compare(log, batch)
                continue
            end = await _end(log)
            with pytest.raises(BatchTooLarge) as refused:
                await log.append(Topic.EVENTS, 0, batch)
            assert (refused.value.size, refused.value.size_max) == (limit + over, limit)
            assert await _end(log) == end
            assert await log.read(Topic.EVENTS, 0, end) == []
            await _append_and_compare(log, _batch(f"after-{over}", 2))


@_check()
async def check_an_empty_batch_is_refused(make_log: MakeLog) -> None:
    """There is no offset that could acknowledge nothing."""
    async with _opened(make_log) as log:
        end = await _end(log)
        with pytest.raises(BatchRefused):
            await log.append(Topic.EVENTS, 0, [])
        assert await _end(log) == end


@_check()
async def check_bytes_come_back_as_they_were(make_log: MakeLog) -> None:
    """Null is not empty, and no byte is special, in key, value or header."""
    every = bytes(range(256))
    parts: list[bytes | None] = [None, b"", b"\0", every, b"\xff\xfe" * 50, "ключ €".encode()]
    batch = [Entry(key, value, header) for key in parts for value in parts for header in parts]
    async with _opened(make_log) as log:
        await _append_and_compare(log, batch)
        for entry in batch[::7]:
            await _append_and_compare(log, [entry])
        # All of one kind: what an adapter may store in a shorter form.
        await _append_and_compare(log, [Entry(None, None, None)] * 5)
        await _append_and_compare(log, [Entry(b"", b"", b"")] * 5)
        await _append_and_compare(log, [Entry(b"k", every, every)] * 5)


@_check()
async def check_offsets_rise_and_order_is_kept(make_log: MakeLog) -> None:
    """A hundred batches, one after the other, come back in this order."""
    async with _opened(make_log) as log:
        start = await _end(log)
        batches = [_batch(f"order-{at}", 1 + at % 5) for at in range(100)]
        bases = [_offset(await log.append(Topic.EVENTS, 0, batch)) for batch in batches]
        assert bases == sorted(set(bases))
        assert _entries(await _read_all(log, start)) == [e for batch in batches for e in batch]


@_check()
async def check_nothing_is_stored_twice(make_log: MakeLog) -> None:
    """After acknowledged appends the log holds each batch once, and ends behind the last one."""
    async with _opened(make_log) as log:
        start = await _end(log)
        sent = 0
        for at in range(12):
            batch = _batch(f"once-{at}", 3)
            base = _offset(await log.append(Topic.EVENTS, 0, batch))
            assert base == start + sent, "nobody else wrote: a gap is a copy of ours"
            sent += len(batch)
        assert len(await _read_all(log, start)) == sent
        assert await _end(log) == start + sent


@_check()
async def check_batches_under_way_together_stay_apart(make_log: MakeLog) -> None:
    """Appends that overlap end up in some order, each whole, contiguous and at its own offset."""
    async with _opened(make_log) as log:
        start = await _end(log)
        batches = [_batch(f"together-{at}", 1 + at % 7) for at in range(40)]
        acks = await asyncio.gather(*(log.append(Topic.EVENTS, 0, batch) for batch in batches))
        found = {record.offset: record for record in await _read_all(log, start)}
        for batch, ack in zip(batches, acks, strict=True):
            base = _offset(ack)
            assert _entries([found.pop(base + at) for at in range(len(batch))]) == batch
        assert not found


@_check()
async def check_what_is_acknowledged_can_be_read(make_log: MakeLog) -> None:
    """An acknowledgement comes after storing, not before: it is there in the same turn."""
    async with _opened(make_log) as log:
        for at in range(10):
            batch = _batch(f"stored-{at}", 3)
            base = _offset(await log.append(Topic.EVENTS, 0, batch))
            assert _entries(await log.read(Topic.EVENTS, 0, base)) == batch


@_check(Can.HANDLES, Can.KILL)
async def check_what_is_acknowledged_survives_its_process(make_log: MakeLog) -> None:
    """A process that is killed right after the acknowledgement has lost nothing."""
    async with _opened(make_log) as reader:
        for at in range(5):
            log = make_log()
            await log.open(create=False)
            batch = _batch(f"survives-{at}", 3)
            base = _offset(await log.append(Topic.EVENTS, 0, batch))
            await make_log.kill(log)
            assert _entries(await reader.read(Topic.EVENTS, 0, base)) == batch


@_check(Can.HANDLES)
async def check_a_foreign_append_shows_as_a_gap(make_log: MakeLog) -> None:
    """Whoever writes between our batches is seen: by our next offset, and by reading the gap."""
    async with _two(make_log) as (one, other):
        mine, claim, after = _batch("mine", 2), _batch("claim", 1), _batch("after", 2)
        first = _offset(await one.append(Topic.EVENTS, 0, mine))
        foreign = _offset(await other.append(Topic.EVENTS, 0, claim))
        second = _offset(await one.append(Topic.EVENTS, 0, after))
        assert first + 2 <= foreign < second, "the foreign record lies between ours"
        gap = [r for r in await _read_all(one, first + 2) if r.offset < second]
        assert _entries(gap) == claim
        assert _entries(await _read_all(one, first)) == [*mine, *claim, *after]


@_check(Can.HANDLES)
async def check_two_handles_interleave_whole_batches(make_log: MakeLog) -> None:
    """Two writers at once: one order for all readers, no batch inside another one."""
    async with _two(make_log) as (one, other):
        start = await _end(one)
        batches = [_batch(f"two-{at}", 1 + at % 4) for at in range(60)]
        acks = await asyncio.gather(
            *(
                (one if at % 2 else other).append(Topic.EVENTS, 0, batch)
                for at, batch in enumerate(batches)
            )
        )
        seen_by_one, seen_by_other = await _read_all(one, start), await _read_all(other, start)
        assert seen_by_one == seen_by_other
        found = {record.offset: record for record in seen_by_one}
        for batch, ack in zip(batches, acks, strict=True):
            assert _entries([found.pop(_offset(ack) + at) for at in range(len(batch))]) == batch
        assert not found


@_check()
async def check_reads_from_any_offset(make_log: MakeLog) -> None:
    """Inside a batch too; at the end and past it there is nothing, which is no error."""
    async with _opened(make_log) as log:
        batch = _batch("any", 20)
        base = _offset(await log.append(Topic.EVENTS, 0, batch))
        await log.append(Topic.EVENTS, 0, more := _batch("any-more", 3))
        whole = [*batch, *more]
        for at in range(len(whole)):
            assert _entries(await _read_all(log, base + at)) == whole[at:]
        assert await log.read(Topic.EVENTS, 0, base + len(whole)) == []
        assert await log.read(Topic.EVENTS, 0, base + len(whole) + 1000) == []


@_check()
async def check_reads_keep_to_their_size(make_log: MakeLog) -> None:
    """About `size_max` bytes, but at least one record, so that any reader gets on."""
    async with _opened(make_log) as log:
        start = await _end(log)
        sent: list[Entry] = []
        for at in range(30):
            batch = _batch(f"sized-{at}", 2, size=2_000)
            await log.append(Topic.EVENTS, 0, batch)
            sent.extend(batch)
        some = await log.read(Topic.EVENTS, 0, start, size_max=20_000)
        assert 1 <= len(some) <= 20
        assert len(await log.read(Topic.EVENTS, 0, start, size_max=1)) >= 1
        for size_max in (1, 5_000, 1 << 20):
            assert _entries(await _read_all(log, start, size_max=size_max)) == sent


@_check()
async def check_append_time_never_runs_backwards(make_log: MakeLog) -> None:
    """The log's own clock stands on each record, and on the acknowledgement if it says it."""
    async with _opened(make_log) as log:
        start = await _end(log)
        acks = [await log.append(Topic.EVENTS, 0, _batch(f"time-{at}", 2)) for at in range(10)]
        records = {record.offset: record for record in await _read_all(log, start)}
        times = [records[offset].append_ms for offset in sorted(records)]
        assert times == sorted(times)
        for ack in acks:
            if ack.append_ms is not None:
                assert ack.append_ms == records[_offset(ack)].append_ms


@_check()
async def check_topics_and_partitions_are_apart(make_log: MakeLog) -> None:
    """What goes to one partition of one topic is in no other."""
    async with _opened(make_log) as log:
        places = [
            (topic, partition)
            for topic in (Topic.COMMANDS, Topic.EVENTS, Topic.SNAPSHOTS)
            for partition in range(log.facts.partition_count)
        ]
        places.append((Topic.DEAD_LETTERS, 0))
        ends = {place: await _end(log, *place) for place in places}
        for at, (topic, partition) in enumerate(places):
            batch = [Entry(f"apart-{at}-{n}".encode(), b"x", None) for n in range(at + 1)]
            await log.append(topic, partition, batch)
        for at, (topic, partition) in enumerate(places):
            found = await _read_all(log, ends[topic, partition], topic, partition)
            assert [r.key for r in found] == [f"apart-{at}-{n}".encode() for n in range(at + 1)]


@_check()
async def check_a_partition_that_is_not_there_is_refused(make_log: MakeLog) -> None:
    """A wrong number is an error, never a new partition."""
    async with _opened(make_log) as log:
        for partition in (log.facts.partition_count, 10_000):
            with pytest.raises(LogMissing):
                await log.append(Topic.EVENTS, partition, _batch("nowhere", 1))
            with pytest.raises(LogMissing):
                await log.read(Topic.EVENTS, partition, 0)


# Waiting


@_check()
async def check_wait_sees_what_is_there(make_log: MakeLog) -> None:
    """True at once if there is something; False, after the time, if there is not."""
    async with _opened(make_log) as log:
        base = _offset(await log.append(Topic.EVENTS, 0, _batch("there", 2)))
        assert await log.wait(Topic.EVENTS, 0, base, timeout_ms=0)
        assert await log.wait(Topic.EVENTS, 0, base + 1, timeout_ms=60_000)
        assert not await log.wait(Topic.EVENTS, 0, base + 2, timeout_ms=0)
        assert not await log.wait(Topic.EVENTS, 0, base + 2, timeout_ms=30)


@_check()
async def check_wait_is_woken_by_an_append(make_log: MakeLog) -> None:
    """An append of this process ends the wait, and only when it reaches the offset."""
    async with _opened(make_log) as log:
        end = await _end(log)
        waiting = asyncio.create_task(log.wait(Topic.EVENTS, 0, end + 1, timeout_ms=60_000))
        await log.append(Topic.EVENTS, 0, _batch("too-early", 1))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "what was waited for is not there yet"
        await log.append(Topic.EVENTS, 0, _batch("woken", 1))
        assert await waiting
        assert len(await log.read(Topic.EVENTS, 0, end + 1)) == 1


@_check(Can.HANDLES)
async def check_wait_is_woken_by_another_handle(make_log: MakeLog) -> None:
    """A command that another process publishes wakes the owner, in the compacted topic too."""
    async with _two(make_log) as (one, other):
        for topic in (Topic.COMMANDS, Topic.SNAPSHOTS):
            end = await _end(one, topic)
            waiting = asyncio.create_task(one.wait(topic, 0, end, timeout_ms=60_000))
            await asyncio.sleep(0.05)
            await other.append(topic, 0, _batch("published", 1))
            assert await waiting
            assert len(await one.read(topic, 0, end)) == 1


# The compacted topic, trimming, holes


@_check()
async def check_the_latest_snapshot_of_each_key_is_kept(make_log: MakeLog) -> None:
    """Older values of a key may go, the latest never does; a deleted key has no value left."""
    async with _opened(make_log) as log:
        tag = os.urandom(4).hex()
        kept = [f"{tag}/{at}".encode() for at in range(5)]
        gone = f"{tag}/gone".encode()
        start = await _end(log, Topic.SNAPSHOTS)
        last = -1
        for turn in range(30):
            base = _offset(
                await log.append(
                    Topic.SNAPSHOTS,
                    0,
                    [Entry(key, b"%d" % turn, b"h") for key in [*kept, gone]],
                )
            )
            assert base > last
            last = base + len(kept)
        last = _offset(await log.append(Topic.SNAPSHOTS, 0, [Entry(gone, None)]))
        if Can.COMPACT in make_log.can:
            await make_log.compact(log)
        latest = {r.key: r for r in await _read_all(log, start, Topic.SNAPSHOTS)}
        assert {key: latest[key].value for key in kept} == dict.fromkeys(kept, b"29")
        assert gone not in latest or latest[gone].value is None
        assert await _end(log, Topic.SNAPSHOTS) == last + 1


@_check()
async def check_a_snapshot_without_a_key_is_refused(make_log: MakeLog) -> None:
    """A compacted topic cannot hold what has no key; the batch is refused whole."""
    async with _opened(make_log) as log:
        end = await _end(log, Topic.SNAPSHOTS)
        with pytest.raises(BatchRefused):
            await log.append(Topic.SNAPSHOTS, 0, [Entry(b"k", b"v"), Entry(None, b"v")])
        assert await _end(log, Topic.SNAPSHOTS) == end


@_check(Can.COMPACT)
async def check_compaction_takes_old_snapshots(make_log: MakeLog) -> None:
    """What a later record replaces does not stay for ever."""
    async with _opened(make_log) as log:
        start = await _end(log, Topic.SNAPSHOTS)
        key = os.urandom(8)
        for turn in range(50):
            await log.append(Topic.SNAPSHOTS, 0, [Entry(key, b"%d" % turn)])
        await make_log.compact(log)
        assert [r.value for r in await _read_all(log, start, Topic.SNAPSHOTS)] == [b"49"]


@_check()
async def check_what_is_trimmed_is_out_of_range(make_log: MakeLog) -> None:
    """The log begins where it was trimmed to, inside a batch too, and goes on where it ended."""
    async with _opened(make_log) as log:
        base = _offset(await log.append(Topic.EVENTS, 0, batch := _batch("trim", 4)))
        await log.append(Topic.EVENTS, 0, more := _batch("trim-more", 4))
        whole = [*batch, *more]
        for cut in (2, 4, 7):
            assert await log.trim(Topic.EVENTS, 0, base + cut) == base + cut
            assert await log.bounds(Topic.EVENTS, 0) == (base + cut, base + 8)
            assert _entries(await _read_all(log, base + cut)) == whole[cut:]
            with pytest.raises(OffsetOutOfRange) as gone:
                await log.read(Topic.EVENTS, 0, base + cut - 1)
            assert (gone.value.start, gone.value.end) == (base + cut, base + 8)
        # Backwards, and once more: nothing comes back, and it is no error.
        assert await log.trim(Topic.EVENTS, 0, base + 3) == base + 7
        assert await log.trim(Topic.EVENTS, 0, base + 7) == base + 7
        assert (await log.bounds(Topic.EVENTS, 0))[0] == base + 7
        assert await log.trim(Topic.EVENTS, 0, base + 8) == base + 8
        assert await log.bounds(Topic.EVENTS, 0) == (base + 8, base + 8)
        assert await log.read(Topic.EVENTS, 0, base + 8) == []
        assert await _append_and_compare(log, _batch("after-trim", 2)) == base + 8


@_check()
async def check_a_trim_never_reaches_beyond_the_end(make_log: MakeLog) -> None:
    """It empties the log at most, of its own topic and partition only; what is told there waits."""
    async with _opened(make_log) as log:
        await log.append(Topic.COMMANDS, 0, kept := _batch("kept", 2))
        base = _offset(await log.append(Topic.EVENTS, 0, _batch("trim-all", 3)))
        assert await log.trim(Topic.EVENTS, 0, base + 1_000) == base + 3
        assert await log.bounds(Topic.EVENTS, 0) == (base + 3, base + 3)
        assert not await log.wait(Topic.EVENTS, 0, base + 3, timeout_ms=30)
        assert await log.wait(Topic.EVENTS, 0, base + 2, timeout_ms=60_000)  # it never comes
        assert await _append_and_compare(log, _batch("after", 1)) == base + 3
        start, end = await log.bounds(Topic.COMMANDS, 0)
        assert end - start >= len(kept)
        assert _entries(await _read_all(log, end - len(kept), Topic.COMMANDS)) == list(kept)


@_check(Can.HOLES)
async def check_holes_are_passed_over(make_log: MakeLog) -> None:
    """Offsets 0, 1, 3, 4, 9: a reader gets on and ends at the end; a batch has no hole in it."""
    async with _opened(make_log) as log:
        start = await _end(log)
        await log.append(Topic.EVENTS, 0, one := _batch("hole-1", 2))
        await make_log.hole(log, Topic.EVENTS, 0, 1)
        await log.append(Topic.EVENTS, 0, two := _batch("hole-2", 2))
        await make_log.hole(log, Topic.EVENTS, 0, 4)
        last = await _append_and_compare(log, three := _batch("hole-3", 1))
        assert [r.offset - start for r in await _read_all(log, start)] == [0, 1, 3, 4, 9]
        assert _entries(await _read_all(log, start)) == [*one, *two, *three]
        for offset in (2, 5, 6, 8):
            found = await log.read(Topic.EVENTS, 0, start + offset)
            assert found[0].offset - start == (3 if offset == 2 else 9)
            assert await log.wait(Topic.EVENTS, 0, start + offset, timeout_ms=60_000)
        # A hole at the end: there is nothing to read although the end lies further on.
        await make_log.hole(log, Topic.EVENTS, 0, 3)
        assert await _end(log) == last + 4
        assert await log.read(Topic.EVENTS, 0, last + 1) == []
        assert not await log.wait(Topic.EVENTS, 0, last + 1, timeout_ms=30)


# Unknown, cancelled, closed


@_check(Can.HANDLES, Can.UNANSWERED)
async def check_unknown_is_not_reported_as_success(make_log: MakeLog) -> None:
    """Without an answer an append raises, or says None or -1; an offset is said only of a fact."""
    for way in make_log.lost_answers:
        async with _opened(make_log) as reader:
            log = make_log()
            await log.open(create=False)
            batch = _batch(f"unanswered-{way}", 2)
            try:
                ack = await make_log.append_unanswered(way, log, Topic.EVENTS, 0, batch)
            except Exception:  # whatever it is: unknown
                ack = Ack(None)
            if ack.offset is not None and ack.offset >= 0:
                found = await reader.read(Topic.EVENTS, 0, ack.offset)
                assert _entries(found[: len(batch)]) == batch, f"{way}: acknowledged, not there"
            await log.close()


@_check(Can.HANDLES, Can.UNANSWERED)
async def check_an_unanswered_batch_is_whole_or_absent(make_log: MakeLog) -> None:
    """Late, twice or never: each copy that is stored is stored whole, and others are not harmed."""
    for way in make_log.lost_answers:
        async with _opened(make_log) as reader:
            start = await _end(reader)
            log = make_log()
            await log.open(create=False)
            lost, kept = _batch(f"lost-{way}", 3), _batch(f"kept-{way}", 2)
            with contextlib.suppress(Exception):  # unknown, as above
                await make_log.append_unanswered(way, log, Topic.EVENTS, 0, lost)
            await log.close()
            await reader.append(Topic.EVENTS, 0, kept)
            await make_log.pass_time(200)
            found = _entries(await _read_all(reader, start))
            while found:
                piece = lost if found[0] == lost[0] else kept
                assert found[: len(piece)] == piece, f"{way}: a batch in pieces"
                del found[: len(piece)]


@_check()
async def check_a_cancelled_append_is_unknown_but_whole(make_log: MakeLog) -> None:
    """Cancelling gives up the answer, not the batch: it is stored whole or not at all."""
    async with _opened(make_log) as log:
        start = await _end(log)
        batches = [_batch(f"cancelled-{at}", 3) for at in range(20)]
        for at, batch in enumerate(batches):
            task = asyncio.create_task(log.append(Topic.EVENTS, 0, batch))
            for _ in range(at % 4):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await log.append(Topic.EVENTS, 0, last := _batch("barrier", 1))
        found = _entries(await _read_all(log, start))
        assert found[-1:] == last, "what was cancelled before does not come after"
        whole = [batch for batch in batches if batch[0] in found]
        assert found[:-1] == [entry for batch in whole for entry in batch]


@_check()
async def check_close_ends_what_is_under_way(make_log: MakeLog) -> None:
    """Nobody hangs on a closed handle; closing twice is harmless, using it is refused."""
    log = make_log()
    await log.open(create=True)
    waiting = asyncio.create_task(log.wait(Topic.EVENTS, 0, 1 << 40, timeout_ms=60_000))
    appends = [
        asyncio.create_task(log.append(Topic.EVENTS, 0, _batch(f"closing-{at}", 2)))
        for at in range(5)
    ]
    await asyncio.sleep(0)
    await log.close()
    await log.close()
    for outcome in await asyncio.gather(*appends, return_exceptions=True):
        assert isinstance(outcome, (Ack, Exception)), "an answer or unknown, but an end"
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(RefoldError):
        await log.append(Topic.EVENTS, 0, _batch("closed", 1))
    with pytest.raises(RefoldError):
        await log.read(Topic.EVENTS, 0, 0)


# Who is suggested


async def _settled(
    make_log: MakeLog,
    owners: dict[str, Log],
    until: Callable[[dict[str, frozenset[int]]], bool],
) -> dict[str, frozenset[int]]:
    """Ask for all `owners` in turn until their latest answers are as wanted.

    At every moment the latest answers have no partition in common.
    """
    answers: dict[str, frozenset[int]] = dict.fromkeys(owners, frozenset())
    for _ in range(100):
        for owner, log in owners.items():
            answers[owner] = (await log.suggest(owner)).partitions
            told = [partition for partitions in answers.values() for partition in partitions]
            assert len(told) == len(set(told)), f"one partition, two owners: {answers}"
        if until(answers):
            return answers
        await make_log.pass_time(make_log.round_ms)
    raise AssertionError(f"a hundred rounds, and the leases stand at {answers}")


@_check()
async def check_one_owner_gets_every_partition(make_log: MakeLog) -> None:
    """Nothing lies idle while somebody lives."""
    async with _opened(make_log) as log:
        every = frozenset(range(log.facts.partition_count))
        await _settled(make_log, {"one": log}, lambda told: told["one"] == every)
        assert (await log.suggest("one")).partitions == every
        await log.give_up("one")


@_check(Can.HANDLES, Can.LEASES)
async def check_partitions_are_shared_evenly(make_log: MakeLog) -> None:
    """Each partition has one live owner, shares differ by one at most, and then nothing moves."""
    async with _opened(make_log) as first, _opened(make_log) as second, _opened(make_log) as third:
        every = frozenset(range(first.facts.partition_count))
        owners = {"a": first}
        answers = await _settled(make_log, owners, lambda told: told["a"] == every)
        for name, log in (("b", second), ("c", third)):
            owners[name] = log

            def even(told: dict[str, frozenset[int]]) -> bool:
                sizes = [len(partitions) for partitions in told.values()]
                return sum(sizes) == len(every) and max(sizes) - min(sizes) <= 1

            answers = await _settled(make_log, owners, even)
        for owner, log in owners.items():
            assert (await log.suggest(owner)).partitions == answers[owner]
        for owner, log in owners.items():
            await log.give_up(owner)


@_check(Can.HANDLES, Can.LEASES)
async def check_what_is_given_up_goes_to_another(make_log: MakeLog) -> None:
    """An owner that leaves does not keep its partitions from the others."""
    async with _two(make_log) as (one, other):
        every = frozenset(range(one.facts.partition_count))
        await _settled(make_log, {"a": one}, lambda told: told["a"] == every)
        await _settled(make_log, {"a": one, "b": other}, lambda told: bool(told["a"]))
        await one.give_up("a")
        await _settled(make_log, {"b": other}, lambda told: told["b"] == every)
        await other.give_up("b")


@_check()
async def check_an_owner_that_was_suggested_is_not_called_dead(make_log: MakeLog) -> None:
    """It lives, or nobody can say; once it has given up, nobody says that it lives."""
    async with _opened(make_log) as log:
        every = frozenset(range(log.facts.partition_count))
        await _settled(make_log, {"one": log}, lambda told: told["one"] == every)
        for partition in every:
            assert await log.owner_lives(partition) in (True, None)
        await log.give_up("one")
        for partition in every:
            assert await log.owner_lives(partition) in (False, None)


@_check(Can.HANDLES, Can.LEASES, Can.KILL)
async def check_a_killed_owner_is_not_called_alive_for_ever(make_log: MakeLog) -> None:
    """Readers show what it left as in doubt, not as under way."""
    async with _opened(make_log) as other:
        every = frozenset(range(other.facts.partition_count))
        one = make_log()
        await one.open(create=False)
        await _settled(make_log, {"a": one}, lambda told: told["a"] == every)
        await make_log.kill(one)
        for _ in range(100):
            if await other.owner_lives(0) is not True:
                return
            await make_log.pass_time(make_log.round_ms)
        raise AssertionError("a hundred rounds, and a dead owner is still said to live")


@_check(Can.HANDLES, Can.LEASES, Can.KILL)
async def check_a_dead_owner_loses_its_partitions(make_log: MakeLog) -> None:
    """Who is killed gives nothing up, but is not waited for, for ever."""
    async with _opened(make_log) as other:
        every = frozenset(range(other.facts.partition_count))
        one = make_log()
        await one.open(create=False)
        await _settled(make_log, {"a": one}, lambda told: told["a"] == every)
        await make_log.kill(one)
        await _settled(make_log, {"b": other}, lambda told: told["b"] == every)
        await other.give_up("b")
