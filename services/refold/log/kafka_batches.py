"""Appending to Kafka: one record batch for each call, sent once, and what its answer means."""

import asyncio
import struct
import time
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from refold.log.kafka_fetch import HEADER
from refold.log.port import Ack, Entry

COMPRESS_FROM: Final = 1 << 10
"""A smaller batch, which is one of one or two events, costs more time than it saves bytes."""
COMPRESS_LEVEL: Final = 1
"""The fastest: for events the slowest takes six times as long and saves a twentieth."""
REQUEST_SIZE: Final = 4 << 20
"""Batches go together in one request up to this size; one alone may be larger."""
CONNECTION: Final = "appends"
"""A connection of their own: a broker answers the requests of one connection in their order."""
_ACKS_ALL: Final = -1
_MAGIC: Final = 2
_NO_COMPRESSION, _GZIP = 0, 1
_GZIP_FRAME: Final = 16 + zlib.MAX_WBITS
# Where a batch has its length, its checksum and its attributes; the records follow its header.
# Source: Kafka, message format, record batch.
_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _RECORDS_AT = 8, 17, 21, 61
_LENGTH_COUNTS_FROM: Final = 12
# Raised before anything is sent, or said by a broker that has not stored the batch.
NOT_STORED: Final = (
    errors.LeaderNotAvailableError,
    errors.NodeNotReadyError,
    errors.NotEnoughReplicasError,
)
MOVED: Final = (errors.NotLeaderForPartitionError, errors.UnknownTopicOrPartitionError)
"""Said by a broker that does not lead the partition. If it did when the batch came, it has stored
it, and so may the next leader have (Kafka, DelayedProduce: cases A and B). It is sent again all the
same, for most have not, and every reader skips a copy; but it is not known not to be stored."""
AGAIN: Final = (*NOT_STORED, *MOVED)
REFUSED: Final = (
    errors.ClusterAuthorizationFailedError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
)
"""Not stored, and trying again is of no use."""


class SenderClosed(Exception):
    """The handle was closed while an append had no answer."""


class Waiting(NamedTuple):
    """A batch on its way, and who waits for its answer."""

    place: TopicPartition
    batch: bytes
    answer: "asyncio.Future[Ack]"


class Sender:
    """Sends batches of one handle: acks=all, no idempotence, and each once.

    An idempotent producer would add nothing but fatal states: the fold skips duplicates. Neither
    is a batch sent again after no answer: that would store it late, and twice, where the caller
    has long begun a new claim.

    Each broker has one request at a time; what is appended meanwhile goes with the next, one batch
    for each partition. A broker would take a second request of the connection no sooner.
    """

    def __init__(self, client: AIOKafkaClient, timeout_ms: int) -> None:
        self._client, self._timeout_ms = client, timeout_ms
        self._queues: dict[int, deque[Waiting]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    async def send(self, place: TopicPartition, batch: bytes) -> Ack:
        """Append `batch` and wait for its answer.

        Raises the errors of `NOT_STORED` if it is certain that it was not stored, those of `MOVED`
        if another broker has to be asked, SenderClosed, and any other error where nobody knows.
        """
        if self._closed:
            raise SenderClosed
        leader = self._client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            raise errors.LeaderNotAvailableError(f"{place.topic} partition {place.partition}")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Ack] = loop.create_future()
        queue = self._queues.get(leader)
        if queue is None:
            queue = self._queues[leader] = deque()
        queue.append(Waiting(place, batch, answer))
        if leader not in self._tasks:
            # Its first turn comes after this one of the loop: what is appended in it goes together.
            self._tasks[leader] = loop.create_task(self._drain(leader, queue))
        return await answer

    async def _drain(self, leader: int, queue: deque[Waiting]) -> None:
        try:
            while queue:
                together = take(queue)
                if together:
                    await self._request(leader, together)
        finally:
            del self._tasks[leader]

    async def _request(self, leader: int, together: dict[TopicPartition, Waiting]) -> None:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for place, waiting in together.items():
            topics.setdefault(place.topic, []).append((place.partition, waiting.batch))
        request = ProduceRequest(None, _ACKS_ALL, self._timeout_ms, list(topics.items()))
        try:
            response = await self._client.send(leader, request, group=CONNECTION)
            for topic, partitions in response.topics:
                for partition, code, offset, append_ms, *_ in partitions:
                    waiting = together.pop(TopicPartition(topic, partition))
                    _tell(waiting.answer, code, offset, append_ms)
            _fail(together.values(), errors.KafkaError("the answer does not speak of the batch"))
        except asyncio.CancelledError:
            _fail(together.values(), SenderClosed())
            raise
        except Exception as error:  # whatever it is: who waits must hear of it
            _fail(together.values(), error)

    async def close(self) -> None:
        """What has no answer by now never gets one."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for queue in self._queues.values():  # a task that was cancelled before its first turn
            _fail(queue, SenderClosed())
            queue.clear()


def take(queue: deque[Waiting]) -> dict[TopicPartition, Waiting]:
    """The oldest batch of each partition, up to a request's size; none that nobody waits for."""
    together: dict[TopicPartition, Waiting] = {}
    left: list[Waiting] = []
    passed: set[TopicPartition] = set()
    size = 0
    while queue and size < REQUEST_SIZE:
        waiting = queue.popleft()
        if waiting.answer.done():
            continue
        place, size_with = waiting.place, size + len(waiting.batch)
        if place in together or place in passed or (together and size_with > REQUEST_SIZE):
            left.append(waiting)
            passed.add(place)  # no later batch of the partition overtakes it
            continue
        together[place] = waiting
        size = size_with
    queue.extendleft(reversed(left))
    return together


def _tell(answer: "asyncio.Future[Ack]", code: int, offset: int, append_ms: int) -> None:
    if answer.done():
        return
    error = errors.for_code(code)
    if error is errors.NoError:
        answer.set_result(Ack(offset, None if append_ms < 0 else append_ms))
    else:
        answer.set_exception(error())


def _fail(many: Any, error: BaseException) -> None:
    for waiting in many:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def build_batch(entries: Sequence[Entry], size: int) -> bytes:
    """One record batch of `entries`. `size` is the most that they can take, uncompressed."""
    builder = DefaultRecordBatchBuilder(_MAGIC, _NO_COMPRESSION, 0, -1, -1, 0, size)
    now_ms = time.time_ns() // 1_000_000
    for number, (key, value, header) in enumerate(entries):
        headers = [] if header is None else [(HEADER, header)]
        added = builder.append(number, now_ms, key, value, headers)
        # None would mean: full, and everything from here on is left out.
        assert added is not None, f"{len(entries)} entries do not fit into {size} bytes"
    batch = bytes(builder.build())
    if len(batch) < COMPRESS_FROM:
        return batch
    # What does not compress becomes larger: then it may be more than the broker takes.
    return min(compressed(batch), batch, key=len)


def compressed(batch: bytes) -> bytes:
    """The same batch with its records compressed; aiokafka knows the slowest level only."""
    packer = zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, _GZIP_FRAME)
    packed = bytearray(batch[:_RECORDS_AT])
    packed += packer.compress(memoryview(batch)[_RECORDS_AT:])
    packed += packer.flush()
    struct.pack_into(">i", packed, _LENGTH_AT, len(packed) - _LENGTH_COUNTS_FROM)
    struct.pack_into(">h", packed, _ATTRIBUTES_AT, _GZIP)
    struct.pack_into(">I", packed, _CRC_AT, calc_crc32c(memoryview(packed)[_ATTRIBUTES_AT:]))
    return bytes(packed)
