"""Poison and storms: records nobody can read, code that kills, a crowd, a flood, long steps."""

import asyncio
import time
import uuid
from collections import Counter
from pathlib import Path

from chaos import faults
from chaos.audit import look_at
from chaos.play import ChaosFailed, Figures, Tell, check_once, play
from chaos.scenarios import QUICK
from chaos.stage import Cluster, stage, until
from refold.client import Client
from refold.log import Entry, Topic, partition_for
from refold_schemas.codec import Codec
from refold_schemas.commands import StartRun
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value

FLOOD_BATCH = 200


async def poison(cluster: Cluster, folder: Path, *, seed: int, runs: int, tell: Tell) -> Figures:
    """A record with a good header and a body that nobody can read, in the name of one run.

    And a run whose code kills its worker, on the same partitions as everybody else.
    """
    name = "poison"
    async with play(
        name, cluster, folder, seed=seed, partitions=2, objects=2, settings=QUICK, tell=tell
    ) as playing:
        await faults.poison(playing)
        await faults.kill_by_its_code(playing)
        await playing.progress(runs)
    return playing.figures


async def crowd(
    cluster: Cluster, folder: Path, *, seed: int, workers: int, partitions: int, tell: Tell
) -> Figures:
    """Twenty workers that join at once under load: they settle, and nothing is repeated."""
    name = "crowd"
    async with play(
        name, cluster, folder, seed=seed, partitions=partitions, workers=1, tell=tell
    ) as playing:
        await playing.progress(5)
        tell(f"{name}: {workers - 1} more workers at once")
        await playing.stage.many(workers - 1)
        shares: dict[int, int] = {}
        settled_s = time.monotonic()
        while True:
            now = {worker.pid: len(worker.owns()) for worker in playing.stage.workers}
            if now != shares:
                shares, settled_s = now, time.monotonic()
            fair = (
                max(now.values()) <= -(-partitions // workers) and sum(now.values()) == partitions
            )
            if fair and time.monotonic() - settled_s > 5:
                break
            await asyncio.sleep(0.2)
        playing.figures["partitions of a worker"] = dict(Counter(map(str, shares.values())))
        await playing.progress(10)
    figures = playing.figures
    check_once(name, figures)
    return figures


async def flood(
    cluster: Cluster, folder: Path, *, seed: int, runs: int, partitions: int, tell: Tell
) -> Figures:
    """So many StartRun commands before a worker begins: all of them end, in bounded memory."""
    name, codec, begun = "flood", Codec(FileRegistry()), time.monotonic()
    async with (
        stage(cluster, folder, name, partitions=partitions) as made,
        Client(made.url) as client,
    ):
        waiting: dict[int, list[Entry]] = {}
        for number in range(runs):
            run_id = f"small-{number}"
            command = StartRun(
                str(uuid.uuid4()), run_id, "small", encode_value(number), None, "flood"
            )
            partition = partition_for(run_id, partitions)
            waiting.setdefault(partition, []).append(Entry(run_id.encode(), codec.encode(command)))
        for partition, entries in waiting.items():
            for at in range(0, len(entries), FLOOD_BATCH):
                await client.log.append(Topic.COMMANDS, partition, entries[at : at + FLOOD_BATCH])
        tell(f"{name}: {runs} commands are in the log after {time.monotonic() - begun:.1f} s")
        worker = await made.worker()
        await until(lambda: worker.events("claimed") != [], "the worker claims")
        idle = worker.rss_bytes()
        served = time.monotonic()

        def completed() -> int:
            return worker.path.read_bytes().count(b'"event": "completed"')

        await until(lambda: completed() >= runs, "every run ends", within_s=600, every_s=0.5)
        took = time.monotonic() - served
        most = worker.rss_bytes("VmHWM")
        await made.end_worker(worker)
        seen = await look_at(client.log)
        wrong = list(seen.differing)
        if len(seen.completed) != runs:
            wrong.append(f"{len(seen.completed)} of {runs} runs have completed")
        if wrong:
            raise ChaosFailed(name, wrong)
        return {
            "seconds": round(time.monotonic() - begun, 1),
            "commands accepted": runs,
            "runs ended": len(seen.completed),
            "runs a second": round(runs / took),
            "memory at first, MB": round(idle / 2**20),
            "most memory, MB": round(most / 2**20),
            "bytes a run": round((most - idle) / runs),
            "readers compared": seen.readers,
        }


async def long_steps(
    cluster: Cluster,
    folder: Path,
    *,
    seed: int,
    workers: int,
    seconds: float,
    session_ms: int,
    tell: Tell,
) -> Figures:
    """Workers join at once; steps, threads and run code take longer than the session.

    Once the shares are even no partition moves.
    """
    name = "long-steps"
    async with play(
        name,
        cluster,
        folder,
        seed=seed,
        partitions=workers,
        workers=workers,
        orders=2,
        objects=2,
        settings={"session_ms": session_ms},
        tell=tell,
    ) as playing:
        load, members = playing.load, playing.stage.workers
        await until(lambda: all(len(one.owns()) == 1 for one in members), "the shares are even")
        claims = sum(len(worker.events("claimed")) for worker in playing.stage.workers)
        sent = [await load.start(run, seconds) for run in ("long", "long-thread", "block", "block")]
        await asyncio.gather(*(load.wait(one) for one in sent))
        await playing.progress(5)
        more = sum(len(worker.events("claimed")) for worker in playing.stage.workers) - claims
        # Only theirs: a call of another run that is under way while the loop is held up may well
        # run into its timeout, and is repeated under its key.
        seen = [await load.client.boundary(one.run_id) for one in sent]
        again = [
            f"{one.run_id} {done.slot}" for one in seen for done in one.done if done.attempt > 1
        ]
        playing.figures["claims while they took"] = more
        playing.figures["warned of blocked loops"] = sum(
            "R021" in event["text"]
            for worker in playing.stage.workers
            for event in worker.events("warning")
        )
    figures = playing.figures
    if more or again:
        raise ChaosFailed(name, [f"{more} claims, and made twice: {again}"])
    return figures
