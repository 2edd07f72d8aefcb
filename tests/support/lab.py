"""A laboratory for engine tests: a log in memory, workers as simulated processes, virtual time."""

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar
from uuid import UUID

from refold.app import App
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Entry, Topic
from refold.testing.sim_codec import shared_codec
from refold.testing.sim_loop import SimProcess, Universe
from refold.worker import Worker, WorkerEvent, WorkerSettings
from refold_projections.fold import Boundary, PartitionFold, RunState, boundary
from refold_schemas.codec import Codec
from refold_schemas.commands import CancelRun, Command, ResolveStep, RetryRun, StartRun
from refold_schemas.errors import RefoldError
from refold_schemas.events import Event
from refold_schemas.values import encode_value

EPOCH_MS = 1_800_000_000_000
CODEC = shared_codec()


class Lab:
    """Everything is deterministic: the same calls give the same log."""

    made: ClassVar[list["Lab"]] = []

    def __init__(
        self,
        *,
        settings: WorkerSettings | None = None,
        seed: int = 1,
        partition_count: int = 1,
        codec: Codec = CODEC,
    ) -> None:
        """`codec` is that of the lab's own reader and of workers that are given no other."""
        Lab.made.append(self)
        self.settings = settings or WorkerSettings()
        self.codec = codec
        self.universe = Universe(Random(seed))
        self.broker = MemoryBroker(
            "lab",
            partition_count=partition_count,
            lease_ms=3_000,
            now_ms=self.now_ms,
            schedule=self.universe.schedule_ms,
        )
        self.broker.exists = True
        self.told: list[WorkerEvent] = []
        self.workers: dict[str, Worker] = {}
        self.failures: dict[str, RefoldError] = {}
        """What `Worker.run` raised, by process."""
        self.exits: dict[str, int] = {}
        """The codes of processes that ended hard."""
        self._lives = 0
        self._reader, self._read = PartitionFold(self.codec), 0
        self._random = Random(seed)

    def end(self) -> None:
        """Kill what still lives: its coroutines must not be closed without their loop."""
        for process in list(self.universe.processes):
            process.kill()

    def now_ms(self) -> int:
        return EPOCH_MS + self.universe.now_us // 1000

    def worker(
        self, app: App, *, name: str = "worker", codec: Codec | None = None, **clock: Any
    ) -> SimProcess:
        """Start a worker process."""
        self._lives += 1
        process = SimProcess(self.universe, f"life-{self._lives}", epoch_ms=EPOCH_MS, **clock)
        log = MemoryLog("memory://lab", broker=self.broker, name=process.name)
        process.on_kill.append(log.kill)
        worker = Worker(
            app,
            log,
            owner=name,
            process=process.name,
            clock=process,
            entropy=Random(f"{process.name}").randbytes,
            settings=self.settings,
            on_event=self.told.append,
            exit_hard=lambda code: self._exit_hard(process, code),
            watch=False,
            codec=codec or self.codec,
        )
        self.workers[process.name] = worker

        async def main() -> None:
            await log.open(create=True)
            try:
                await worker.run()
            except RefoldError as error:
                self.failures[process.name] = error

        process.start(main())
        return process

    def _exit_hard(self, process: SimProcess, code: int) -> None:
        self.exits[process.name] = code
        process.kill()

    def run(self, seconds: float = 10.0, *, until: Callable[[], bool] | None = None) -> bool:
        """Let virtual time pass; True if `until` came true."""
        stop = until or (lambda: False)
        end_us = self.universe.now_us + int(seconds * 1e6)
        return self.universe.run(end_us, stop=stop, turns_max=5_000_000)

    def stop(self, process: SimProcess) -> None:
        """A graceful end, as at SIGTERM."""
        self.workers[process.name].stop()
        self.run(20, until=lambda: not self.workers[process.name].owners)
        self.run(0.1)

    # ---- commands

    def publish(self, command: Command) -> str:
        entry = Entry(command.run_id.encode(), self.codec.encode(command))
        self.broker.put(Topic.COMMANDS, 0, [entry])
        return command.command_id

    def _id(self) -> str:
        return str(UUID(bytes=self._random.randbytes(16)))

    def start(self, run: str, given: object = None, *, run_id: str = "run-1") -> str:
        return self.publish(StartRun(self._id(), run_id, run, encode_value(given), None, "tester"))

    def cancel(self, run_id: str = "run-1") -> str:
        return self.publish(CancelRun(self._id(), run_id, "tester", "enough"))

    def retry(
        self, run_id: str = "run-1", slot: str | None = None, *, fresh_key: bool = False
    ) -> str:
        return self.publish(RetryRun(self._id(), run_id, slot, fresh_key, "tester", "again"))

    def resolve(
        self,
        slot: str,
        *,
        happened: bool,
        result: object = None,
        attempt: int | None = None,
        run_id: str = "run-1",
    ) -> str:
        value = encode_value(result) if happened else None
        return self.publish(
            ResolveStep(self._id(), run_id, slot, attempt, happened, value, "tester", "looked")
        )

    def say_it_did_not_happen(self, slot: str, *, run_id: str = "run-1") -> Command:
        """The same as `resolve`; returns the command, so that it can be sent once more."""
        word = ResolveStep(self._id(), run_id, slot, None, False, None, "tester", "looked")
        self.publish(word)
        return word

    # ---- what the log says

    def fold(self) -> PartitionFold:
        """A reader that has read everything; the same one each time, so that asking is cheap."""
        records = self.broker.records(Topic.EVENTS, 0)
        self._reader.apply_all(records[self._read :])
        self._read = len(records)
        return self._reader

    def state(self, run_id: str = "run-1") -> RunState:
        return self.fold().runs[run_id]

    def status(self, run_id: str = "run-1") -> str:
        fold = self.fold()
        return boundary(fold.runs[run_id], fold.claim_id).status if run_id in fold.runs else ""

    def needs(self, who: str, run_id: str = "run-1") -> bool:
        """Whether the run waits for `who` (person, code, time)."""
        fold = self.fold()
        return run_id in fold.runs and boundary(fold.runs[run_id], fold.claim_id).needs == who

    def boundary(self, run_id: str = "run-1") -> Boundary:
        fold = self.fold()
        return boundary(fold.runs[run_id], fold.claim_id)

    def events(self, kind: type | None = None, run_id: str = "run-1") -> list[Event]:
        """The events of a run that count, in log order."""
        fold = PartitionFold(self.codec)
        found = []
        for record in self.broker.records(Topic.EVENTS, 0):
            applied = fold.apply(record)
            if applied.run_id == run_id and applied.event is not None:
                found.append(applied.event)
        return [e for e in found if kind is None or isinstance(e, kind)]

    def ended(self, run_id: str = "run-1") -> bool:
        runs = self.fold().runs
        return run_id in runs and runs[run_id].ended is not None
