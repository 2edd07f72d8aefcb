"""A lab whose log is archived: what it held before is remembered, to compare with what is left."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from refold import App, Effect, Policy, RunContext
from refold.engine import checkpoints
from refold.log.memory import MemoryLog
from refold.log.port import Entry, Record, Topic
from refold.testing.sim_loop import SimProcess
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold, state_hash
from refold_projections.fold.learning import fold_all
from refold_schemas.codec import Codec
from refold_schemas.errors import RefoldError
from refold_tools.archive import Archiving, Plan, Report, read_archive
from support.lab import CODEC, EPOCH_MS, Lab
from support.vendor import Vendor

SOON = WorkerSettings(checkpoint_ms=500, idle_after_ms=500)
LATER_MS = EPOCH_MS + 10**9


def shop(vendor: Vendor) -> App:
    """Runs that end at once, and runs that sleep for minutes."""
    app = App("shop")

    @app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(seconds=1))
    async def charge(fx: Effect, pence: int) -> str:
        return await vendor.act(fx, pence=pence)

    @app.run("order")
    async def order(ctx: RunContext, pence: int) -> str:
        return await ctx.step(charge, pence)

    @app.run("reminder")
    async def reminder(ctx: RunContext, pence: int) -> str:
        await ctx.sleep(timedelta(minutes=5))
        return await ctx.step(charge, pence)

    return app


class Archive:
    """A lab whose partition is archived, and what the log held before."""

    def __init__(self, folder: Path, codec: Codec = CODEC, *, partition_count: int = 1) -> None:
        self.folder, self.codec = folder, codec
        self.lab = Lab(settings=SOON, codec=codec, partition_count=partition_count)
        self.vendor = Vendor()
        self.app = shop(self.vendor)
        self.whole: dict[int, Record] = {}
        self.lab.worker(self.app)

    def note(self) -> None:
        """Remember every record that stands now."""
        self.whole.update((r.offset, r) for r in self.lab.broker.records(Topic.EVENTS, 0))

    def runs(self, *names: str, run: str = "order") -> None:
        """Start runs and let them come as far as they do; then a checkpoint is written."""
        for name in names:
            self.lab.start(run, 4160, run_id=name)
        self.lab.run(5)
        self.note()

    def state(self, run_id: str) -> Any:
        return self.due().runs.get(run_id)

    def due(self) -> PartitionFold:
        """What all records together say, those too that are in the log no more."""
        self.note()
        fold = PartitionFold(self.codec)
        fold.apply_all(self.whole[offset] for offset in sorted(self.whole))
        return fold

    def process(self, work: Callable[[MemoryLog], Any], log: MemoryLog | None = None) -> list[Any]:
        """What `work` comes to in a process of its own; nothing where the process was killed."""
        lab, came = self.lab, []
        process = SimProcess(lab.universe, "tool", epoch_ms=EPOCH_MS)
        handle = log or MemoryLog("memory://lab", broker=lab.broker, name="tool")
        process.on_kill.append(handle.kill)

        async def main() -> None:
            await handle.open(create=False)
            try:
                came.append(await work(handle))
            except RefoldError as error:
                came.append(error)
            await handle.close()

        task = process.start(main())
        lab.run(60, until=lambda: task.done() or process not in lab.universe.processes)
        process.kill()
        return came

    def archive(
        self, log: MemoryLog | None = None, codec: Codec | None = None, **options: Any
    ) -> list[Report | RefoldError]:
        plan = Plan(self.folder, LATER_MS, LATER_MS)._replace(**options)
        return self.process(
            lambda handle: Archiving(handle, codec or self.codec, plan).partition(0), log
        )

    def bounds(self, topic: Topic = Topic.EVENTS) -> tuple[int, int]:
        return self.lab.broker.bounds(topic, 0)

    def seen(self, codec: Codec | None = None) -> PartitionFold:
        """What a new reader of the log sees now."""
        known = codec or self.codec

        async def read(log: MemoryLog) -> PartitionFold:
            fold = (await checkpoints.load(log, 0, known)).fold
            offset = fold.position.offset_next
            if offset < self.bounds()[1]:
                await fold_all(fold, await log.read(Topic.EVENTS, 0, offset, size_max=1 << 30))
            return fold

        (fold,) = self.process(read)
        if isinstance(fold, RefoldError):
            raise fold
        assert isinstance(fold, PartitionFold)
        return fold

    def check(self) -> None:
        """A reader of what is left knows every run as one that has read everything."""
        due, seen = self.due(), self.seen()
        assert (seen.position, seen.facts) == (due.position, due.facts)
        assert list(seen.parked.items()) == list(due.parked.items())
        assert set(seen.runs) == set(due.runs)
        for run_id, state in due.runs.items():
            assert state_hash(seen.runs[run_id]) == state_hash(state), run_id

    def snapshots(self, wanted: Callable[[str], bool]) -> list[Entry]:
        """What stands in the snapshots under the keys that are wanted."""
        found = {r.key: r for r in self.lab.broker.records(Topic.SNAPSHOTS, 0)}
        return [
            Entry(key, record.value)
            for key, record in found.items()
            if key is not None and record.value is not None and wanted(key.decode())
        ]

    def damage(self, wanted: Callable[[str], bool], value: bytes | None) -> None:
        """Write something else in their place."""
        entries = [Entry(entry.key, value) for entry in self.snapshots(wanted)]
        assert entries
        self.lab.broker.put(Topic.SNAPSHOTS, 0, entries)
        self.lab.broker.compact()

    def in_files(self) -> list[Record]:
        """All records in the files, those of the last one last."""
        found: dict[int, Record] = {}
        for path in sorted(self.folder.glob("*.jsonl.gz")):
            found.update((record.offset, record) for record in read_archive(path)[1])
        return [found[offset] for offset in sorted(found)]


def is_position(key: str) -> bool:
    return key.startswith("/") and not key.startswith("/archived.")


def the_report(came: list[Report | RefoldError]) -> Report:
    (report,) = came
    assert isinstance(report, Report), report
    return report
