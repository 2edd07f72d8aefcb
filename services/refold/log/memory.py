"""The log in memory, for tests and deterministic simulation: virtual time and injected faults."""

import asyncio
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from refold.log.leases import Lease, share_of
from refold.log.port import Ack, Entry, LogFacts, Record, Suggestion, Topic, Upgrade
from refold.log.sizes import BATCH_SIZE_MAX, check_batch
from refold_schemas.errors.log import (
    AppendUnknown,
    LogClosed,
    LogMissing,
    LogUnavailable,
    LogUrlInvalid,
    OffsetOutOfRange,
    PartitionMissing,
)

LEASE_MS = 10_000
"""How long, by default, an owner that does not call `suggest` keeps its partitions."""


class Answer(StrEnum):
    """What the caller of an append is told, whatever became of the batch."""

    ACK = "ack"
    """The base offset; if the batch is not stored by then, an error."""
    ERROR = "error"
    """An exception, as for a timeout or a lost connection."""
    NONE = "none"
    """`Ack(None)`."""
    MINUS_ONE = "minus one"
    """`Ack(-1)`."""
    SILENCE = "silence"
    """No answer until the caller gives up or the handle is closed."""


@dataclass(frozen=True, slots=True)
class AppendFault:
    """What happens to one append. The default is: stored at once, acknowledged.

    Times are milliseconds from the call. `store_at_ms` is when each copy of the batch is stored:
    `()` never, `(0, 50)` twice, `(300,)` with `answer_at_ms=100` late, after the answer; a stored
    copy after the answer must be announced as unknown, hence not with `Answer.ACK`, except where a
    first copy was stored before. `hole` offsets are left out before the batch, as a control record
    of another writer does.
    """

    store_at_ms: tuple[int, ...] = (0,)
    answer: Answer = Answer.ACK
    answer_at_ms: int = 0
    hole: int = 0


@dataclass(frozen=True, slots=True)
class ReadFault:
    """What happens to one read: late by `delay_ms`, refused, or cut after `record_count_max`."""

    delay_ms: int = 0
    refused: bool = False
    record_count_max: int | None = None


class AppendCall(NamedTuple):
    """An append as the fault hook sees it. `handle` is the name of the simulated process."""

    handle: str
    topic: Topic
    partition: int
    entries: tuple[Entry, ...]


class ReadCall(NamedTuple):
    """A read as the fault hook sees it."""

    handle: str
    topic: Topic
    partition: int
    offset: int


class Faults:
    """The fault hook, asked once for each call. This one injects nothing: override at will."""

    def on_append(self, call: AppendCall) -> AppendFault | None:
        """The fault of this append, or None."""
        return None

    def on_read(self, call: ReadCall) -> ReadFault | None:
        """The fault of this read, or None."""
        return None

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        """The partitions to answer `suggest` with; a group may well be wrong about them."""
        return partitions


class Schedule(Protocol):
    """Runs `callback` in `delay_ms` of virtual time, also when the caller's process is gone."""

    def __call__(self, delay_ms: int, callback: Callable[[], None]) -> object:
        """Plan `callback`."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Waiter(NamedTuple):
    """Somebody who sleeps until the stream grows: a future, its loop and the loop's thread."""

    future: "asyncio.Future[None]"
    loop: asyncio.AbstractEventLoop
    thread: int


def _post(waiter: _Waiter, callback: Callable[["asyncio.Future[None]"], None]) -> None:
    """Run `callback(future)` in the waiter's own loop. A closed loop is a dead process."""
    try:
        if waiter.thread == threading.get_ident():
            waiter.loop.call_soon(callback, waiter.future)
        else:
            waiter.loop.call_soon_threadsafe(callback, waiter.future)
    except RuntimeError:
        if not waiter.loop.is_closed():
            raise


