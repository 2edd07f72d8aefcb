"""What several of a process ask the Kafka log at once, or have asked and wait for no more."""

import asyncio
import gc

import pytest
from aiokafka.errors import NodeNotReadyError
from aiokafka.structs import TopicPartition

from refold.log.kafka_fetch import Fetched, OutOfRange, Reader

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


class Cut(Reader):
    """The log ends before what was known of it."""

    def __init__(self) -> None:
        super().__init__(None)
        self._ends[PLACE] = 100

    async def _fetch(
        self, place: TopicPartition, offset: int, size_max: int, *, wait_ms: int = 0
    ) -> Fetched:
        await asyncio.sleep(0)
        raise OutOfRange

    async def _offset_at(self, place: TopicPartition, which: int) -> int:
        await asyncio.sleep(0)
        return 7


def test_two_who_ask_where_a_cut_log_ends_are_both_told() -> None:
    async def main() -> list[tuple[int, int]]:
        reader = Cut()
        return await asyncio.gather(*(reader.bounds(PLACE) for _ in range(2)))

    assert asyncio.run(main()) == [(7, 7), (7, 7)]


def test_a_poll_that_fails_tells_who_waits() -> None:
    async def main() -> None:
        reader = Lost()
        waiting = asyncio.create_task(reader.wait(PLACE, 0, 60))
        await asyncio.sleep(0)
        reader.gone.set()
        with pytest.raises(NodeNotReadyError):
            await waiting

    asyncio.run(main())
