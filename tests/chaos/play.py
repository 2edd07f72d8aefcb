"""One scenario: a stage with its load and its person, faults in between, and the verdict."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import audit
from chaos.load import Load
from chaos.person import Person
from chaos.stage import Cluster, Stage, Worker, stage, until
from chaos.traps import Moment
from refold.client import Client

ENDS_WITHIN_S = 240.0
Figures = dict[str, Any]
Tell = Callable[[str], None]


class ChaosFailed(Exception):
    """Something that was promised was not kept: the sentences that say what."""

    def __init__(self, name: str, faults: list[str]) -> None:
        self.faults = faults
        shown = "\n".join(faults[:20])
        super().__init__(f"{name}: {len(faults)} faults\n{shown}")


@dataclass
class Play:
    """What a scenario has at hand. `figures` are its own, beside those that all have."""

    name: str
    stage: Stage
    client: Client
    load: Load
    person: Person
    partitions: int
    random: random.Random
    tell: Tell
    figures: Figures = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    exits: list[str] = field(default_factory=list)

    async def replace(self, worker: Worker) -> Worker:
        """Wait for the end of a worker and start another one in its place."""
        async with asyncio.timeout(120):
            await worker.process.wait()
        return await self.stage.worker()

    async def kill_at(self, moment: Moment) -> None:
        """SIGKILL for the next worker that comes by the moment; another one takes its place."""
        await self._spring(moment, signal.SIGKILL)
        self.kills[moment] += 1

    async def kill_at_random(self) -> None:
        """SIGKILL for any worker, at any time."""
        await asyncio.sleep(self.random.uniform(0, 1))
        worker = self.random.choice(self.stage.living)
        worker.send(signal.SIGKILL)
        self.kills["any time"] += 1
        await self.replace(worker)

    async def freeze_at(self, moment: Moment) -> Worker:
        """SIGSTOP for the next worker that comes by the moment."""
        return await self._spring(moment, signal.SIGSTOP)

    async def _spring(self, moment: Moment, number: signal.Signals) -> Worker:
        before = set(self.stage.traps.caught())
        self.stage.traps.arm(moment, number)
        await until(lambda: set(self.stage.traps.caught()) != before, f"a worker comes by {moment}")
        [(_, pid, _)] = set(self.stage.traps.caught()) - before
        [caught] = [worker for worker in self.stage.workers if worker.pid == pid]
        if number is signal.SIGKILL:
            await self.replace(caught)
        else:
            await until(caught.frozen, f"the worker stands at {moment}")
        return caught

    async def progress(self, runs: int) -> None:
        """Wait until so many more runs have ended."""
        due = self.ended + runs
        await until(lambda: self.ended >= due, f"{runs} more runs end")

    @property
    def ended(self) -> int:
        return sum(sent.ended is not None for sent in self.load.sent)


@asynccontextmanager
async def play(
    name: str,
    cluster: Cluster,
    folder: Path,
    *,
    seed: int,
    partitions: int = 4,
    workers: int = 2,
    orders: int = 3,
    objects: int = 3,
    pause_s: float = 0.05,
    settings: Figures | None = None,
    tell: Tell = lambda _: None,
) -> AsyncIterator[Play]:
    """Load on so many workers while the block does its faults; then the end, and the verdict.

    `orders` and `objects` are how many callers there are of each kind. The figures of it all are
    in `figures` afterwards. Raises ChaosFailed.
    """
    begun = time.monotonic()
    async with (
        stage(cluster, folder, name, partitions=partitions, settings=settings) as made,
        Client(made.url, by="caller") as client,
    ):
        await made.many(workers)
        if workers:
            await made.serving(partitions)
        load = Load(client, seed=seed)
        person = Person(made, client, load.harmed)
        playing = Play(name, made, client, load, person, partitions, random.Random(seed), tell)
        load.begin(orders=orders, objects=objects, pause_s=pause_s)
        try:
            yield playing
            tell(f"{name}: faults are over, {len(load.sent)} runs were started")
            person.begin()
            await load.end(ENDS_WITHIN_S)
        finally:
            await load.stop()
            await person.end()
        await asyncio.gather(*(made.end_worker(worker) for worker in made.living))
        seen = await audit.look_at(client.log)
        faults = await audit.faults(made, load, seen)
        await conclude(playing, seen, faults, time.monotonic() - begun)
    if faults:
        raise ChaosFailed(name, faults)


async def conclude(playing: Play, seen: audit.Seen, faults: list[str], took_s: float) -> None:
    """Put the figures together that every scenario has."""
    load, stage_ = playing.load, playing.stage
    effects = await stage_.world.counters()
    done = effects["effects"]
    playing.figures = {
        "seconds": round(took_s, 1),
        "commands accepted": sum(sent.accepted is not None for sent in load.sent),
        "runs ended": playing.ended,
        "effects": sum(done.get(kind, 0) for kind in ("shipment", "charge", "email"))
        + len(stage_.objects.answers),
        "repeats under a key": sum(effects["duplicates"].values()) + stage_.objects.repeats,
        "attempts": dict(sorted(seen.attempts.items())),
        "kills": dict(sorted(playing.kills.items())),
        "claims": seen.claims,
        "in doubt": seen.doubts,
        "resolved by": dict(sorted(seen.resolved.items())),
        "by a person": dict(sorted(playing.person.settled.items())),
        "late reports": seen.reports,
        "records skipped": dict(sorted(seen.skipped.items())),
        "EvidenceConflict": seen.conflicts,
        "longest pause of a run, s": round(seen.pause_ms / 1000, 1),
        "stalled, s": round(seen.stalled_ms / 1000, 1),
        "readers compared": seen.readers,
        "operations checked": sum(map(len, load.histories.values())),
        "exit codes": dict(Counter(str(w.process.returncode) for w in stage_.workers)),
        "faults": faults,
        **playing.figures,
    }


def check_once(name: str, figures: Figures) -> None:
    """Raise ChaosFailed where a step was tried twice, or came in doubt."""
    if set(figures["attempts"]) - {"1"} or figures["in doubt"]:
        raise ChaosFailed(name, [f"attempts {figures['attempts']}, {figures['in doubt']} in doubt"])
