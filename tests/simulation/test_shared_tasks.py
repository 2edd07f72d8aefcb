"""Steps without an intent share tasks: what a step sees of its task and its context is its own."""

import asyncio
import contextvars
import os
from datetime import timedelta
from typing import Any

import pytest

from refold import App, Policy, Retry, RunContext
from refold.log.port import Topic
from support.lab import Lab

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def app_of(fn: Any, *, times: int = 3, **terms: Any) -> App:
    """A run of `times` parallel calls of one step, then one more; it returns their results."""
    app = App("shared")
    step = app.step(policy=Policy.RE_EXECUTABLE, name="work", **terms)(fn)

    @app.run("main")
    async def main(ctx: RunContext) -> list[Any]:
        results = await ctx.gather(*(ctx.step(step, number) for number in range(times)))
        return [*results, await ctx.step(step, times)]

    return app


def outcome(app: App, *, seconds: float = 30) -> Any:
    lab = Lab()
    lab.start("main")
    lab.worker(app)
    assert lab.run(seconds, until=lambda: lab.ended())
    ended = lab.state().ended
    assert ended is not None
    if ended.error is not None:
        return f"{ended.error.type}: {ended.error.message}"
    assert ended.result is not None
    return ended.result.body


def test_a_step_has_one_task_from_its_first_line_to_its_last() -> None:
    async def work(number: int) -> bool:
        first = asyncio.current_task()
        if number % 2:
            await asyncio.sleep(0.1 * number)
        return first is not None and asyncio.current_task() is first

    assert outcome(app_of(work, times=6)) == b"[" + b",".join([b"true"] * 7) + b"]"


def test_steps_that_wait_do_not_share_it() -> None:
    tasks: list[Any] = []

    async def work(number: int) -> int:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(1)
        return number

    outcome(app_of(work, times=4))
    assert len(set(map(id, tasks))) == 5


def test_a_timeout_inside_a_step_ends_that_step_alone() -> None:
    async def work(number: int) -> str:
        if number != 1:
            return "done"
        try:
            async with asyncio.timeout(0.2):
                await asyncio.sleep(5)
        except TimeoutError:
            return "late"
        return "never"

    assert outcome(app_of(work)) == b'["done","late","done","done"]'


def test_what_a_step_sets_in_its_context_is_seen_by_no_other() -> None:
    async def work(number: int) -> str:
        seen = colour.get()
        colour.set(f"of {number}")
        if number % 2:
            await asyncio.sleep(0.01)
        return f"{seen}, {colour.get()}"

    assert outcome(app_of(work)) == b'["none, of 0","none, of 1","none, of 2","none, of 3"]'


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_that_cancels_its_own_task_harms_no_other(*, waits: bool) -> None:
    async def work(number: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        if number == 1 and not tried:
            tried.append(number)
            task.cancel()
            if waits:
                await asyncio.sleep(1)
        return number

    tried: list[int] = []
    app = app_of(work, times=5, retry=Retry(max_attempts=2, first_wait=timedelta(milliseconds=10)))
    assert outcome(app) == b"[0,1,2,3,4,5]"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("waits", [False, True])
def test_an_exit_signal_ends_the_step_and_not_the_process(
    error: BaseException, *, waits: bool
) -> None:
    async def work(number: int) -> int:
        if number == 1:
            if waits:
                await asyncio.sleep(0.1)
            raise error
        return number

    assert f"failed: {type(error).__name__}" in outcome(app_of(work))


def test_an_awaitable_that_is_no_coroutine_is_awaited() -> None:
    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0.01).__await__()
            return os.sep

    async def inner(number: int) -> Later:
        return Later()

    async def work(number: int) -> str:
        return str(await (await inner(number)))

    assert outcome(app_of(work, times=1)) == b'["/","/"]'


def test_a_step_in_a_flowing_run_lets_the_loop_turn() -> None:
    turns: list[int] = []

    async def work(number: int) -> int:
        return number

    app = App("shared")
    step = app.step(policy=Policy.RE_EXECUTABLE)(work)

    @app.run("main")
    async def main(ctx: RunContext) -> int:
        for number in range(2_000):
            await ctx.step(step, number)
            turns.append(len(lab.broker.records(Topic.EVENTS, 0)))
        return len(turns)

    lab = Lab()
    lab.start("main")
    lab.worker(app)
    assert lab.run(60, until=lambda: lab.ended())
    assert len(set(turns)) > 100, "the log gets what flows while it flows"
