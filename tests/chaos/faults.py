"""What is done to workers, brokers and networks while the load goes on, fault by fault."""

import asyncio
import signal
import time
from functools import partial

from chaos.audit import read_all
from chaos.play import Play
from chaos.stage import Cluster, Worker, until
from chaos.traps import Moment
from refold.client import Client
from refold.log import Entry, Topic, partition_for
from refold_projections.fold import PartitionFold
from refold_schemas.codec import KIND_EVENT, Codec, RecordHeader
from refold_schemas.registry import FileRegistry

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
    members = playing.stage.living
    await until(partial(_at_rest, members, playing.partitions), "each partition has one owner")
    caught = await playing.freeze_at(moment)
    owned = caught.owns()
    others = [worker for worker in members if worker is not caught]
    await until(lambda: any(one.owns() & owned for one in others), "another worker takes over")
    await playing.progress(RUNS)
    ended = _ended(caught)
    caught.send(signal.SIGCONT)
    playing.kills[f"frozen {moment}"] += 1
    await until(lambda: _ended(caught) > ended, "the frozen worker learns of it")
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


async def poison(playing: Play) -> None:
    """A record with a good header and a body that nobody can read, in the name of one run."""
    load, client, run_id = playing.load, playing.client, "nap-victim"
    load.harmed.add(run_id)
    await client.start("nap", 3600, run_id=run_id)
    await playing.progress(RUNS)
    playing.tell(f"{playing.name}: an undecodable event of {run_id}")
    # Who takes the n of an event that its owner is about to write takes that event's place.
    async with load.held_back():
        await _stands_still(client, run_id)
        await inject(client, run_id)
    while await _status(client, run_id) != ("blocked", "undecodable_event"):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await playing.progress(RUNS)
    playing.figures["poisoned"] = await _status(client, run_id)


async def kill_by_its_code(playing: Play) -> None:
    """A run whose code kills its worker, on the same partitions as everybody else."""
    stage, client, run_id = playing.stage, playing.client, "deadly-1"
    playing.load.harmed.add(run_id)
    playing.tell(f"{playing.name}: a run that kills its worker")
    dead = {worker for worker in stage.workers if not worker.lives}
    before = len(dead)
    await client.start("deadly", 1, run_id=run_id)
    while await _status(client, run_id) != ("blocked", "crashes_worker"):
        for worker in {one for one in stage.workers if not one.lives} - dead:
            dead.add(worker)
            await stage.worker()
        await asyncio.sleep(0.1)
    playing.kills["by a run's own code"] = len(dead) - before
    await playing.progress(RUNS)
    playing.figures["killed its workers"] = await _status(client, run_id)


async def _stands_still(client: Client, run_id: str) -> None:
    """Wait until nothing was written for a second to the partition of the run."""
    partition, end = partition_for(run_id, client.log.facts.partition_count), -1
    while True:
        _, now = await client.log.bounds(Topic.EVENTS, partition)
        if now == end:
            return
        end = now
        await asyncio.sleep(1)


async def inject(client: Client, run_id: str) -> None:
    """Append a record that counts, under the claim of now, until one does: its owner writes too."""
    codec = Codec(FileRegistry())
    partition = partition_for(run_id, client.log.facts.partition_count)
    while True:
        fold = PartitionFold(codec)
        records = await read_all(client.log, Topic.EVENTS, partition)
        fold.apply_all(records)
        # The frame of a record of the run, with the id of a schema that everybody knows.
        frame = next(one.value for one in records if one.key == run_id.encode() and one.value)[:5]
        at = fold.position
        now_ms = time.time_ns() // 1_000_000
        header = RecordHeader(
            KIND_EVENT, at.claim_id, at.claim_epoch, at.n_next, now_ms, at.command_next
        )
        entry = Entry(run_id.encode(), frame + b"\xffgarbage", header.pack())
        await client.log.append(Topic.EVENTS, partition, [entry])
        boundary = await client.boundary(run_id)
        if boundary.status == "blocked":
            return


async def _status(client: Client, run_id: str) -> tuple[str, str]:
    boundary = await client.boundary(run_id)
    return boundary.status, (boundary.reason or "").partition(":")[0]


def said_of_outage(playing: Play) -> dict[str, int]:
    """How often each kind of warning was said by the workers, by the beginning of its text."""
    found: dict[str, int] = {}
    for worker in playing.stage.workers:
        for event in worker.events("warning") + worker.events("ended_claim"):
            text = " ".join(event["text"].split()[:9])
            found[text] = found.get(text, 0) + 1
    return found


def _at_rest(members: list[Worker], partitions: int) -> bool:
    shares = [len(worker.owns()) for worker in members]
    return min(shares) > 0 and sum(shares) == partitions


def _ended(worker: Worker) -> int:
    """How many claims are over, by its own words; one may have been released as it froze."""
    return len(worker.events("ended_claim")) + len(worker.events("released"))


def _owns_some(worker: Worker) -> bool:
    return bool(worker.owns())
