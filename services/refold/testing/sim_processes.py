"""The simulated worker processes: they start, crash, freeze, hand over and come back, seeded."""

from typing import TYPE_CHECKING, Any

from refold.engine.settings import WorkerSettings
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Ack, Entry, LogFacts, Record, Suggestion, Topic, Upgrade
from refold.testing.sim_app import app
from refold.testing.sim_loop import SimProcess
from refold.testing.sim_world import Link
from refold.worker import Worker
from refold_schemas.errors.base import RefoldError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refold.testing.simulate import Simulation


class SimLog:
    """A process's handle on the memory log, with points to die or stop at around every append."""

    def __init__(self, simulation: "Simulation", process: SimProcess, lease_ms: int) -> None:
        self.simulation, self.process, self.lease_ms = simulation, process, lease_ms
        broker: MemoryBroker = simulation.broker
        self.inner = MemoryLog(f"memory://{broker.namespace}", broker=broker, name=process.name)
        self.rng = simulation.random(f"hooks/{process.name}")
        process.on_kill.append(self.inner.kill)

    @property
    def url(self) -> str:
        """As the memory log's."""
        return self.inner.url

    @property
    def facts(self) -> LogFacts:
        """As the memory log's."""
        return self.inner.facts

    async def open(self, *, create: bool) -> bool:
        """As the memory log's."""
        return await self.inner.open(create=create)

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """As inner."""
        return await self.inner.upgrade(dry_run=dry_run)

    async def close(self) -> None:
        """As the memory log's."""
        await self.inner.close()

    def idle_when(self, is_idle: "Callable[[], bool]") -> None:
        """Passed on."""
        self.inner.idle_when(is_idle)

    async def append(self, topic: Topic, partition: int, entries: "Sequence[Entry]") -> Ack:
        """Append; tell the checkers what the process was told, and when it had sent it."""
        await self._hook("before append")
        sent_boot_us = self.process.boot_us()
        ack = await self.inner.append(topic, partition, entries)
        await self._hook("after append")
        if topic is Topic.EVENTS and ack.offset is not None and ack.offset >= 0:
            self.simulation.watch.batch_told(
                self.process, partition, ack.offset, len(entries), sent_boot_us
            )
        return ack

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> "Sequence[Record]":
        """As the memory log's."""
        return await self.inner.read(topic, partition, offset, size_max=size_max)

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """As the memory log's."""
        return await self.inner.bounds(topic, partition)

    async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
        """As the memory log's."""
        return await self.inner.wait(topic, partition, offset, timeout_ms=timeout_ms)

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """As the memory log's."""
        return await self.inner.trim(topic, partition, before_offset)

    async def owner_lives(self, partition: int) -> bool | None:
        """As the memory log's."""
        return await self.inner.owner_lives(partition)

    async def suggest(self, owner: str) -> Suggestion:
        """As the memory log's."""
        return await self.inner.suggest(owner)

    async def give_up(self, owner: str) -> None:
        """As the memory log's."""
        await self.inner.give_up(owner)

    async def _hook(self, point: str) -> None:
        simulation, rng = self.simulation, self.rng
        if rng.random() >= simulation.rates.hook_p:
            return
        if rng.random() < 0.6:
            simulation.journal.fault(f"crash {point}", self.process.name)
            await self.process.kill_here()
        duration_us = rng.randint(50, self.lease_ms * 2) * 1000
        simulation.journal.fault(f"freeze {point}", self.process.name, f"{duration_us / 1e6} s")
        await self.process.freeze_here(duration_us, machine=rng.random() < 0.5)


