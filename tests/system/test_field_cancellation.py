"""Field report on cancellation (F39), on asyncio's own loop and the machine's own clock."""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from refold import App, Effect, Policy, RunContext
from refold.client import Client
from refold.log.memory import MemoryBroker, MemoryLog
from refold.worker import Worker, WorkerSettings

STOPS = 10
TICK_S = 0.000_05


def restless(deeds: Counter[tuple[str, int]], random: Random) -> App:
    """Steps whose timeouts end in the tick in which they are cancelled, or that swallow it."""
    app = App("restless")

    async def wait_for(seconds: float) -> None:
        inner = asyncio.create_task(asyncio.sleep(seconds))
        with suppress(TimeoutError):
            await asyncio.wait_for(inner, random.choice((seconds, seconds + TICK_S)))

    async def swallow(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(seconds)

    @app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(milliseconds=20))
    async def work(fx: Effect, number: int) -> int:
        await (wait_for, swallow)[number % 2](random.uniform(0, 0.01))
        deeds[fx.slot, fx.attempt] += 1
        return number

    @app.run("restless")
    async def run(ctx: RunContext) -> int:
        for number in range(10_000):
            calls: list[Any] = [ctx.step(work, number + index) for index in range(3)]
            await ctx.gather(*calls)
        return 0

    return app


@pytest.mark.parametrize("seed", range(5))
def test_a_stop_at_any_tick_ends_the_worker_f39(seed: int) -> None:
    asyncio.run(stop_often(seed))


async def stop_often(seed: int) -> None:
    random = Random(seed)
    broker = MemoryBroker("restless")
    log = MemoryLog("memory://restless", broker=broker)
    await log.open(create=True)
    deeds: Counter[tuple[str, int]] = Counter()
    async with Client(log) as client:
        starting = asyncio.create_task(client.start("restless", run_id="run-1"))
        for number in range(STOPS):
            settings = WorkerSettings(drain_ms=50, suggest_ms=20, repeat_first_ms=1)
            handle = MemoryLog("memory://restless", broker=broker, name=str(number))
            await handle.open(create=False)
            app = restless(deeds, random)
            worker = Worker(app, handle, owner=str(number), settings=settings)
            running = asyncio.create_task(worker.run())
            await starting
            await asyncio.sleep(random.uniform(0.01, 0.05))
            worker.stop()
            # A limit for the test only: a swallowed stop would take for ever.
            await asyncio.wait_for(running, 20)
            await asyncio.sleep(0.03)  # calls that were left reach their deadline
            done = deeds.copy()
            await asyncio.sleep(0.02)
            assert deeds == done
            await handle.close()
    assert set(deeds.values()) == {1}
    await log.close()
