"""What is done to workers, brokers and networks while the load goes on."""

import asyncio
from functools import partial
from pathlib import Path

from chaos.play import Figures, Tell, play
from chaos.stage import Cluster, Worker, until
from chaos.traps import Moment

QUICK = {"session_ms": 2_000, "checkpoint_ms": 1_000, "repeat_first_ms": 200}
"""Waits that are shorter than usual, so that a kill is over in seconds."""
IN_STEP = (
    Moment.BEFORE_INTENT,
    Moment.AFTER_INTENT,
    Moment.BEFORE_CALL,
    Moment.DURING_CALL,
    Moment.AFTER_CALL,
    Moment.BEFORE_OUTCOME,
    Moment.AFTER_OUTCOME,
    Moment.BEFORE_CHECKPOINT,
    Moment.AFTER_CHECKPOINT,
)
IN_CLAIM = (Moment.BEFORE_CLAIM, Moment.AFTER_CLAIM)


async def kills(
    cluster: Cluster, folder: Path, *, seed: int, count: int, tell: Tell, name: str = "kills"
) -> Figures:
    """SIGKILLs of workers: at each moment of a step, a checkpoint, a claim, and at any time."""
    moments: list[Moment | None] = [*IN_STEP, *IN_CLAIM]
    moments += [None] * max(0, count - len(moments))
    async with play(
        name,
        cluster,
        folder,
        seed=seed,
        partitions=4,
        workers=2,
        orders=3,
        objects=4,
        settings=QUICK,
        tell=tell,
    ) as playing:
        playing.random.shuffle(moments)
        for number, moment in enumerate(moments[:count], 1):
            await playing.progress(5)
            tell(f"{name}: kill {number} of {count}, {moment or 'at any time'}")
            if moment is None:
                await playing.kill_at_random()
                continue
            killing = asyncio.create_task(playing.kill_at(moment))
            if moment in IN_CLAIM:
                await playing.kill_at_random()  # so that somebody claims
            await killing
    return playing.figures


async def rolling(
    cluster: Cluster, folder: Path, *, seed: int, workers: int, rounds: int, tell: Tell
) -> Figures:
    """SIGTERM for one worker after the other under load, each replaced: nothing is repeated."""
    name = "rolling-restart"
    async with play(
        name,
        cluster,
        folder,
        seed=seed,
        partitions=8,
        workers=workers,
        orders=4,
        objects=4,
        tell=tell,
    ) as playing:
        for _ in range(rounds):
            for old in list(playing.stage.living):
                await playing.progress(5)
                new = await playing.stage.worker()
                tell(f"{name}: SIGTERM for worker {old.pid}, in its place {new.pid}")
                await playing.stage.end_worker(old)
                await until(partial(owns_some, new), "the new worker owns partitions")
                playing.kills["SIGTERM"] += 1
    return playing.figures


def owns_some(worker: Worker) -> bool:
    return bool(worker.owns())
