"""What the conformance suite may do to a log in memory: everything."""

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from refold.log import Ack, Entry, Log, Topic
from refold.log.memory import Answer, AppendCall, AppendFault, Faults, MemoryBroker, MemoryLog
from refold.testing.log_conformance import Can, MakeLog

LOST_ANSWERS = {
    "stored, then an error": AppendFault(answer=Answer.ERROR),
    "an error, not stored": AppendFault(store_at_ms=(), answer=Answer.ERROR),
    "stored, None": AppendFault(answer=Answer.NONE),
    "not stored, None": AppendFault(store_at_ms=(), answer=Answer.NONE),
    "stored, -1": AppendFault(answer=Answer.MINUS_ONE),
    "not stored, -1": AppendFault(store_at_ms=(), answer=Answer.MINUS_ONE),
    "an error, stored later": AppendFault(store_at_ms=(60,), answer=Answer.ERROR, answer_at_ms=20),
    "an error, stored twice": AppendFault(store_at_ms=(0, 60), answer=Answer.ERROR),
}


class OneFault(Faults):
    """The next append of any handle meets `fault`, the others none."""

    def __init__(self) -> None:
        self.fault: AppendFault | None = None

    def on_append(self, call: AppendCall) -> AppendFault | None:
        fault, self.fault = self.fault, None
        return fault


class VirtualTime:
    """A clock that stands still until the test moves it, and what is planned for later."""

    def __init__(self) -> None:
        self.now = 5_000_000
        self.planned: list[tuple[int, Callable[[], None]]] = []

    def now_ms(self) -> int:
        return self.now

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self.planned.append((self.now + delay_ms, callback))

    def advance(self, time_ms: int) -> None:
        until = self.now + time_ms
        while due := sorted((p for p in self.planned if p[0] <= until), key=lambda p: p[0]):
            self.planned.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = until


class MakeMemoryLog(MakeLog):
    can: ClassVar[frozenset[Can]] = frozenset(Can)
    lost_answers: ClassVar[tuple[str, ...]] = tuple(LOST_ANSWERS)

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.faults = OneFault()
        self.round_ms = 500
        self.broker = MemoryBroker(
            "suite",
            partition_count=5,
            batch_size_max=128 * 1024,
            now_ms=self.time.now_ms,
            schedule=self.time.schedule,
            faults=self.faults,
        )

    def memory_log(self, log: Log) -> MemoryLog:
        assert isinstance(log, MemoryLog)
        return log

    def __call__(self) -> Log:
        return MemoryLog("memory://suite", broker=self.broker)

    async def pass_time(self, time_ms: int) -> None:
        self.time.advance(time_ms)
        await asyncio.sleep(0)

    async def kill(self, log: Log) -> None:
        self.memory_log(log).kill()

    async def hole(self, log: Log, topic: Topic, partition: int, count: int) -> None:
        self.broker.hole(topic, partition, count)

    async def compact(self, log: Log) -> None:
        self.broker.compact()

    async def append_unanswered(
        self, way: str, log: Log, topic: Topic, partition: int, entries: Sequence[Entry]
    ) -> Ack:
        self.faults.fault = LOST_ANSWERS[way]
        append = asyncio.ensure_future(log.append(topic, partition, entries))
        while not append.done():
            await self.pass_time(10)
        return await append