class WorkerSlot:
    """A place for one worker at a time: `w0`, `w1`, …; `process` is None between two lives."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self.fleet, self.number = fleet, number
        self.lives = 0
        self.process: SimProcess | None = None
        self.worker: Worker | None = None
        self.running = False

    def start(self) -> None:
        """Start a fresh process with a worker in it."""
        fleet, simulation = self.fleet, self.fleet.simulation
        if self.process is not None or fleet.stopping:
            return
        rng, profile = fleet.rng, simulation.profile
        self.lives += 1
        name = f"w{self.number}.{self.lives}"
        process = SimProcess(
            simulation.universe,
            name,
            epoch_ms=fleet.epoch_ms,
            rate_ppm=rng.randint(-profile.rate_ppm, profile.rate_ppm),
            skew_ms=rng.randint(-profile.skew_ms, profile.skew_ms),
            boot_us=rng.randint(0, 10**12),
        )
        self.process = process
        process.attached["skew_ms"] = process.skew_ms
        link = Link(simulation.vendor, process, fleet.lease_ms)
        process.attached["link"] = link
        process.on_kill.append(lambda: setattr(link, "dead", True))
        process.on_kill.append(self._died)
        log = SimLog(simulation, process, fleet.lease_ms)
        entropy = simulation.random(f"entropy/{name}")
        same_name = rng.random() < 0.5
        self.worker = Worker(
            app,
            log,
            owner=f"w{self.number}" if same_name else name,
            process=name,
            clock=process,
            entropy=entropy.randbytes,
            settings=fleet.settings,
            watch=False,
            codec=simulation.codec_of_a_process(),
        )
        self.running = True
        if self.lives > 1:
            simulation.journal.fault("restart", name)
        process.start(self._main(process, self.worker, log))

    async def _main(self, process: SimProcess, worker: Worker, log: SimLog) -> None:
        journal = self.fleet.simulation.journal
        try:
            await log.open(create=True)
            await worker.run()
            journal.note(process.name, "the worker returned")
        except RefoldError as error:
            # A refusal to serve (its clock, the log): people see it and start it again.
            journal.note(process.name, f"the worker ended: {error}")
            journal.counts["workers refused"] += 1
        except Exception as error:
            if not process.alive:
                raise  # a dead process's last words
            journal.violate(f"{process.name} ended with {type(error).__name__}: {error}")
        await log.close()
        self.fleet.simulation.universe.later(0, process.kill)

    def _died(self) -> None:
        self.process, self.worker, self.running = None, None, False
        delay_us = self.fleet.rng.randint(20_000, 3_000_000)
        self.fleet.simulation.universe.later(delay_us, self.start)


class Fleet:
    """All workers, and what happens to their processes."""

    def __init__(
        self, simulation: "Simulation", epoch_ms: int, lease_ms: int, settings: WorkerSettings
    ) -> None:
        self.simulation = simulation
        self.epoch_ms, self.lease_ms, self.settings = epoch_ms, lease_ms, settings
        self.rng = simulation.random("processes")
        self.stopping = False
        self.slots = [WorkerSlot(self, number) for number in range(simulation.profile.workers)]

    def begin(self) -> None:
        """Start every worker within the first half second, and plan the faults."""
        universe, profile = self.simulation.universe, self.simulation.profile
        for slot in self.slots:
            universe.later(self.rng.randint(0, 500_000), slot.start)
        for mean_s, act in (
            (profile.crash_mean_s, self._crash),
            (profile.freeze_mean_s, self._freeze),
            (profile.handover_mean_s, self._hand_over),
            (profile.jump_mean_s, self._jump),
            (profile.suggest_mean_s, self._suggest_both),
        ):
            if mean_s > 0:
                self._again(mean_s, act)

    def _again(self, mean_s: float, act: Any) -> None:
        def happen() -> None:
            if not self.simulation.calm:
                act()
                self._again(mean_s, act)

        self.simulation.universe.later(int(self.rng.expovariate(1 / mean_s) * 1e6), happen)

    def _any(self) -> WorkerSlot | None:
        alive = [slot for slot in self.slots if slot.process is not None]
        return self.rng.choice(alive) if alive else None

    def _crash(self) -> None:
        slot = self._any()
        if slot is not None and slot.process is not None:
            self.simulation.journal.fault("crash", slot.process.name)
            slot.process.kill()

    def _freeze(self) -> None:
        slot = self._any()
        if slot is None or slot.process is None or slot.process.frozen:
            return
        beyond, machine = self.rng.random() < 0.5, self.rng.random() < 0.3
        low, high = (self.lease_ms + 500, self.lease_ms * 4) if beyond else (50, self.lease_ms)
        duration_us = self.rng.randint(low, high) * 1000
        kind = "machine asleep" if machine else "freeze beyond the lease" if beyond else "freeze"
        self.simulation.journal.fault(kind, slot.process.name, f"{duration_us / 1e6} s")
        slot.process.freeze(duration_us, machine=machine)

    def _hand_over(self) -> None:
        slot = self._any()
        if slot is not None and slot.process is not None and slot.worker is not None:
            self.simulation.journal.fault("clean hand-over", slot.process.name)
            slot.process.loop.call_soon(slot.worker.stop)

    def _jump(self) -> None:
        slot = self._any()
        if slot is None or slot.process is None:
            return
        process = slot.process
        home_ms = process.attached["skew_ms"]
        jump_ms = self.rng.choice((-1, 1)) * self.rng.randint(200, 9_000)
        process.skew_ms = home_ms + jump_ms
        self.simulation.journal.fault("wall clock jump", process.name, f"{jump_ms} ms")
        after_us = self.rng.randint(500_000, 6_000_000)
        self.simulation.universe.later(after_us, lambda: setattr(process, "skew_ms", home_ms))

    def _suggest_both(self) -> None:
        faults = self.simulation.faults
        partition = self.rng.randrange(self.simulation.broker.partition_count)
        faults.both = faults.both | {partition}
        after_us = self.rng.randint(1_000_000, 6_000_000)
        self.simulation.universe.later(
            after_us, lambda: setattr(faults, "both", faults.both - {partition})
        )

    def calm(self) -> None:
        """Thaw everybody and set the clocks right; who is down comes back by itself."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.thaw()
                slot.process.skew_ms = slot.process.attached["skew_ms"]

    def check(self) -> None:
        """An exception that nobody caught is a defect of the worker."""
        for process in self.simulation.universe.processes:
            for context in process.errors:
                error = context.get("exception")
                told = f"{type(error).__name__}: {error}" if error else context.get("message")
                self.simulation.journal.violate(f"{process.name}: nobody caught {told}")
            process.errors.clear()

    def owners(self) -> list[tuple[str, int, Any]]:
        """Every partition owner there is, the fenced ones included: process, partition, owner."""
        return [
            (slot.process.name, partition, owner)
            for slot in self.slots
            if slot.process is not None and slot.worker is not None
            for partition, owner in sorted(slot.worker.owners.items())
        ]

    def stop(self) -> None:
        """Ask every worker to stop."""
        self.stopping = True
        for slot in self.slots:
            if slot.process is not None and slot.worker is not None:
                slot.process.loop.call_soon(slot.worker.stop)

    def stopped(self) -> bool:
        """Whether all have returned."""
        return not any(slot.running for slot in self.slots)
