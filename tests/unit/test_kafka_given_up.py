"""What the Kafka log has asked for and nobody waits for any more: it fails in silence."""

import asyncio
import gc

import pytest
from aiokafka.errors import NodeNotReadyError
from aiokafka.structs import TopicPartition

from refold.log.kafka_fetch import Reader

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
