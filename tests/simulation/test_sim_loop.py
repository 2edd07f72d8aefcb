"""The simulated loop and its processes: virtual time, seeded order, deaths and freezes."""

import asyncio
from random import Random

import pytest

from refold.log.memory import Answer, AppendCall, AppendFault, Faults, MemoryBroker, MemoryLog
from refold.log.port import Entry, Topic
from refold.testing.sim_loop import SimProcess, SimStuck, Universe, current_process

MINUTE_US = 60_000_000


def universe(seed: int = 1) -> Universe:
    return Universe(Random(seed))


def test_a_process_sleeps_in_virtual_time_by_its_own_clock() -> None:
    world = universe()
    woke: dict[str, int] = {}

    async def main() -> None:
        await asyncio.sleep(10)
        woke[current_process().name] = world.now_us

    for name, rate_ppm in (("true", 0), ("fast", 5_000), ("slow", -5_000)):
        SimProcess(world, name, rate_ppm=rate_ppm).start(main())
    world.run(MINUTE_US)
    assert woke["fast"] < woke["true"] < woke["slow"]
    assert woke["true"] == pytest.approx(10_000_000, abs=500)
    assert woke["fast"] == pytest.approx(10_000_000 / 1.005, abs=500)
    assert woke["slow"] == pytest.approx(10_000_000 / 0.995, abs=500)
    assert world.now_us == MINUTE_US


def test_asyncio_works_in_a_simulated_process() -> None:
    world = universe()
    told: list[object] = []

    async def child(queue: "asyncio.Queue[int]", number: int) -> int:
        await asyncio.sleep(number)
        await queue.put(number)
        return number

    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(child(queue, 2))
            group.create_task(child(queue, 1))
        told.append([queue.get_nowait(), queue.get_nowait()])
        told.append(await asyncio.gather(child(queue, 3), child(queue, 1)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        with pytest.raises(NotImplementedError, match="no threads"):
            await asyncio.to_thread(print)
        told.append("end")

    SimProcess(world, "p").start(main())
    world.run(MINUTE_US)
    assert told == [[1, 2], [3, 1], "end"]


def test_the_seed_decides_the_order_of_processes_and_nothing_else_does() -> None:
    def order(seed: int) -> list[str]:
        world = universe(seed)
        turns: list[str] = []

        async def main() -> None:
            for _ in range(8):
                await asyncio.sleep(0)
                turns.append(current_process().name)

        for name in "abc":
            SimProcess(world, name).start(main())
        world.run(MINUTE_US)
        return turns

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_a_killed_process_does_nothing_any_more_not_even_clean_up() -> None:
    world = universe()
    effects: list[str] = []

    async def main(process: SimProcess, own: bool) -> None:
        try:
            await asyncio.sleep(1)
            if own:
                await process.kill_here()
            await asyncio.sleep(5)
        finally:
            if process.alive:
                effects.append(f"{process.name} cleaned up")
            asyncio.get_running_loop().call_soon(effects.append, "called from the grave")

    for name in ("by itself", "from outside", "survivor"):
        process = SimProcess(world, name)
        process.start(main(process, name == "by itself"))
        if name == "from outside":
            world.later(3_000_000, process.kill)
    world.run(MINUTE_US)
    assert effects == ["survivor cleaned up", "called from the grave"]
    assert [process.name for process in world.processes] == ["survivor"]


@pytest.mark.parametrize("machine", [False, True])
def test_a_frozen_process_wakes_late_and_its_boot_clock_knows(machine: bool) -> None:
    world = universe()
    process = SimProcess(world, "p", epoch_ms=1_000, boot_us=77)
    seen: list[tuple[int, int, float]] = []

    async def main() -> None:
        await asyncio.sleep(2)
        loop = asyncio.get_running_loop()
        seen.append((world.now_us, process.boot_us(), loop.time()))

    process.start(main())
    world.later(1_000_000, lambda: process.freeze(10_000_000, machine=machine))
    world.run(MINUTE_US)
    [(woke_us, boot_us, loop_s)] = seen
    # With its machine the monotonic clock stops too, so the second half of the sleep comes after.
    assert woke_us == pytest.approx(12_000_000 if machine else 11_000_000, abs=500)
    assert boot_us == woke_us + 77
    assert loop_s == pytest.approx(2.0 if machine else 11.0, abs=0.001)


def test_a_process_can_stop_in_the_middle_of_its_own_code() -> None:
    world = universe()
    process = SimProcess(world, "p")
    seen: list[int] = []

    async def main() -> None:
        await process.freeze_here(4_000_000)
        seen.append(world.now_us)

    process.start(main())
    world.run(MINUTE_US)
    assert seen[0] == pytest.approx(4_000_000, abs=500)


def test_a_process_that_lets_no_time_pass_is_stuck_and_named() -> None:
    world = universe()

    async def main() -> None:
        while world.now_us >= 0:  # noqa: ASYNC110 - spinning is what is tested
            await asyncio.sleep(0)

    SimProcess(world, "p").start(main())
    with pytest.raises(SimStuck, match="100 turns"):
        world.run(MINUTE_US, turns_max=100)
    world.processes[0].kill()


class LateStore(Faults):
    def on_append(self, call: AppendCall) -> AppendFault | None:
        return AppendFault((2_000,), Answer.ERROR, 100)


def test_what_a_dead_process_sent_may_still_be_stored() -> None:
    world = universe()
    broker = MemoryBroker("t", now_ms=lambda: world.now_us // 1000, schedule=world.schedule_ms)
    broker.faults = LateStore()
    process = SimProcess(world, "p")
    log = MemoryLog("memory://t", broker=broker, name="p")
    process.on_kill.append(log.kill)
    told: list[object] = []

    async def main() -> None:
        await log.open(create=True)
        told.append(await log.append(Topic.EVENTS, 0, [Entry(None, b"x")]))

    process.start(main())
    world.later(50_000, process.kill)
    world.run(1_000_000)
    assert broker.records(Topic.EVENTS, 0) == ()
    world.run(MINUTE_US)
    assert [record.value for record in broker.records(Topic.EVENTS, 0)] == [b"x"]
    assert told == []


def test_an_exception_that_nobody_caught_is_noted() -> None:
    world = universe()
    process = SimProcess(world, "p")

    async def fails() -> None:
        raise ValueError("lost")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fails())
        await asyncio.sleep(1)
        del task

    process.start(main())
    world.run(MINUTE_US)
    assert [str(context["exception"]) for context in process.errors] == ["lost"]
