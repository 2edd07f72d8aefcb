"""What the Kafka log has asked for and nobody waits for any more: it fails in silence."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import TopicPartition

from refold.log.kafka_batches import Sender
from refold.log.kafka_fetch import Reader
from refold.log.port import Entry

PLACE = TopicPartition("ns.events", 0)


class Lost(Reader):
    """Its broker is gone once everybody has stopped waiting."""

    def __init__(self) -> None:
        super().__init__(None)
        self._ends[PLACE] = 0
        self.gone = asyncio.Event()

    async def _poll(self, place: TopicPartition) -> None:
        await self.gone.wait()
        raise NodeNotReadyError


def test_a_poll_that_fails_when_nobody_waits_is_forgotten_in_silence() -> None:
    unheard: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
        reader = Lost()
        assert not await reader.wait(PLACE, 0, 0.001)
        reader.gone.set()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        await reader.close()

    asyncio.run(main())
    assert unheard == []


def test_a_poll_that_fails_tells_who_waits() -> None:
    async def main() -> None:
        reader = Lost()
        waiting = asyncio.create_task(reader.wait(PLACE, 0, 60))
        await asyncio.sleep(0)
        reader.gone.set()
        with pytest.raises(NodeNotReadyError):
            await waiting

    asyncio.run(main())


class Producer:
    """Answers as aiokafka's does: with a shield before the future of the batch."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._message_accumulator = SimpleNamespace(_batch_ttl=0)

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(1_000, 0)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Any:
        return asyncio.shield(self.answer)


def test_an_append_that_was_given_up_fails_in_silence() -> None:
    """Seen with two of three brokers lost: a traceback on the console for each late failure."""
    unheard: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
        producer = Producer()
        sender = Sender(producer, 1_000)
        sending = asyncio.create_task(sender.send(PLACE, [Entry(b"k", b"v")], 100, 60))
        await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait([sending])
        producer.answer.set_exception(KafkaConnectionError())
        del producer, sender
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(main())
    assert unheard == []
