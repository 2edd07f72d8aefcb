"""A stage for whole applications: workers on the memory log and the example world, in virtual time.

A worker can be made to die between an act and its record: after the step has returned, before the
batch that says so is appended. Another worker starts a second later, and a person looks at the
world's ledger and settles what is handed to them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from refold.app import App
from refold.client import Client
from refold.client.history import HistoryRecord
from refold.engine.settings import WorkerSettings
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Ack, Entry, Topic
from refold.testing.sim_codec import shared_codec
from refold.testing.sim_loop import SimProcess, Universe, current_process
from refold.worker import Worker
from refold_projections.fold import PartitionFold, state_hash
from refold_schemas.errors import RefoldError
from refold_schemas.events import Event, PartitionClaimed, StepCompleted
from world import Settings, World
from world.access import using
from world.calls import VendorCalls
from world.local import LocalClient

EPOCH_MS = 1_767_225_600_000
HOUR_US = 3_600_000_000
RESTART_US = 1_000_000
LEASE_MS = 1_000

Deadly = Callable[[Event], bool]
"""Whether the process dies instead of appending a batch with this event."""
Person = Callable[[World, str], tuple[bool, object]]
"""Of a slot in doubt: whether it happened, by the world's ledger, and what its step returned."""


class BeforeRecordOf:
    """Deadly once: in front of the record of what the first attempt of `slot` returned."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.struck = False

    def __call__(self, event: Event) -> bool:
        """Whether this is that record."""
        if self.struck or not isinstance(event, StepCompleted) or event.slot != self.slot:
            return False
        self.struck = True
        return True


class DeadlyLog(MemoryLog):
    """A process's handle on the memory log that kills it in front of chosen appends."""

    def __init__(self, stage: "Stage", name: str) -> None:
        super().__init__(f"memory://{stage.broker.namespace}", broker=stage.broker, name=name)
        self.stage = stage

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append, unless the process dies first."""
        if topic is Topic.EVENTS and self.stage.kills(entries):
            self.kill()
            await current_process().kill_here()
        ack = await super().append(topic, partition, entries)
        if topic is Topic.EVENTS and self.stage.stops_at(entries):
            current_process().attached["worker"].stop()
        return ack


class Stage:
    """One namespace, one world, and a worker that is started again whenever it has died.

    `deadly` kills it in front of a batch; `stops` asks it behind a batch to hand over cleanly, and
    what it knew of every run must then be what the log folds to.
    """

    def __init__(
        self,
        app: App,
        *,
        deadly: Deadly | None = None,
        stops: Deadly | None = None,
        seed: int = 1,
    ) -> None:
        self.app, self.deadly, self.stops = app, deadly, stops
        self.hand_overs = 0
        self.universe = Universe(Random(seed))
        self.broker = MemoryBroker(
            "stage", lease_ms=LEASE_MS, now_ms=self.now_ms, schedule=self.universe.schedule_ms
        )
        self.broker.exists = True
        self.world = World(settings=Settings(seed=seed), now_ms=self.now_ms)
        self.client: VendorCalls = LocalClient(self.world)
        self.lives = 0
        self.resolved: list[str] = []
        self.problems: list[str] = []
        self._codec = shared_codec()
        self._entropy = Random(f"{seed}/entropy")
        self._over = False

    def now_ms(self) -> int:
        """The world's clock and everybody else's."""
        return EPOCH_MS + self.universe.now_us // 1000

    def kills(self, entries: Sequence[Entry]) -> bool:
        """Whether this batch is one too many."""
        return self._any(self.deadly, entries)

    def stops_at(self, entries: Sequence[Entry]) -> bool:
        """Whether this batch is the last but for the hand-over."""
        return self._any(self.stops, entries)

    def _any(self, wanted: Deadly | None, entries: Sequence[Entry]) -> bool:
        if wanted is None:
            return False
        events = [self._codec.decode(entry.value) for entry in entries if entry.value is not None]
        # All of them are asked: a batch may hold the outcomes of several calls.
        return any([wanted(event) for event in events])

    def play(
        self, name: str, given: object, *, run_id: str = "run-1", person: Person | None = None
    ) -> "Played":
        """Start run `name` and return what came of it; whatever nobody caught is raised."""
        told: list[Played] = []
        with using(self.client):
            self._start_worker()
            caller = SimProcess(self.universe, "caller", epoch_ms=EPOCH_MS)
            caller.start(self._call(name, given, run_id, person, told))
            self.universe.run(HOUR_US, stop=lambda: bool(told or self.problems))
            self._over = True
            for process in list(self.universe.processes):
                self._note_errors(process)
                process.kill()
        if self.problems:
            raise AssertionError("; ".join(self.problems))
        if not told:
            raise AssertionError(f"run {run_id} had no end within an hour")
        return told[0]

    def effects(self) -> dict[str, int]:
        """How often each kind of thing was done in the world."""
        counted: dict[str, int] = self.world.counters()["effects"]
        return counted

    def claims(self) -> list[PartitionClaimed]:
        """Every claim in the log."""
        events = [self._codec.decode(r.value or b"") for r in self.broker.records(Topic.EVENTS, 0)]
        return [event for event in events if isinstance(event, PartitionClaimed)]

    def _start_worker(self) -> None:
        if self._over:
            return
        self.lives += 1
        name = f"worker-{self.lives}"
        process = SimProcess(self.universe, name, epoch_ms=EPOCH_MS, boot_us=self.lives * 10**9)
        process.on_kill.append(lambda: self._died(process))
        process.start(self._serve(process, name))

    def _died(self, process: SimProcess) -> None:
        self._note_errors(process)
        self.universe.later(RESTART_US, self._start_worker)

    def _note_errors(self, process: SimProcess) -> None:
        for context in process.errors:
            error = context.get("exception")
            self.problems.append(f"{process.name}: nobody caught {error!r} {context['message']}")
        process.errors.clear()

    async def _serve(self, process: SimProcess, name: str) -> None:
        log = DeadlyLog(self, name)
        await log.open(create=False)
        worker = Worker(
            self.app,
            log,
            owner=name,
            process=name,
            clock=process,
            entropy=self._entropy.randbytes,
            settings=WorkerSettings(suggest_ms=200),
            watch=False,
            codec=self._codec,
        )
        process.attached["worker"] = worker
        owners: dict[int, Any] = {}
        stopping = asyncio.create_task(self._hand_over(worker, owners))
        try:
            await worker.run()
        except RefoldError as error:
            self.problems.append(f"{name} ended: {error}")
            return
        await stopping
        for partition, owner in owners.items():
            self._compare(partition, owner)
        await log.close()
        self.universe.later(0, process.kill)

    async def _hand_over(self, worker: Worker, owners: dict[int, Any]) -> None:
        """Keep hold of the owners of a worker that was asked to stop; it forgets them itself."""
        await worker._stopping.wait()
        owners.update(worker.owners)

    def _compare(self, partition: int, owner: Any) -> None:
        """What the owner knew when it handed over is what anybody folds from the log, whole."""
        fold = PartitionFold(self._codec)
        for record in self.broker.records(Topic.EVENTS, partition):
            fold.apply(record)
        self.hand_overs += 1
        taken = {run_id: state_hash(state) for run_id, state in owner.books.states.items()}
        if taken != {run_id: state_hash(state) for run_id, state in fold.runs.items()}:
            self.problems.append(f"partition {partition}: the owner's state is not the log's fold")

    async def _call(
        self,
        name: str,
        given: object,
        run_id: str,
        person: Person | None,
        told: "list[Played]",
    ) -> None:
        log = MemoryLog(f"memory://{self.broker.namespace}", broker=self.broker, name="caller")
        await log.open(create=False)
        async with Client(log) as client:
            handle = await client.start(name, given, run_id=run_id)
            while True:
                seen = await handle.wait()
                if seen.needs != "person" or person is None:
                    break
                for entry in seen.in_doubt:
                    happened, result = person(self.world, entry.slot)
                    with suppress(RefoldError):  # settled meanwhile, or its worker is down
                        await client.resolve(run_id, entry.slot, happened=happened, result=result)
                        self.resolved.append(entry.slot)
                await asyncio.sleep(0.2)
            history = [record async for record in handle.history()]
            error = "" if seen.status == "completed" else f"{seen.status}: {seen.reason}"
            result = await handle.result() if not error else None
        told.append(Played(result, error, history))


class Played:
    """What came of a run: its result, or why there is none, and its records."""

    def __init__(self, result: Any, error: str, history: list[HistoryRecord]) -> None:
        self.result, self.error, self.history = result, error, history

    def events(self, kind: type) -> list[Any]:
        """The counted events of one class, in log order."""
        return [r.event for r in self.history if r.counted and isinstance(r.event, kind)]
