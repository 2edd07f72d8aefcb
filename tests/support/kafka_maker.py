"""What the conformance suite may do to a log on a real Kafka broker: all but clean at once.

A broker's cleaner never touches the newest segment of a compacted topic, and nothing but another
append closes that one: so `Can.COMPACT` is tested by a test of its own.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from aiokafka import AIOKafkaProducer
from aiokafka.structs import TopicPartition

from refold.log import Ack, Entry, Log, Topic
from refold.log.kafka import KafkaLog
from refold.log.kafka_access import Access
from refold.testing.log_conformance import Can, MakeLog
from support.kafka_broker import Broker

CUT = "the connection breaks after the request"
REFUSED = "the connection breaks before the request"
FROZEN = "closed while the broker answers nothing"
NONE, MINUS_ONE = "stored, None", "stored, -1"


class MakeKafkaLog(MakeLog):
    can: ClassVar[frozenset[Can]] = frozenset(Can) - {Can.COMPACT}
    lost_answers: ClassVar[tuple[str, ...]] = (CUT, REFUSED, FROZEN, NONE, MINUS_ONE)

    def __init__(self, broker: Broker, *, partitions: int = 5, session_ms: int = 1_500) -> None:
        self.broker, self.partitions, self.session_ms = broker, partitions, session_ms
        self.namespace = f"suite-{uuid.uuid4().hex[:12]}"
        self.round_ms = 100

    def __call__(self) -> KafkaLog:
        return KafkaLog(
            f"kafka://{self.broker.server}/{self.namespace}?partitions={self.partitions}",
            access=Access(),
            batch_size_max=128 * 1024,
            session_ms=self.session_ms,
            hand_over_ms=300,
        )

    async def kill(self, log: Log) -> None:
        assert isinstance(log, KafkaLog)
        await log.kill()

    async def hole(self, log: Log, topic: Topic, partition: int, count: int) -> None:
        # Another writer's transactions that hold nothing: of each there stays its end marker.
        producer = AIOKafkaProducer(
            bootstrap_servers=self.broker.server, transactional_id=uuid.uuid4().hex
        )
        await producer.start()
        _, end = await log.bounds(topic, partition)
        for at in range(count):
            await producer.begin_transaction()
            place = TopicPartition(f"{self.namespace}.{topic.value}", partition)
            producer._txn_manager.maybe_add_partition_to_txn(place)
            producer._message_accumulator._wakeup(producer._message_accumulator.waiter())
            await producer.commit_transaction()
            # The marker is written after the answer, and a broker has no event to wait for.
            while (await log.bounds(topic, partition))[1] <= end + at:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await producer.stop()

    async def append_unanswered(
        self, way: str, log: Log, topic: Topic, partition: int, entries: Sequence[Entry]
    ) -> Ack:
        assert isinstance(log, KafkaLog)
        if way in (NONE, MINUS_ONE):
            return await self._answered(None if way == NONE else -1, log, topic, partition, entries)
        if way == FROZEN:
            return await self._frozen(log, topic, partition, entries)
        client = client_of(log)
        send = client.send

        async def broken(node_id: int, request: object, **group: object) -> object:
            connection = await client._get_conn(node_id, **group)
            if way == REFUSED:
                connection.close()
            answer = asyncio.ensure_future(send(node_id, request, **group))
            await asyncio.sleep(0)
            if way == CUT:
                await asyncio.sleep(0)
                connection.close()
            return await answer

        client.send = broken
        try:
            return await log.append(topic, partition, entries)
        finally:
            client.send = send

    async def _frozen(
        self, log: KafkaLog, topic: Topic, partition: int, entries: Sequence[Entry]
    ) -> Ack:
        self.broker.freeze()
        try:
            append = asyncio.ensure_future(log.append(topic, partition, entries))
            await asyncio.sleep(0.05)
            closing = asyncio.ensure_future(log.close())
            return await append
        finally:
            self.broker.thaw()
            await closing

    async def _answered(
        self,
        offset: int | None,
        log: KafkaLog,
        topic: Topic,
        partition: int,
        entries: Sequence[Entry],
    ) -> Ack:
        """The batch is stored, and the client says what one with idempotence may say."""
        sender = log._sender
        assert sender is not None
        send = sender.send

        async def told(place: TopicPartition, batch: bytes) -> Ack:
            return (await send(place, batch))._replace(offset=offset)

        sender.send = told  # type: ignore[method-assign]
        try:
            return await log.append(topic, partition, entries)
        finally:
            sender.send = send  # type: ignore[method-assign]


def client_of(log: KafkaLog) -> Any:
    """The client behind a handle."""
    return log._client