class _Stream:
    """One partition of one topic."""

    def __init__(self, *, compacted: bool) -> None:
        self.compacted = compacted
        self.start = self.end = 0
        self.append_ms = 0
        self.offsets: list[int] = []
        self.records: list[Record] = []
        self.latest: dict[bytes | None, int] = {}
        self.waiters: list[_Waiter] = []

    def store(self, entries: Sequence[Entry], now_ms: int) -> int:
        base = self.end
        self.append_ms = now_ms = max(self.append_ms, now_ms)
        for offset, (key, value, header) in enumerate(entries, base):
            self.offsets.append(offset)
            self.records.append(Record(offset, key, value, header, now_ms))
            if self.compacted:
                self.latest[key] = offset
        self.end = base + len(entries)
        if self.compacted and len(self.records) > 2 * len(self.latest) + 64:
            self.compact()
        self.wake()
        return base

    def compact(self) -> None:
        """Drop what a later record of the same key replaces; a deleted key keeps its tombstone."""
        self.records = [r for r in self.records if self.latest[r.key] == r.offset]
        self.offsets = [r.offset for r in self.records]

    def cut(self, offset: int) -> None:
        at = bisect_left(self.offsets, offset)
        del self.offsets[at:], self.records[at:]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        if self.compacted:
            self.latest = {record.key: record.offset for record in self.records}

    def trim(self, before_offset: int) -> None:
        self.start = max(self.start, min(before_offset, self.end))
        at = bisect_left(self.offsets, self.start)
        del self.offsets[:at], self.records[:at]

    def read(self, offset: int, size_max: int, count_max: int | None) -> list[Record]:
        found: list[Record] = []
        size = 0
        for at in range(bisect_left(self.offsets, offset), len(self.records)):
            record = self.records[at]
            found.append(record)
            size += 64 + sum(len(part) for part in record[1:4] if part is not None)
            if size >= size_max or len(found) == count_max:
                break
        return found

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            _post(waiter, _resolve)


@lru_cache
def _topic_ids(namespace: str, incarnation: int) -> tuple[str, ...]:
    names = (f"{namespace}/{topic.value}/{incarnation}" for topic in Topic)
    return tuple(str(uuid.uuid5(uuid.NAMESPACE_URL, name)) for name in names)


