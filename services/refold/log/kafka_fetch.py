"""Reading from Kafka by offset: fetches, bounds and long polls, with no group and no position.

One request is one answer about one partition: nothing is fetched ahead, and nothing is kept that a
cut of the log could make wrong, but for the moment between a wait and the read that follows it:
what a long poll was answered with is what that read gets. Long polls have connections of their own,
since a broker answers the requests of one connection one after the other.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from refold.log.port import Record
from refold.log.sizes import RECORD_OVERHEAD

HEADER = "refold"
RETRY_MS = 5_000
"""How long a read looks for the leader, for a connection to it, or for what a broker owes it."""
RETRY_PAUSE_S = 0.1
ASK_S = 10.0
"""How long one request may be without an answer: a broker that is frozen keeps its connections."""
POLL_MS = 5_000
"""How long a broker holds a long poll; the next one follows only if somebody still waits."""
POLL_SIZE = 64 << 10
"""A reader that falls behind gets so much at once: it waits for fewer answers, and catches up."""
ONE = 1
"""A size to be read of which the broker makes one batch."""
HANDED_ON_S = 0.02
"""So long after a wait its poll's answer is that of the read behind it, as if it came that late."""
TRIM_TIMEOUT_MS = 10_000
_READ_UNCOMMITTED = 0
_EARLIEST, _LATEST = -2, -1

Answer = TypeVar("Answer")


class Fetched(NamedTuple):
    """What a fetch found: records at or after the offset, where to go on, and the log's bounds."""

    records: list[Record]
    offset_next: int
    start: int
    end: int


class OutOfRange(Exception):
    """The offset asked for is below the log's start or behind its end."""


