"""The work that is measured: steps of about 300 bytes, and sleepers; each start leaves a line.

A line is `KIND RUN INDEX NANOSECONDS` on CLOCK_MONOTONIC, which all processes of a machine share,
in a file opened for appending: a SIGKILL of its writer loses none. X: a step's function began,
S: about to sleep, W: woke, D: the run's function ended, K: about to kill itself.
"""

import os
import signal
import time
from datetime import timedelta

from refold import App, Policy, RunContext

LOG_VARIABLE = "REFOLD_BENCH_LINES"
CRASH_VARIABLE = "REFOLD_BENCH_CRASH_AT"

app = App("bench")
_lines = -1
_crash_at: str | None = None


def line(kind: str, run: str, index: int = 0) -> None:
    """Leave a line."""
    global _lines, _crash_at
    if _lines < 0:
        _crash_at = os.environ.get(CRASH_VARIABLE)
        path = os.environ.get(LOG_VARIABLE, os.devnull)
        _lines = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(_lines, f"{kind} {run} {index} {time.monotonic_ns()}\n".encode())


def answer(run: str, index: int) -> dict[str, object]:
    """About 300 bytes of JSON, different for each step."""
    return {
        "run": run,
        "step": index,
        "status": "ok",
        "model": "bench-model-1",
        "text": f"{run}/{index}: " + "a measured sentence that says nothing at all, " * 4,
        "usage": {"input_tokens": 100 + index, "output_tokens": 200 + index},
    }


@app.step(policy=Policy.RE_EXECUTABLE)
async def work(run: str, index: int) -> dict[str, object]:
    """One step: a line, at one index a crash, an answer."""
    line("X", run, index)
    if _crash_at is not None and str(index) == _crash_at:
        line("K", run, index)
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(run, index)


async def _steps(ctx: RunContext, count: int) -> int:
    for index in range(count):
        await ctx.step(work, ctx.run_id, index)
    line("D", ctx.run_id)
    return count


@app.run("steps", durable="each")
async def steps(ctx: RunContext, count: int) -> int:
    """Sequential steps, each durable before the next."""
    return await _steps(ctx, count)


@app.run("flowing")
async def flowing(ctx: RunContext, count: int) -> int:
    """The same with output commit."""
    return await _steps(ctx, count)


@app.run("sleeper")
async def sleeper(ctx: RunContext, seconds: float) -> int:
    """A step, a sleep, a step."""
    await ctx.step(work, ctx.run_id, 0)
    line("S", ctx.run_id)
    await ctx.sleep(timedelta(seconds=seconds))
    line("W", ctx.run_id)
    await ctx.step(work, ctx.run_id, 1)
    line("D", ctx.run_id)
    return 1


@app.run("timer")
async def timer(ctx: RunContext, seconds: float) -> int:
    """A sleep and nothing else."""
    line("S", ctx.run_id)
    await ctx.sleep(timedelta(seconds=seconds))
    line("W", ctx.run_id)
    return 1
