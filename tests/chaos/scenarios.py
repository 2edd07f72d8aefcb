"""The scenarios: which faults, how many, on how many workers and brokers."""

import asyncio
from pathlib import Path

from chaos import faults
from chaos.play import ChaosFailed, Figures, Tell, check_once, play
from chaos.stage import Cluster
from chaos.traps import Moment

QUICK = {"session_ms": 2_000, "checkpoint_ms": 1_000, "repeat_first_ms": 200}
"""Waits that are shorter than usual, so that a kill is over in seconds."""
HURRIED = {**QUICK, "log_append_ms": 1_000, "append_timeout_ms": 2_000}
"""So that a few seconds without a broker are a long time."""
MOMENTS = (
    Moment.BEFORE_INTENT,
    Moment.AFTER_INTENT,
    Moment.BEFORE_CALL,
    Moment.DURING_CALL,
    Moment.AFTER_CALL,
    Moment.BEFORE_OUTCOME,
    Moment.AFTER_OUTCOME,
    Moment.BEFORE_CHECKPOINT,
    Moment.AFTER_CHECKPOINT,
    Moment.BEFORE_CLAIM,
    Moment.AFTER_CLAIM,
)
FROZEN = (
    Moment.BEFORE_CALL,
    Moment.DURING_CALL,
    Moment.AFTER_INTENT,
    Moment.BEFORE_INTENT,
    Moment.BEFORE_OUTCOME,
)
WAYS = ("cut both ways", "cut to the broker", "cut from the broker", "slow")


async def kills(cluster: Cluster, folder: Path, *, seed: int, count: int, tell: Tell) -> Figures:
    """SIGKILLs of workers: at each moment of a step, a checkpoint, a claim, and at any time."""
    moments: list[Moment | None] = [*MOMENTS, *[None] * (count - len(MOMENTS))]
    async with play(
        "kills", cluster, folder, seed=seed, objects=4, settings=QUICK, tell=tell
    ) as playing:
        playing.random.shuffle(moments)
        for moment in moments:
            await faults.kill(playing, moment)
    return playing.figures


async def frozen(cluster: Cluster, folder: Path, *, seed: int, rounds: int, tell: Tell) -> Figures:
    """SIGSTOP for longer than the session at a moment; another takes over; SIGCONT."""
    async with play("frozen", cluster, folder, seed=seed, settings=QUICK, tell=tell) as playing:
        for moment in FROZEN * rounds:
            await faults.freeze(playing, moment)
    return playing.figures


async def broker_killed(
    cluster: Cluster, folder: Path, *, seed: int, away_s: tuple[float, ...], tell: Tell
) -> Figures:
    """SIGKILL of the only broker under load and its restart, at once and after a while.

    Longer than the session, and than an append looks for a broker: claims end, nothing else.
    """
    async with play("broker-killed", cluster, folder, seed=seed, tell=tell) as playing:
        for seconds in away_s:
            await faults.lose_broker(playing, seconds)
        playing.figures["away, s"] = away_s
        playing.figures["said"] = faults.said_of_outage(playing)
        wrong = [] if all(one.lives for one in playing.stage.workers) else ["a worker has ended"]
    if wrong:
        raise ChaosFailed("broker-killed", wrong)
    return playing.figures


async def three_brokers(
    cluster: Cluster,
    folder: Path,
    *,
    seed: int,
    runs: int,
    away_s: float,
    hurried: bool,
    tell: Tell,
) -> Figures:
    """One of three brokers is lost: it goes on. Two: it stalls, says so, and goes on afterwards."""
    name = "three-brokers"
    async with play(
        name,
        cluster,
        folder,
        seed=seed,
        settings=HURRIED if hurried else {},
        tell=tell,
    ) as playing:
        await playing.progress(runs)
        tell(f"{name}: SIGKILL for broker 1")
        await cluster.kill_broker(1)
        await playing.progress(runs)  # with two of three
        tell(f"{name}: it goes on; SIGKILL for broker 2")
        await cluster.kill_broker(2)
        if hurried:
            await asyncio.sleep(away_s)
        else:  # it takes a while to say so
            last = f"kafka://127.0.0.1:{cluster.stack.ports.kafka[2]}/{name}"
            _, doctor = await asyncio.gather(
                asyncio.sleep(away_s), playing.stage.refold("doctor", "--log", last)
            )
            playing.figures["doctor while two were lost"] = doctor
        playing.figures["said while two were lost"] = faults.said_of_outage(playing)
        tell(f"{name}: both come back")
        for number in (1,) if hurried else (1, 2):  # two of three are enough
            await cluster.start_broker(number, wait=False)
        playing.kills["broker"] += 2
        await playing.progress(runs)
    return playing.figures


async def network_cut(
    cluster: Cluster, folder: Path, *, seed: int, away_s: float, tell: Tell
) -> Figures:
    """The network between one worker and the broker: cut both ways, one way, and slow."""
    async with play(
        "network-cut", cluster, folder, seed=seed, workers=1, settings=QUICK, tell=tell
    ) as playing:
        behind = await faults.behind_proxy(playing, cluster)
        for way in WAYS:
            await faults.cut_network(playing, behind, way, away_s)
        playing.figures["said"] = faults.said_of_outage(playing)
        wrong = [] if behind.lives else ["the worker has ended"]
    if wrong:
        raise ChaosFailed("network-cut", wrong)
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
            await faults.roll(playing, list(playing.stage.living))
    figures = playing.figures
    check_once(name, figures)
    return figures


async def everything(cluster: Cluster, folder: Path, *, seed: int, tell: Tell) -> Figures:
    """One of each fault, in one go: what `make test` has time for."""
    async with play(
        "everything",
        cluster,
        folder,
        seed=seed,
        objects=4,
        settings=HURRIED,
        tell=tell,
    ) as playing:
        behind = await faults.behind_proxy(playing, cluster)
        await faults.cut_network(playing, behind, WAYS[seed % 3], 3.5)
        for moment in playing.random.sample(MOMENTS[:9], 2):
            await faults.kill(playing, moment)
        await faults.freeze(playing, Moment.BEFORE_CALL)
        await faults.lose_broker(playing, 4.0)
        await faults.roll(playing, playing.stage.living[:1])
        await faults.poison(playing)
        await faults.kill_by_its_code(playing)
    return playing.figures