class Reader:
    """Reads of one handle. Errors are those of aiokafka, and TimeoutError."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._client = client
        # The end of what is readable: it falls only if the log was cut.
        self._ends: dict[TopicPartition, int] = {}
        self._polls: dict[TopicPartition, asyncio.Task[Fetched | None]] = {}
        self._handed_on: dict[TopicPartition, tuple[Fetched, float]] = {}
        """What a poll has found and nobody has read yet, and until when it may be read."""

    async def close(self) -> None:
        """End the polls under way."""
        polls = list(self._polls.values())
        for poll in polls:
            poll.cancel()
        if polls:
            await asyncio.wait(polls)

    async def read(self, place: TopicPartition, offset: int, size_max: int) -> list[Record]:
        """Records from `offset` on, at least one if there is any.

        Raises OutOfRange, and KafkaTimeoutError where for `RETRY_MS` the broker sends nothing of
        what it says is there.
        """
        handed_on = self._handed_on.pop(place, None)
        if handed_on is not None:
            found, until_s = handed_on
            if found.records[0].offset == offset and asyncio.get_running_loop().time() < until_s:
                return found.records
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_MS / 1000
        while True:
            fetched = await self._retried(partial(self._fetch, place, offset, size_max))
            if fetched.records or fetched.offset_next >= fetched.end:
                return fetched.records
            if fetched.offset_next > offset:
                # Nothing but control records, or what compaction has left of a batch.
                offset, deadline = fetched.offset_next, loop.time() + RETRY_MS / 1000
                continue
            if loop.time() > deadline:  # the broker sent nothing: it says so by no error
                raise errors.KafkaTimeoutError(
                    f"{place.topic} partition {place.partition} ends at {fetched.end}, and nothing "
                    f"is sent from {offset} on"
                )
            await asyncio.sleep(RETRY_PAUSE_S)

    async def bounds(self, place: TopicPartition) -> tuple[int, int]:
        """`(start, end)` of the partition."""
        known = self._ends.get(place)
        if known is not None:  # one request, which says both, instead of two
            try:
                fetched = await self._retried(partial(self._fetch, place, known, ONE))
                return fetched.start, fetched.end
            except OutOfRange:
                # The log was cut, or trimmed up to its end. Who asks at the same time says so too.
                self._ends.pop(place, None)
        start, end = await asyncio.gather(
            self._retried(partial(self._offset_at, place, _EARLIEST)),
            self._retried(partial(self._offset_at, place, _LATEST)),
        )
        self._ends[place] = end
        return start, end

    async def wait(self, place: TopicPartition, offset: int, timeout_s: float) -> bool:
        """Whether a record at or after `offset` is there within the time, or that is trimmed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if timeout_s <= 0:
            await self.bounds(place)  # what is known of the end may be old
        looked = offset  # from `offset` up to here there is no record, only holes
        while True:
            end = self._ends.get(place)
            if end is None or looked < end:
                try:
                    if await self.read(place, looked, ONE):
                        return True
                    looked = max(looked, self._ends.get(place, looked))
                except OutOfRange:
                    start, _ = await self.bounds(place)
                    if offset < start:
                        return True
                    looked = offset
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            poll = self._polls.get(place)
            if poll is None:
                poll = asyncio.create_task(self._poll(place))
                self._polls[place] = poll
                poll.add_done_callback(partial(self._poll_ended, place))
            # Not cancelled with its waiter: the next one joins it.
            await asyncio.wait([poll], timeout=left_s)
            if poll.done():
                if poll.cancelled():
                    return False  # the handle is being closed
                found = poll.result()
                if found is not None and found.records and found.records[0].offset >= looked:
                    self._handed_on[place] = (found, loop.time() + HANDED_ON_S)
                    return True

    def acknowledged(self, place: TopicPartition, end: int) -> None:
        """An append was acknowledged: what lies before `end` can be read from now on."""
        self._ends[place] = max(end, self._ends.get(place, end))

    async def trim(self, place: TopicPartition, before_offset: int) -> None:
        """Delete the records before an offset. Raises OutOfRange where that is none of the log."""
        self._handed_on.pop(place, None)

        async def ask() -> None:
            request = DeleteRecordsRequest(
                [(place.topic, [(place.partition, before_offset)])], TRIM_TIMEOUT_MS
            )
            response = await self._client.send(self._leader(place), request)
            error = errors.for_code(response.topics[0][1][0][2])
            if error is errors.OffsetOutOfRangeError:
                raise OutOfRange
            if error is not errors.NoError:
                raise error()

        await self._retried(ask)

    def _poll_ended(self, place: TopicPartition, poll: asyncio.Task[Fetched | None]) -> None:
        self._polls.pop(place, None)
        if not poll.cancelled():
            poll.exception()  # who waited may have gone since: then it is nobody's

    async def _poll(self, place: TopicPartition) -> Fetched | None:
        """Until the partition grows beyond the end that is known, or `POLL_MS`: what is there."""
        end = self._ends.get(place)
        if end is None:
            _, end = await self.bounds(place)
        try:
            return await self._retried(partial(self._fetch, place, end, POLL_SIZE, wait_ms=POLL_MS))
        except OutOfRange:
            self._ends.pop(place, None)
            return None

    async def _retried(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until there is an answer: leaders move, connections break."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_MS / 1000
        while True:
            try:
                async with asyncio.timeout(ASK_S):
                    return await ask()
            except errors.KafkaError as error:
                if not error.retriable or loop.time() > deadline:
                    raise
                if error.invalid_metadata:
                    await refreshed(self._client, deadline)
            await asyncio.sleep(RETRY_PAUSE_S)

    def _leader(self, place: TopicPartition) -> int:
        leader = self._client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            raise errors.LeaderNotAvailableError(f"{place.topic} partition {place.partition}")
        return int(leader)

    async def _fetch(
        self, place: TopicPartition, offset: int, size_max: int, *, wait_ms: int = 0
    ) -> Fetched:
        request = FetchRequest(
            wait_ms,
            1,
            size_max,
            _READ_UNCOMMITTED,
            [(place.topic, [(place.partition, offset, size_max)])],
        )
        leader, known = self._leader(place), self._ends.get(place, 0)
        group: dict[str, Any] = {"group": place} if wait_ms else {}
        response = await self._client.send(leader, request, **group)
        [(_, [answer])] = response.topics
        # Partition, error, end, last stable offset, start, (aborted, replica,) records.
        code, end, start, data = answer[1], answer[2], answer[4], answer[-1]
        error = errors.for_code(code)
        if error is errors.OffsetOutOfRangeError:
            raise OutOfRange
        if error is not errors.NoError:
            raise error()
        if end < known:
            # A new leader has yet to learn how far the others have come, and shows less than was
            # acknowledged. It says so when it is asked for its end (KIP-207), not to a fetch.
            self._ends[place] = await self._offset_at(place, _LATEST)
            raise errors.LeaderNotAvailableError(f"{place.topic} is behind what was acknowledged")
        self._ends[place] = max(end, self._ends.get(place, end))
        return _unpack(data, offset, start, end, size_max)

    async def _offset_at(self, place: TopicPartition, which: int) -> int:
        request = OffsetRequest(-1, _READ_UNCOMMITTED, [(place.topic, [(place.partition, which)])])
        response = await self._client.send(self._leader(place), request)
        [(_, [answer])] = response.topics
        error = errors.for_code(answer[1])
        if error is not errors.NoError:
            raise error()
        return int(answer[3])


async def refreshed(client: AIOKafkaClient, deadline: float) -> None:
    """Wait for fresh metadata, until `deadline` on the loop's clock: a frozen broker sends none.

    Whoever asks goes on with what is known; what comes later serves the next one.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await client.force_metadata_update()


def _unpack(data: bytes, offset: int, start: int, end: int, size_max: int) -> Fetched:
    """The records of a fetched piece of the log, about `size_max` bytes once decompressed.

    A batch that is cut off at the piece's end is left out: the broker sends the first one whole.
    """
    records: list[Record] = []
    offset_next = offset
    size = 0
    batches = MemoryRecords(data)
    while size < size_max and batches.has_next():
        batch = batches.next_batch()
        if not batch.validate_crc():
            raise errors.CorruptRecordException(f"at offset {batch.base_offset}")
        offset_next = max(offset_next, batch.next_offset)
        if batch.is_control_batch:
            continue
        for record in batch:
            at = record.offset
            if at < offset:  # the batch begins before what was asked for
                continue
            header: bytes | None = None
            for name, given in record.headers:
                if name == HEADER:
                    header = given
            parts = (at, record.key, record.value, header, record.timestamp)
            size += RECORD_OVERHEAD
            for part in parts[1:4]:
                if part is not None:
                    size += len(part)
            records.append(tuple.__new__(Record, parts))
    return Fetched(records, offset_next, start, end)
