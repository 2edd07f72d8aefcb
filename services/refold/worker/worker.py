"""A worker: claims the partitions that the log suggests, serves them, gives them back."""

import asyncio
import os
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from refold.app.application import App
from refold.engine.calls import Call
from refold.engine.clock import Clock, SystemClock
from refold.engine.ending import ClaimEnded, ClaimRefused
from refold.engine.owner import PartitionOwner, WorkerEvent
from refold.engine.reporter import Reporter
from refold.engine.settings import WorkerSettings
from refold.log.port import Log
from refold.worker.watchdog import Watchdog
from refold_schemas.codec import Codec
from refold_schemas.errors import RefoldError
from refold_schemas.registry import FileRegistry

THREADS_MAX = 32
LOOKUP_THREADS_MAX = 8
EXIT_OVERDUE = 70


class Worker:
    """Owns partitions of one namespace for one app. The log must be open.

    `entropy(n)` gives n random bytes (claim ids, nonces); `on_event` is told what happens, always
    durable things. `exit_hard` ends the process: used when a thread that cannot be cancelled
    outlives its deadline without a claim, since another owner counts on it.
    """

    def __init__(
        self,
        app: App,
        log: Log,
        *,
        owner: str | None = None,
        process: str | None = None,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        settings: WorkerSettings | None = None,
        on_event: Callable[[WorkerEvent], None] | None = None,
        exit_hard: Callable[[int], None] = os._exit,
        watch: bool = True,
        codec: Codec | None = None,
    ) -> None:
        self.app, self.log = app, log
        self.clock = clock or SystemClock()
        self.settings = settings or WorkerSettings()
        self.name = owner or f"{socket.gethostname()}:{os.getpid()}"
        self.process = process or entropy(8).hex()
        self.owners: dict[int, PartitionOwner] = {}
        self._entropy = entropy
        self._random = random.Random(entropy(8))
        self._on_event = on_event or (lambda event: None)
        self._exit_hard = exit_hard
        self._codec = codec or Codec(FileRegistry())
        self._threads: ThreadPoolExecutor | None = None
        self._lookup_threads: ThreadPoolExecutor | None = None
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._watchdog = Watchdog(self.settings.stall_ms, self._stalled) if watch else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._counts = {"claims": 0, "events": 0, "appends": 0, "commands": 0}

    async def run(self) -> None:
        """Serve until `stop()`. Raises RefoldError where it must not serve."""
        self._loop = asyncio.get_running_loop()
        if any(not step.is_async for step in self.app.steps.values()):
            self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="refold-step")
        if any(step.lookup is not None for step in self.app.steps.values()):
            self._lookup_threads = ThreadPoolExecutor(
                LOOKUP_THREADS_MAX, thread_name_prefix="refold-lookup"
            )
        self._reporter = Reporter(
            self.log,
            self._codec,
            self.clock,
            self.name,
            tries=self.settings.report_tries,
            on_lost=lambda run_id, text: self._tell("warning", text, run_id),
        )
        if self._watchdog is not None:
            self._watchdog.start(self._loop)
        try:
            while not self._stopping.is_set():
                await self._follow_suggestions()
                await self._pause(self.settings.suggest_ms / 1000)
        finally:
            await self._release_all()
            if self._watchdog is not None:
                self._watchdog.stop()
            for pool in (self._threads, self._lookup_threads):
                if pool is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin a graceful end: drain, PartitionReleased, give up the partitions."""
        self._stopping.set()

    def stats(self) -> dict[str, int]:
        """Counts since the start: claims, events, appends, commands, reports sent, live runs."""
        counts = dict(self._counts)
        for owner in self.owners.values():
            counts["events"] += owner.books.event_count
            counts["appends"] += owner.tail.appends
            counts["commands"] += owner.intake.taken
        counts["partitions"] = len(self.owners)
        counts["actors"] = sum(len(o.driver.actors) for o in self.owners.values())
        return counts

    def works_on(self, run_id: str) -> bool:
        """Whether something of the run goes on in this process, recorded or not.

        A call that has not ended, a lookup, an event that is still on its way to the log. While
        runs start one at a time (R019) any of them may be next.
        """
        for owner in self.owners.values():
            actor = owner.driver.actors.get(run_id)
            if (
                owner.suspicious
                or owner.attempts.busy(run_id)
                or (actor is not None and actor.lookups)
                or not owner.books.is_durable(run_id)
            ):
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _follow_suggestions(self) -> None:
        """Claim what is suggested; drain and release what goes to another worker."""
        try:
            suggestion = await self.log.suggest(self.name)
        except RefoldError as error:
            self._tell("warning", f"no partitions can be asked for: {error}")
            return
        for partition, owner in list(self.owners.items()):
            if partition not in suggestion.partitions and not owner.draining:
                # It goes to another worker for good: hand over rather than be fenced.
                owner.background(owner.release())
        for partition in sorted(suggestion.partitions):
            task = self._tasks.get(partition)
            if task is None or task.done():
                self._tasks[partition] = asyncio.get_running_loop().create_task(
                    self._own(partition)
                )

    async def _own(self, partition: int) -> None:
        """Claim and serve one partition, again after each end that allows it."""
        wait_ms = self.settings.reclaim_min_ms
        while not self._stopping.is_set():
            owner = self._owner(partition)
            try:
                await owner.claim()
            except ClaimRefused as error:
                self._fail(error)
                return
            except (ClaimEnded, RefoldError) as error:
                self._tell("warning", f"partition {partition} could not be claimed: {error}")
                if isinstance(error, ClaimEnded) and not error.again:
                    self._fail(error)
                    return
            else:
                self._counts["claims"] += 1
                self.owners[partition] = owner
                handing_over: asyncio.Task[None] | None = None
                if self._stopping.is_set():  # told to stop while it claimed
                    handing_over = asyncio.get_running_loop().create_task(owner.release())
                try:
                    why = await owner.serve()
                    if handing_over is not None:
                        await handing_over
                finally:
                    self._forget(partition, owner)
                if not why.again:
                    if why.exit_code == 4:
                        self._fail(why)
                    return
                if why.__cause__ is None:
                    wait_ms = self.settings.reclaim_min_ms
            # Jittered, so that two owners that fence each other do not keep step.
            await self._pause(wait_ms * self._random.uniform(0.5, 1.5) / 1000)
            wait_ms = min(wait_ms * 2, self.settings.reclaim_max_ms)
            try:
                if partition not in (await self.log.suggest(self.name)).partitions:
                    return
            except RefoldError:
                continue

    def _owner(self, partition: int) -> PartitionOwner:
        return PartitionOwner(
            self.app,
            self.log,
            partition,
            self._codec,
            name=self.name,
            process=self.process,
            clock=self.clock,
            entropy=self._entropy,
            settings=self.settings,
            reporter=self._reporter,
            threads=self._threads,
            lookup_threads=self._lookup_threads,
            on_event=self._on_event,
            on_running=self._running,
            on_overdue=self._overdue,
        )

    def _forget(self, partition: int, owner: PartitionOwner) -> None:
        self._counts["events"] += owner.books.event_count
        self._counts["appends"] += owner.tail.appends
        self._counts["commands"] += owner.intake.taken
        if self.owners.get(partition) is owner:
            del self.owners[partition]
        for call in owner.attempts.calls.values():
            if call.in_thread and call.running:
                self._overdue(call)

    def _overdue(self, call: Call) -> None:
        """A thread cannot be cancelled: without a claim the process ends hard at its deadline."""
        loop = self._loop
        assert loop is not None

        def check() -> None:
            if not call.running:
                return
            if any(
                owner.attempts.calls.get((call.run_id, call.slot, call.attempt)) is call
                for owner in self.owners.values()
            ):
                return  # its owner still has the claim and watches over it
            self._exit_hard(EXIT_OVERDUE)

        wait_s = max(call.deadline_boot_ms - self.clock.boot_ms(), 0) / 1000
        loop.call_later(wait_s, check)

    async def _release_all(self) -> None:
        loop = asyncio.get_running_loop()
        left = {loop.create_task(owner.release()) for owner in self.owners.values()}
        while left:
            # All at once, and still heard of meanwhile: a lease that runs out during a drain would
            # let another worker claim what is about to be handed over.
            done, left = await asyncio.wait(left, timeout=self.settings.suggest_ms / 1000)
            for task in done:
                task.result()
            if left:
                with suppress(RefoldError):
                    await self.log.suggest(self.name)
        pending = [task for task in self._tasks.values() if not task.done()]
        if pending:
            _, late = await asyncio.wait(pending, timeout=5)
            for task in late:
                task.cancel()
        await self._reporter.drained(5.0)
        try:
            await self.log.give_up(self.name)
        except RefoldError as error:
            self._tell("warning", f"the partitions could not be given up: {error}")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._stopping.set()

    def _running(self, run_id: str | None) -> None:
        if self._watchdog is not None:
            self._watchdog.now(run_id)

    def _stalled(self, run_id: str | None, stalled_ms: int) -> None:
        what = "the engine" if run_id is None else f"the code of run {run_id}"
        self._tell(
            "warning",
            f"no progress for {stalled_ms} ms: {what} blocks its thread (R021)",
            run_id,
        )

    def _tell(self, kind: str, text: str, run_id: str | None = None) -> None:
        self._on_event(WorkerEvent(kind, -1, run_id, text, self.clock.wall_ms()))
