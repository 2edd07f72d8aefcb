"""A crowd that publishes at once: the first are on their way while the others still wait."""

import asyncio
from collections.abc import Sequence

from refold import App, RunContext
from refold.client import Client
from refold.client.client import CALLERS_AT_ONCE
from refold.client.turns import Turns
from refold.log import Ack, Entry, Topic
from refold.log.memory import MemoryLog
from refold.worker import Worker

app = App("crowd")


@app.run("one")
async def one(ctx: RunContext, number: int) -> int:
    """Returns what it was given."""
    return number


def test_a_crowd_is_let_through_in_its_order_a_few_in_each_turn_of_the_loop() -> None:
    async def main() -> None:
        turns, passed = Turns(3), list[int]()

        async def caller(number: int) -> None:
            await turns.take()
            passed.append(number)

        callers = [asyncio.create_task(caller(number)) for number in range(8)]
        seen = list[int]()
        while not all(task.done() for task in callers):
            await asyncio.sleep(0)
            seen.append(len(passed))
        assert passed == list(range(8))
        assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) == 3

    asyncio.run(main())


def test_a_caller_that_gave_up_takes_nobodys_turn() -> None:
    async def main() -> None:
        turns, passed = Turns(1), list[int]()

        async def caller(number: int) -> None:
            await turns.take()
            passed.append(number)

        callers = [asyncio.create_task(caller(number)) for number in range(4)]
        await asyncio.sleep(0)
        callers[1].cancel()
        callers[2].cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert passed == [0, 3]

    asyncio.run(main())


def test_who_comes_alone_does_not_wait() -> None:
    async def main() -> None:
        turns = Turns(1)
        taking = turns.take()
        try:
            taking.send(None)
        except StopIteration:
            return
        raise AssertionError("it waited for a turn of the loop")

    asyncio.run(main())


class Noting(MemoryLog):
    """A log that notes how many commands come in each batch."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.batches: list[int] = []

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append them, noted."""
        if topic is Topic.COMMANDS:
            self.batches.append(len(entries))
        return await super().append(topic, partition, entries)


def test_the_first_commands_of_a_crowd_are_sent_before_the_last_are_made() -> None:
    async def main() -> None:
        log = Noting("memory://crowd")
        await log.open(create=True)
        worker = Worker(app, log)
        serving = asyncio.create_task(worker.run())
        count = 10 * CALLERS_AT_ONCE
        async with Client(log) as client:
            handles = await asyncio.gather(
                *(client.start("one", number, run_id=f"run-{number}") for number in range(count))
            )
            results = await asyncio.gather(*(handle.result() for handle in handles))
        worker.stop()
        await serving
        await log.close()
        assert results == list(range(count))
        assert sum(log.batches) == count
        # One turn of the loop makes them, a second one goes by before they are sent.
        assert log.batches[0] <= 2 * CALLERS_AT_ONCE

    asyncio.run(main())
