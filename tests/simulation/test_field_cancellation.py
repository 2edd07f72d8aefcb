"""Field report on cancellation: one that is swallowed leaves a worker that never ends (F39).

Some steps swallow the cancellation themselves, some are cancelled in the very tick in which they
are done. A worker that is asked to stop ends within its limit whatever they do, and one that has
lost its claim acts no more.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from refold import App, Effect, Policy, RunContext
from refold.log.memory import Faults
from refold.log.port import Topic
from refold.testing.sim_loop import SimProcess, current_process
from refold.worker import WorkerSettings
from refold_schemas.events import PartitionClaimed, StepIntended
from support.lab import Lab

pytestmark = pytest.mark.untraced

DRAIN_MS = 300
TICK = 0.000_02


class Deeds:
    """Every effect with its time and its process."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str, str, int]] = []

    def act(self, fx: Effect) -> None:
        process = current_process()
        self.done.append((process.universe.now_us, process.name, fx.slot, fx.attempt))


def restless(deeds: Deeds, seed: int) -> App:
    """Steps that wait with timeouts in every way that people write them."""
    app = App("restless")
    random = Random(seed)

    async def timeouts(seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(random.uniform(0, 2 * seconds))
        except TimeoutError:
            pass

    async def wait_for(seconds: float) -> None:
        inner = asyncio.get_running_loop().create_task(asyncio.sleep(seconds))
        with suppress(TimeoutError):
            # The inner one is done when the outer one is cancelled: 3.11 may swallow that.
            await asyncio.wait_for(inner, random.choice((seconds, seconds + TICK)))

    async def swallow(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(seconds)

    ways = (timeouts, wait_for, swallow)

    @app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(milliseconds=40))
    async def work(fx: Effect, way: int) -> int:
        await ways[way](random.uniform(0, 0.03))
        deeds.act(fx)
        return way

    @app.step(policy=Policy.RE_EXECUTABLE, timeout=timedelta(milliseconds=40))
    async def look(way: int) -> int:
        await ways[way](random.uniform(0, 0.03))
        return way

    @app.run("restless")
    async def run(ctx: RunContext) -> int:
        for number in range(10_000):
            step: Any = work if number % 2 else look
            await ctx.gather(*[ctx.step(step, way) for way in range(3)])
        return 0

    return app


SETTINGS = WorkerSettings(drain_ms=DRAIN_MS, repeat_first_ms=20, suggest_ms=50)
STOPS = 25


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_at_any_tick_ends_the_worker_within_its_limit_f39(seed: int) -> None:
    random = Random(seed)
    for number in range(STOPS):
        lab, deeds = Lab(settings=SETTINGS, seed=seed * STOPS + number), Deeds()
        lab.start("restless")
        process = lab.worker(restless(deeds, number))
        lab.run(random.uniform(0.03, 0.1))
        assert lab.workers[process.name].owners
        worker = lab.workers[process.name]
        worker.stop()
        # The drain, and the wait for reports of calls that go on to their deadline.
        ended = lab.run(DRAIN_MS / 1000 + 6.0, until=lambda lab=lab: main_is_over(lab))  # type: ignore[misc]
        assert ended
        assert not worker.owners
        released = lab.now_ms()
        lab.run(1)
        # The calls that were left have their deadline behind them: nothing acts any more.
        assert all(at_us // 1000 < released - lab_epoch(lab) + 100 for at_us, *_ in deeds.done)
        assert lab.fold().facts.released
        lab.end()


def lab_epoch(lab: Lab) -> int:
    return lab.now_ms() - lab.universe.now_us // 1000


def main_is_over(lab: Lab) -> bool:
    """Whether the worker's `run` has returned: its log handle gave the lease back last of all."""
    return lab.broker.owners() == {}


class Moved(Faults):
    """The group gives the partition to one process."""

    handle = "life-1"

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        return frozenset({0}) if handle == self.handle else frozenset()


@pytest.mark.parametrize("seed", range(10))
def test_an_owner_that_lost_its_claim_at_any_tick_acts_no_more_f39(seed: int) -> None:
    random = Random(seed)
    for number in range(STOPS):
        lab, deeds = Lab(settings=SETTINGS, seed=1_000 + seed * STOPS + number), Deeds()
        faults = lab.broker.faults = Moved()
        lab.start("restless")
        app = restless(deeds, number)
        first = lab.worker(app, name="first")
        lab.run(random.uniform(0.03, 0.1))
        # Without a word to the first one: a newer claim is all that it will see of it.
        faults.handle = "nobody"
        second = rival(lab, app)
        faults.handle = second.name
        assert lab.run(1, until=lambda lab=lab: fenced(lab))  # type: ignore[misc]
        lost_us = lab.universe.now_us
        lab.run(0.15)
        # What had begun goes on to its deadline; nothing that began later is the first one's.
        late = [deed for deed in deeds.done if deed[1] == first.name and deed[0] > lost_us]
        assert all(at_us < lost_us + 40_000 + 30_000 for at_us, *_ in late)
        intents = intents_of(lab, first)
        acted = [(slot, attempt) for _, name, slot, attempt in deeds.done if name == first.name]
        assert set(acted) <= intents
        assert len(acted) == len(set(acted))
        assert not lab.workers[first.name].owners
        lab.end()


def rival(lab: Lab, app: App) -> SimProcess:
    return lab.worker(app, name="second")


def fenced(lab: Lab) -> bool:
    return "ended_claim" in [event.kind for event in lab.told]


def intents_of(lab: Lab, process: SimProcess) -> set[tuple[str, int]]:
    """The intents under the claim of this process that count."""
    found: set[tuple[str, int]] = set()
    owner = ""
    for record in lab.broker.records(Topic.EVENTS, 0):
        event = lab.codec.decode(record.value or b"")
        if isinstance(event, PartitionClaimed):
            owner = event.process
        elif isinstance(event, StepIntended) and owner == process.name:
            found.add((event.slot, event.attempt))
    return found
