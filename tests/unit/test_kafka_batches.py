"""What is sent to a broker: what goes together, and that a compressed batch reads as before."""

import asyncio
from collections import deque
from random import Random
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
)
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from refold.log import Ack, Entry, LogFacts, Topic, batch_size, kafka
from refold.log.kafka import KafkaLog
from refold.log.kafka_batches import COMPRESS_FROM, REQUEST_SIZE, Waiting, build_batch, take
from refold.log.kafka_fetch import Reader
from refold.log.sizes import BATCH_SIZE_MAX
from refold_schemas.errors import AppendUnknown, LogUnavailable

PLACES = [TopicPartition("ns.events", partition) for partition in range(3)]


@pytest.mark.parametrize(
    ("count", "compressed"), [(1, False), (2, True), (64, True), (1_000, True)]
)
def test_a_batch_reads_as_it_was_built(count: int, compressed: bool) -> None:
    entries = [
        Entry(None if number % 3 == 0 else b"run-%d" % number, b"value %d " % number * 30, header)
        for number, header in enumerate([None, b"h" * 44] * count)
    ]
    size = batch_size(entries)
    data = build_batch(entries, size)
    assert len(data) <= size
    batches = MemoryRecords(data)
    batch = batches.next_batch()
    assert batch.validate_crc()
    assert (batch.compression_type != 0) == compressed
    assert (size > COMPRESS_FROM) == compressed
    read = [Entry(record.key, record.value, dict(record.headers).get("refold")) for record in batch]
    assert read == entries
    assert not batches.has_next()


def test_a_batch_that_does_not_compress_is_no_larger_than_was_counted() -> None:
    entries = [Entry(None, Random(1).randbytes(BATCH_SIZE_MAX - 61 - 48))]
    assert batch_size(entries) == BATCH_SIZE_MAX
    data = build_batch(entries, BATCH_SIZE_MAX)
    assert len(data) <= BATCH_SIZE_MAX
    batch = MemoryRecords(data).next_batch()
    assert batch.validate_crc()
    assert [record.value for record in batch] == [entries[0].value]


def test_a_request_takes_the_oldest_batch_of_each_partition_and_none_without_a_waiter() -> None:
    async def main() -> None:
        def waiting(place: TopicPartition, batch: bytes) -> Waiting:
            return Waiting(place, batch, asyncio.get_running_loop().create_future())

        a, b, c = PLACES
        given_up = waiting(a, b"given up")
        given_up.answer.cancel()
        told = waiting(b, b"told")
        told.answer.set_result(Ack(1))
        large = b"x" * REQUEST_SIZE
        order = [
            given_up,
            waiting(a, b"a1"),
            told,
            waiting(b, b"b1"),
            waiting(a, b"a2"),
            waiting(c, large),
            waiting(b, b"b2"),
            waiting(a, b"a3"),
            waiting(c, b"c2"),
        ]
        queue = deque(order)
        taken = []
        while queue:
            taken.append([one.batch for one in take(queue).values()])
        assert taken == [[b"a1", b"b1"], [b"a2", b"b2"], [large], [b"a3", b"c2"]]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([NotEnoughReplicasError()], "not stored"),
        ([NotLeaderForPartitionError()], "unknown"),
        ([NotLeaderForPartitionError(), NotEnoughReplicasError()], "unknown"),
        ([NotEnoughReplicasError(), NotLeaderForPartitionError()], "unknown"),
        ([NotLeaderForPartitionError(), TopicAuthorizationFailedError()], "unknown"),
        ([NotLeaderForPartitionError(), Ack(7)], "stored"),
    ],
)
def test_who_leads_a_partition_no_more_may_have_stored_the_batch(
    monkeypatch: pytest.MonkeyPatch, said: list[KafkaError | Ack], told: str
) -> None:
    """Kafka answers so too where the leader moves while the followers are waited for."""

    class Client:
        async def force_metadata_update(self) -> None: ...

    class Answers:
        async def send(self, place: TopicPartition, batch: bytes) -> Ack:
            answer = said.pop(0) if len(said) > 1 else said[0]
            if isinstance(answer, Ack):
                return answer
            raise answer

    async def main() -> str:
        log = KafkaLog("kafka://localhost:9092/ns")
        state = {"open": True, "facts": LogFacts("ns", 1, (), 1 << 20), "client": Client()}
        state |= {"sender": Answers(), "closing": asyncio.get_running_loop().create_future()}
        state |= {"places": {(Topic.EVENTS, 0): PLACES[0]}, "reader": Reader(Any)}
        for name, value in state.items():
            monkeypatch.setattr(log, f"_{name}", value)
        try:
            await log.append(Topic.EVENTS, 0, [Entry(b"k", b"v")])
        except AppendUnknown:
            return "unknown"
        except LogUnavailable as error:
            return "not stored" if error.stored is False else "unknown"
        return "stored"

    monkeypatch.setattr(kafka, "APPEND_TIMEOUT_MS", 100)
    monkeypatch.setattr(kafka, "RETRY_PAUSE_S", 0.03)
    assert asyncio.run(main()) == told
