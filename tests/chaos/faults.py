"""What is done to workers, brokers and networks while the load goes on, fault by fault."""

import asyncio
import signal
from functools import partial

from chaos.play import Play
from chaos.stage import Cluster, Worker, until
from chaos.traps import Moment

RUNS = 5
"""So many runs end between two faults, so that each meets a system at work."""


async def kill(playing: Play, moment: Moment | None) -> None:
    """SIGKILL for a worker at the moment, or at any time; another one takes its place."""
    await playing.progress(RUNS)
    playing.tell(f"{playing.name}: SIGKILL {moment or 'at any time'}")
    if moment is None:
        await playing.kill_at_random()
    elif moment.endswith("claim"):
        killing = asyncio.create_task(playing.kill_at(moment))
        await playing.kill_at_random()  # so that somebody claims
        await killing
    else:
        await playing.kill_at(moment)


async def freeze(playing: Play, moment: Moment) -> None:
    """SIGSTOP at the moment until another one has taken over and is at work; then SIGCONT."""
    await playing.progress(RUNS)
    playing.tell(f"{playing.name}: SIGSTOP {moment}")
    claims = {worker: len(worker.events("claimed")) for worker in playing.stage.workers}
    caught = await playing.freeze_at(moment)
    await until(partial(_is_replaced, caught, claims), "another worker takes over")
    await playing.progress(RUNS)
    ended = len(caught.events("ended_claim"))
    caught.send(signal.SIGCONT)
    playing.kills[f"frozen {moment}"] += 1
    await until(partial(_has_ended_more, caught, ended), "the frozen worker learns of it")
    await playing.progress(RUNS)


async def lose_broker(playing: Play, away_s: float) -> None:
    """SIGKILL for the only broker, and its restart after a while."""
    cluster = playing.stage.cluster
    await playing.progress(RUNS)
    playing.tell(f"{playing.name}: SIGKILL for the broker, back after {away_s:g} s")
    await cluster.kill_broker()
    await asyncio.sleep(away_s)
    await cluster.start_broker()
    playing.kills["broker"] += 1
    await playing.progress(RUNS)


async def cut_network(playing: Play, behind: Worker, way: str, away_s: float) -> None:
    """The network between one worker and the broker: `both ways`, one direction, or `slow`."""
    proxy = playing.stage.cluster.proxy
    assert proxy is not None
    await until(lambda: bool(behind.owns()), "the worker behind the proxy owns some")
    await playing.progress(RUNS)
    playing.tell(f"{playing.name}: the network is {way} for {away_s:g} s")
    if way == "slow":
        proxy.set(slow_s=0.2)
    else:
        proxy.set(to_broker=way == "cut from the broker", from_broker=way == "cut to the broker")
    await asyncio.sleep(away_s)
    proxy.set()
    playing.kills[f"network {way}"] += 1
    await playing.progress(RUNS)


async def behind_proxy(playing: Play, cluster: Cluster) -> Worker:
    """Start a worker that knows the broker by the proxy only."""
    assert cluster.proxy is not None
    return await playing.stage.worker(servers=f"127.0.0.1:{cluster.proxy.port}")


async def roll(playing: Play, workers: list[Worker]) -> None:
    """SIGTERM for one worker after the other, each replaced."""
    for old in workers:
        await playing.progress(RUNS)
        new = await playing.stage.worker()
        playing.tell(f"{playing.name}: SIGTERM for worker {old.pid}, in its place {new.pid}")
        await playing.stage.end_worker(old)
        playing.kills["SIGTERM"] += 1
        await until(partial(_owns_some, new), "the new worker owns partitions")


def said_of_outage(playing: Play) -> dict[str, int]:
    """How often each kind of warning was said by the workers, by the beginning of its text."""
    found: dict[str, int] = {}
    for worker in playing.stage.workers:
        for event in worker.events("warning") + worker.events("ended_claim"):
            text = " ".join(event["text"].split()[:9])
            found[text] = found.get(text, 0) + 1
    return found


def _is_replaced(caught: Worker, claims: dict[Worker, int]) -> bool:
    return any(
        len(worker.events("claimed")) > count
        for worker, count in claims.items()
        if worker is not caught
    )


def _has_ended_more(worker: Worker, ended: int) -> bool:
    return len(worker.events("ended_claim")) > ended


def _owns_some(worker: Worker) -> bool:
    return bool(worker.owns())
