"""Faults of brokers and of the network between them and workers."""

import asyncio
import signal
from functools import partial
from pathlib import Path

from chaos.play import Figures, Play, Tell, play
from chaos.stage import Cluster, Worker, until
from chaos.traps import Moment

QUICK = {"session_ms": 2_000, "checkpoint_ms": 1_000, "repeat_first_ms": 200}


async def broker_killed(
    cluster: Cluster, folder: Path, *, seed: int, away_s: float, times: int, tell: Tell
) -> Figures:
    """SIGKILL of the only broker under load and its restart, at once and after a while.

    Longer than the session, and than an append looks for a broker: claims end, nothing else.
    """
    name = "broker-killed"
    stack = cluster.stack
    async with play(
        name, cluster, folder, seed=seed, partitions=4, workers=2, orders=3, objects=3, tell=tell
    ) as playing:
        for number in range(times):
            await playing.progress(20)
            wait_s = away_s if number == times - 1 else 0.0
            tell(f"{name}: SIGKILL for the broker, back after {wait_s:g} s")
            await asyncio.to_thread(stack.kill_broker, 1)
            await asyncio.sleep(wait_s)
            await asyncio.to_thread(stack.start_broker, 1)
        await playing.progress(20)
        playing.figures["broker kills"] = times
        playing.figures["away, s"] = away_s
        playing.figures["said"] = said_of_outage(playing)
        if not all(worker.lives for worker in playing.stage.workers):
            raise AssertionError("a worker ended because its broker was away")
    return playing.figures


def said_of_outage(playing: Play) -> dict[str, int]:
    """How often each kind of warning was said by the workers, by the beginning of its text."""
    found: dict[str, int] = {}
    for worker in playing.stage.workers:
        for event in worker.events("warning") + worker.events("ended_claim"):
            text = " ".join(event["text"].split()[:9])
            found[text] = found.get(text, 0) + 1
    return found


async def three_brokers(
    cluster: Cluster, folder: Path, *, seed: int, runs: int, away_s: float, tell: Tell
) -> Figures:
    """One of three brokers is lost: it goes on. Two: it stalls, says so, and goes on afterwards."""
    name = "three-brokers"
    stack = cluster.stack
    async with play(
        name, cluster, folder, seed=seed, partitions=4, workers=2, orders=3, objects=3, tell=tell
    ) as playing:
        await playing.progress(runs)
        tell(f"{name}: SIGKILL for broker 1")
        await asyncio.to_thread(stack.kill_broker, 1)
        await playing.progress(runs)  # with two of three
        tell(f"{name}: it goes on; SIGKILL for broker 2")
        await asyncio.to_thread(stack.kill_broker, 2)
        await asyncio.sleep(away_s)
        ended = playing.ended
        warned = said_of_outage(playing)
        code, told = await playing.stage.refold(
            "doctor", "--log", f"kafka://127.0.0.1:{cluster.stack.ports.kafka[2]}/{name}"
        )
        await asyncio.sleep(2)
        playing.figures["ended while two were lost"] = playing.ended - ended
        playing.figures["doctor while two were lost"] = {"exit": code, "said": told}
        playing.figures["said while two were lost"] = warned
        tell(f"{name}: doctor says {told}; both come back")
        await asyncio.gather(
            asyncio.to_thread(stack.start_broker, 1, wait=False),
            asyncio.to_thread(stack.start_broker, 2, wait=False),
        )
        await playing.progress(runs)
    return playing.figures


async def network_cut(
    cluster: Cluster, folder: Path, *, seed: int, away_s: float, ways: tuple[str, ...], tell: Tell
) -> Figures:
    """The network between one worker and the broker: cut both ways, one way, and slow."""
    name = "network-cut"
    proxy = cluster.proxy
    assert proxy is not None
    async with play(
        name,
        cluster,
        folder,
        seed=seed,
        partitions=4,
        workers=1,
        orders=3,
        objects=3,
        settings=QUICK,
        tell=tell,
    ) as playing:
        behind = await playing.stage.worker(servers=f"127.0.0.1:{proxy.port}")
        for way in ways:
            await until(lambda: bool(behind.owns()), "the worker behind the proxy owns some")
            await playing.progress(10)
            tell(f"{name}: {way} for {away_s:g} s")
            if way == "slow":
                proxy.set(slow_s=0.2)
            else:
                proxy.set(to_broker=way == "from the broker", from_broker=way == "to the broker")
            await asyncio.sleep(away_s)
            proxy.set()
            await playing.progress(10)
            playing.kills[f"network {way}"] += 1
        if not behind.lives:
            raise AssertionError("the worker ended because its network was cut")
        playing.figures["said"] = said_of_outage(playing)
    return playing.figures


async def frozen(
    cluster: Cluster, folder: Path, *, seed: int, moments: tuple[Moment, ...], tell: Tell
) -> Figures:
    """SIGSTOP for longer than the session at a moment; another takes over; SIGCONT."""
    name = "frozen"
    async with play(
        name,
        cluster,
        folder,
        seed=seed,
        partitions=4,
        workers=2,
        orders=3,
        objects=3,
        settings=QUICK,
        tell=tell,
    ) as playing:
        for moment in moments:
            await playing.progress(5)
            tell(f"{name}: SIGSTOP {moment}")
            claims = {worker: len(worker.events("claimed")) for worker in playing.stage.workers}
            caught = await playing.freeze_at(moment)
            await until(partial(replaced, caught, claims), "another worker takes over")
            await playing.progress(10)
            ended = len(caught.events("ended_claim"))
            caught.send(signal.SIGCONT)
            playing.kills[f"frozen {moment}"] += 1
            await until(
                partial(has_ended_more, caught, ended), "the frozen worker learns that it is none"
            )
            await playing.progress(10)
    return playing.figures


def replaced(caught: Worker, claims: dict[Worker, int]) -> bool:
    """Whether another worker has claimed more than it had."""
    return any(
        len(worker.events("claimed")) > count
        for worker, count in claims.items()
        if worker is not caught
    )


def has_ended_more(worker: Worker, ended: int) -> bool:
    return len(worker.events("ended_claim")) > ended