class MemoryBroker:
    """The store behind the handles of one namespace: it lives on when a process is killed.

    `now_ms` is the log's clock (append times, leases); `schedule` plans what the broker does by
    itself later (late copies, late answers), by default on the loop of the handle that asked,
    which is not enough where a simulated process may be killed meanwhile. `faults` may be
    replaced at any time.
    """

    def __init__(
        self,
        namespace: str = "default",
        *,
        partition_count: int = 1,
        batch_size_max: int = BATCH_SIZE_MAX,
        lease_ms: int = LEASE_MS,
        now_ms: Callable[[], int] = _wall_ms,
        schedule: Schedule | None = None,
        faults: Faults | None = None,
        can_grow: bool = False,
    ) -> None:
        if partition_count < 1:
            raise ValueError(f"a log has at least one partition, not {partition_count}")
        self.namespace, self.partition_count = namespace, partition_count
        self.batch_size_max, self.lease_ms = batch_size_max, lease_ms
        self.now_ms, self.schedule = now_ms, schedule
        self.can_grow = can_grow
        self.faults = faults if faults is not None else Faults()
        self.append_count = self.read_count = 0
        self.exists = False
        self.incarnation = 0
        # One lock for the whole store: a client and a worker of one test may have a thread each.
        self.lock = threading.RLock()
        self._streams: dict[tuple[Topic, int], _Stream] = {}
        self._leases: dict[int, Lease] = {}
        self._heartbeats: dict[str, int] = {}
        self.recreate()
        self.exists = False

    def recreate(self) -> None:
        """Delete the topics and make new ones, empty and with other ids."""
        with self.lock:
            self.exists = True
            self.incarnation += 1
            self._streams = {
                (topic, partition): _Stream(compacted=topic is Topic.SNAPSHOTS)
                for topic in Topic
                for partition in range(self.partition_count)
            }

    @property
    def facts(self) -> LogFacts:
        """The facts every handle shows. Topic ids follow from name and incarnation, not chance."""
        ids = _topic_ids(self.namespace, self.incarnation)
        counts = (self.partition_count,) * len(Topic) if self.can_grow else ()
        return LogFacts(self.namespace, self.partition_count, ids, self.batch_size_max, counts)

    def grow(self, partition_count: int) -> None:
        """Give every topic more partitions, as an administrator of a cluster may."""
        with self.lock:
            self.partition_count = partition_count
            for topic in Topic:
                for partition in range(partition_count):
                    if (topic, partition) not in self._streams:
                        stream = _Stream(compacted=topic is Topic.SNAPSHOTS)
                        self._streams[(topic, partition)] = stream

    def stream(self, topic: Topic, partition: int) -> _Stream:
        """The store of one partition of one topic. Raises PartitionMissing."""
        stream = self._streams.get((topic, partition))
        if stream is None:
            raise PartitionMissing(
                f"memory://{self.namespace}",
                topic=topic.value,
                partition=partition,
                partition_count=self.partition_count,
            )
        return stream

    # What only a test does: everything below is an act of the world, not of a process.

    def put(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> int:
        """Store a batch from outside, with no fault and no handle; returns its base offset."""
        with self.lock:
            return self.stream(topic, partition).store(entries, self.now_ms())

    def hole(self, topic: Topic, partition: int, count: int = 1) -> None:
        """Leave out the next `count` offsets, as a control record or an aborted batch does."""
        with self.lock:
            stream = self.stream(topic, partition)
            stream.end += count
            stream.wake()

    def cut(self, topic: Topic, partition: int, offset: int) -> None:
        """Lose everything from `offset` on, as an unclean leader election does."""
        with self.lock:
            self.stream(topic, partition).cut(offset)

    def trim(self, topic: Topic, partition: int, before_offset: int) -> None:
        """Delete the records before `before_offset` (DeleteRecords, retention)."""
        with self.lock:
            self.stream(topic, partition).trim(before_offset)

    def drop(self, topic: Topic, partition: int, offset: int) -> None:
        """Take one record away and leave its offset as a hole (compaction does that)."""
        with self.lock:
            stream = self.stream(topic, partition)
            at = bisect_left(stream.offsets, offset)
            if at < len(stream.offsets) and stream.offsets[at] == offset:
                del stream.offsets[at], stream.records[at]

    def compact(self) -> None:
        """Run the cleaner over `snapshots` now; it runs by itself when half of it is old."""
        with self.lock:
            for stream in self._streams.values():
                if stream.compacted:
                    stream.compact()

    def records(self, topic: Topic, partition: int) -> tuple[Record, ...]:
        """Everything stored, for a checker that stands outside of the system."""
        with self.lock:
            return tuple(self.stream(topic, partition).records)

    def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """`(start, end)` of a partition, for a checker that stands outside of the system."""
        with self.lock:
            stream = self.stream(topic, partition)
            return stream.start, stream.end

    def owners(self) -> dict[int, str]:
        """Partition → the owner that holds its lease, dead or alive."""
        return {partition: lease.owner for partition, lease in sorted(self._leases.items())}

    # Leases

    def suggest(self, owner: str) -> frozenset[int]:
        """One heartbeat of `owner`, and the partitions that are its own now."""
        with self.lock:
            now_ms = self.now_ms()
            self._heartbeats[owner] = now_ms
            for member, seen_ms in list(self._heartbeats.items()):
                if now_ms - seen_ms >= self.lease_ms and member != owner:
                    self._forget(member)
            share = share_of(owner, list(self._heartbeats), self._leases, self.partition_count)
            for partition in share.freed:
                del self._leases[partition]
            for partition in share.taken:
                self._leases[partition] = Lease(owner)
            for partition in share.leaving:
                self._leases[partition] = Lease(owner, leaving=True)
            return share.suggested

    def give_up(self, owner: str) -> None:
        """Free the partitions of `owner` at once."""
        with self.lock:
            self._forget(owner)

    def owner_lives(self, partition: int) -> bool | None:
        """What `MemoryLog.owner_lives` answers."""
        with self.lock:
            lease = self._leases.get(partition)
            if lease is None:
                return False
            seen_ms = self._heartbeats.get(lease.owner, self.now_ms() - self.lease_ms)
            return True if self.now_ms() - seen_ms < self.lease_ms else None

    def _forget(self, owner: str) -> None:
        self._heartbeats.pop(owner, None)
        self._leases = {p: lease for p, lease in self._leases.items() if lease.owner != owner}

    def _later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        if self.schedule is not None:
            self.schedule(delay_ms, callback)
        else:
            asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


# A `memory://name` that is opened twice in one process is one log, as a file would be; it is gone
# with its last handle, so that tests do not meet each other.
_brokers: WeakValueDictionary[str, MemoryBroker] = WeakValueDictionary()


class MemoryLog:
    """A handle on a `MemoryBroker`: what one process has of the log.

    Without `broker` the handles of one URL in this process share one. `name` is what the fault
    hook is told, one for each simulated process.
    """

    def __init__(
        self,
        url: str = "memory://default",
        *,
        broker: MemoryBroker | None = None,
        partition_count: int = 1,
        name: str = "",
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "memory" or not parts.netloc or parts.path or parts.query:
            raise LogUrlInvalid(url, "a log in memory is written memory://NAMESPACE")
        if broker is None:
            broker = _brokers.get(parts.netloc)
        if broker is None:
            broker = MemoryBroker(parts.netloc, partition_count=partition_count)
            _brokers[parts.netloc] = broker
        if broker.namespace != parts.netloc:
            url = f"memory://{broker.namespace}"
        self.broker, self.name = broker, name
        self._url = url
        self._open = False
        self._under_way: dict[asyncio.Future[Ack], tuple[Topic, int]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._owners: set[str] = set()

    @property
    def url(self) -> str:
        """The URL it was opened with."""
        return self._url

    @property
    def facts(self) -> LogFacts:
        """Facts of the namespace; raises LogClosed before `open`."""
        self._check_open()
        return self.broker.facts

    async def open(self, *, create: bool) -> bool:
        """Open the handle; with `create` make the topics if there are none, and say so."""
        with self.broker.lock:
            made = False
            if not self.broker.exists:
                if not create:
                    raise LogMissing(self.url, "nobody has made its topics")
                self.broker.exists = made = True
            self._open = True
            return made

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """Nothing: what is in memory was made by this version."""
        return Upgrade()

    async def close(self) -> None:
        """Close the handle: appends under way end as unknown, waits end, leases are freed."""
        self._open = False
        for owner in self._owners:
            self.broker.give_up(owner)
        self._owners.clear()
        for answer, (topic, partition) in self._under_way.items():
            if not answer.done():
                reason = "the handle was closed"
                answer.set_exception(
                    AppendUnknown(topic=topic.value, partition=partition, reason=reason)
                )
        for waiter in list(self._waiting):
            _resolve(waiter)

    def kill(self) -> None:
        """End the handle as SIGKILL ends its process: nothing is given back, nobody is told.

        What it sent stays under way and may still be stored; its leases last until they expire.
        """
        self._open = False
        self._under_way.clear()
        self._waiting.clear()

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append one batch; see the port. Faults decide what becomes of it and of the answer."""
        self._check_open()
        broker, batch = self.broker, tuple(entries)
        check_batch(topic, partition, batch, broker.batch_size_max)
        stream = broker.stream(topic, partition)
        broker.append_count += 1
        fault = broker.faults.on_append(AppendCall(self.name, topic, partition, batch))
        if fault is None:
            with broker.lock:
                now_ms = broker.now_ms()
                offset = stream.store(batch, now_ms)
                ack = Ack(offset, stream.append_ms)
            await asyncio.sleep(0)  # as any other log: the answer comes in a later turn of the loop
            if not self._open:
                raise AppendUnknown(
                    topic=topic.value, partition=partition, reason="the handle was closed"
                )
            return ack
        return await self._append_faulty(topic, partition, batch, stream, fault)

    async def _append_faulty(
        self,
        topic: Topic,
        partition: int,
        batch: tuple[Entry, ...],
        stream: _Stream,
        fault: AppendFault,
    ) -> Ack:
        broker = self.broker
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Ack] = loop.create_future()
        stored: list[Ack] = []

        def store() -> None:
            with broker.lock:
                if fault.hole and not stored:
                    stream.end += fault.hole
                offset = stream.store(batch, broker.now_ms())
                stored.append(Ack(offset, stream.append_ms))

        def tell() -> None:
            if answer.done():
                return
            match fault.answer:
                case Answer.ACK if stored:
                    answer.set_result(stored[0])
                case Answer.NONE:
                    answer.set_result(Ack(None))
                case Answer.MINUS_ONE:
                    answer.set_result(Ack(-1))
                case Answer.SILENCE:
                    pass
                case _:
                    reason = f"no answer within {fault.answer_at_ms} ms"
                    answer.set_exception(
                        AppendUnknown(topic=topic.value, partition=partition, reason=reason)
                    )

        thread = threading.get_ident()

        def send_answer() -> None:
            # In the loop of the process that asked: it may be frozen, or dead, by then.
            _post(_Waiter(answer, loop, thread), lambda _: tell())  # type: ignore[arg-type]

        for at_ms in fault.store_at_ms:
            if at_ms <= 0:
                store()
            else:
                broker._later(at_ms, store)
        if fault.answer_at_ms <= 0:
            loop.call_soon(tell)
        else:
            broker._later(fault.answer_at_ms, send_answer)
        self._under_way[answer] = (topic, partition)
        try:
            return await answer
        finally:
            self._under_way.pop(answer, None)

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """Nothing here holds a loop up."""

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """Read stored records from `offset` on; see the port."""
        self._check_open()
        broker = self.broker
        stream = broker.stream(topic, partition)
        broker.read_count += 1
        fault = broker.faults.on_read(ReadCall(self.name, topic, partition, offset))
        count_max = None
        if fault is not None:
            if fault.delay_ms > 0:
                await asyncio.sleep(fault.delay_ms / 1000)
            if fault.refused:
                raise LogUnavailable(self.url, "a read was not answered")
            count_max = fault.record_count_max
        with broker.lock:
            if offset < stream.start:
                raise OffsetOutOfRange(
                    topic=topic.value,
                    partition=partition,
                    offset=offset,
                    start=stream.start,
                    end=stream.end,
                )
            return stream.read(offset, size_max, count_max)

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """`(start, end)` of the partition."""
        self._check_open()
        return self.broker.bounds(topic, partition)

    async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
        """Wait until a record at or after `offset` is there (or `offset` is not kept any more).

        Time is that of the running loop.
        """
        self._check_open()
        broker = self.broker
        loop = asyncio.get_running_loop()
        thread = threading.get_ident()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            with broker.lock:
                stream = broker.stream(topic, partition)
                if offset < stream.start or (stream.offsets and stream.offsets[-1] >= offset):
                    return True
                left = deadline - loop.time()
                if left <= 0 or not self._open:
                    return False
                future: asyncio.Future[None] = loop.create_future()
                waiter = _Waiter(future, loop, thread)
                stream.waiters.append(waiter)
            self._waiting.add(future)
            timer = loop.call_later(left, _resolve, future)
            try:
                await future
            finally:
                timer.cancel()
                self._waiting.discard(future)
                with broker.lock:
                    if waiter in stream.waiters:
                        stream.waiters.remove(waiter)

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Delete the records before `before_offset`; see the port."""
        self._check_open()
        self.broker.trim(topic, partition, before_offset)
        return self.broker.bounds(topic, partition)[0]

    async def suggest(self, owner: str) -> Suggestion:
        """One heartbeat of `owner`: the partitions that the leases give to it now."""
        self._check_open()
        self._owners.add(owner)
        partitions = self.broker.suggest(owner)
        return Suggestion(self.broker.faults.on_suggest(self.name, owner, partitions))

    async def owner_lives(self, partition: int) -> bool | None:
        """Whether the holder of the partition's lease is alive; None if its heartbeat stopped."""
        self._check_open()
        return self.broker.owner_lives(partition)

    async def give_up(self, owner: str) -> None:
        """Free the leases of `owner`."""
        self._check_open()
        self._owners.discard(owner)
        self.broker.give_up(owner)

    def _check_open(self) -> None:
        if not self._open:
            raise LogClosed(self._url)
