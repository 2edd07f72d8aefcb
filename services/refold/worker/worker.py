"""A worker: claims the partitions that the log suggests, serves them, gives them back."""

import asyncio
import os
import random
import socket
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from refold.app.application import App
from refold.engine.append_stats import AppendStats
from refold.engine.attempts import CANCEL_S
from refold.engine.calls import Call
from refold.engine.clock import Clock, SystemClock
from refold.engine.ending import ClaimEnded, ClaimFenced, ClaimRefused
from refold.engine.outages import UNCLAIMED, Outages
from refold.engine.owner import PartitionOwner, WorkerEvent
from refold.engine.reporter import Reporter
from refold.engine.settings import WorkerSettings
from refold.log.port import Log
from refold.log.routing import check_adopted, routing_count
from refold.settings.registry import open_registry
from refold.settings.signing import Keyring, open_keyring
from refold.worker.listening import never_raising
from refold.worker.overdue import EXIT_OVERDUE, CallOverdue
from refold.worker.watchdog import Watchdog
from refold_schemas.codec import Codec
from refold_schemas.errors import (
    EventsGone,
    LogUnsafe,
    PartitionsRaised,
    RefoldError,
    SchemaChanged,
    SchemaUnavailable,
)
from refold_schemas.errors.log import GOES_ON, START_AGAIN

THREADS_MAX = 32
LOOKUP_THREADS_MAX = 8
HAND_OVER_MS = 5_000
"""How long handing over may take behind the drain: snapshots, `PartitionReleased`, one answer."""
DEFECT_WAIT_MAX_MS = 30_000
"""The longest wait between two tries of a partition whose owner broke by a defect."""
CLAIM_END_MS = 2_000
"""How long an owner may take to end once its claim is over."""
REPORTS_MS = 5_000
"""How long a worker that stops waits for late reports under way."""


class Worker:
    """Owns partitions of one namespace for one app. The log must be open.

    `entropy(n)` gives n random bytes (claim ids, nonces); `on_event` is told what happens, always
    durable things, and what it raises is kept from the work. `exit_hard` ends the process: used
    when a thread that cannot be cancelled outlives its deadline without a claim, since another
    owner counts on it. `codec` is that of the environment's registry (`open_registry`) unless one
    is given.
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
        keyring: Keyring | None = None,
    ) -> None:
        self.app, self.log = app, log
        self._keyring = keyring or open_keyring()
        self.clock = clock or SystemClock()
        self.settings = settings or WorkerSettings()
        # The suffix, because in containers every worker may be pid 1 of a host of one name: two
        # members of one name push each other out of the group for ever.
        self.name = owner or f"{socket.gethostname()}:{os.getpid()}:{entropy(3).hex()}"
        self.process = process or entropy(8).hex()
        self.owners: dict[int, PartitionOwner] = {}
        self._entropy = entropy
        self._random = random.Random(entropy(8))
        self._on_event = None if on_event is None else never_raising(on_event)
        self._exit_hard = exit_hard
        self._codec = codec or Codec(open_registry(log.url))
        self._threads: ThreadPoolExecutor | None = None
        self._lookup_threads: ThreadPoolExecutor | None = None
        self._stopping = asyncio.Event()
        self.failure: BaseException | None = None
        """Why it ends, where it does not end because it was told to."""
        self.handed_over = False
        """Whether it has ended and given up every partition in order."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._troubles: dict[str, type[BaseException]] = {}
        self._outages = Outages(
            lambda kind, partition, text: self._tell(kind, text, partition=partition),
            lambda: sum(not task.done() for task in self._tasks.values()),
            self.clock.boot_ms,
        )
        self._watchdog = Watchdog(self.settings.stall_ms, self._stalled) if watch else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routed = 0
        """Over how many partitions runs are routed."""
        self._counts = {"claims": 0, "events": 0, "appends": 0, "commands": 0}
        self.ends: dict[str, int] = {}
        """How claims ended, by the code of why."""
        self.append_stats = AppendStats()
        """Of claims that are over; each owner has its own."""

    async def run(self) -> None:
        """Serve until `stop()`.

        Raises RefoldError where it must not serve (SchemasUnregistered, RegistryUnavailable before
        anything is claimed); CallOverdue where it handed over and ends, because a call did not end.
        """
        self._loop = asyncio.get_running_loop()
        await self._codec.ready()
        self._routed = await routing_count(self.log, self._codec)
        await check_adopted(self.log, self._codec, self._routed)
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
            routed=self._routed,
            tries=self.settings.report_tries,
            on_lost=lambda run_id, text: self._tell("warning", text, run_id),
        )
        for gap in self.app.plan_gaps():
            self._tell("warning", gap)
        self.log.idle_when(self._is_idle)
        if self._watchdog is not None:
            self._watchdog.start(self._loop)
        watching = None
        if self._codec.asks:
            watching = self._loop.create_task(self._watch_registry(), name="registry")
        try:
            while not self._stopping.is_set():
                await self._follow_suggestions()
                await self._pause(self.settings.suggest_ms / 1000)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait({watching})
            await self._release_all()
            if self._watchdog is not None:
                self._watchdog.stop()
            for pool in (self._threads, self._lookup_threads):
                if pool is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
        if self.failure is not None:
            raise self.failure

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

    @property
    def stalls(self) -> tuple[int, float]:
        """How often the loop stalled, and how long ago it gave a sign of life, in seconds."""
        dog = self._watchdog
        return (0, 0.0) if dog is None else (dog.stalls, dog.silent_s)

    def _is_idle(self) -> bool:
        """Whether nothing goes on in any partition but what waits for the log."""
        return not any(owner.attempts.calls for owner in self.owners.values())

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

    async def _watch_registry(self) -> None:
        """Say when the registry is away and when it is back; end where it has changed an id.

        What is known stays known meanwhile: no run waits for this.
        """
        away_since: float | None = None
        while not self._stopping.is_set():
            await self._pause(self.settings.registry_ms / 1000)
            if self._stopping.is_set():
                return
            try:
                await self._codec.recheck()
            except SchemaChanged as error:
                self._fail(error)
                return
            except RefoldError as error:
                if away_since is None:
                    away_since = self.clock.boot_ms()
                    told = f"registry unreachable: {error.message}; known schemas stay known"
                    self._tell("warning", f"{told} ({error.code})")
                continue
            except Exception as error:  # a defect of what asks; no run is worse off
                self._trouble("registry", error, "the registry is not watched")
                continue
            if away_since is not None:
                away_s = (self.clock.boot_ms() - away_since) / 1000
                self._tell("registry", f"the registry answers again, after {away_s:.0f} s")
                away_since = None

    async def _follow_suggestions(self) -> None:
        """Claim what is suggested; drain and release what goes to another worker."""
        try:
            suggestion = await self.log.suggest(self.name)
        except (LogUnsafe, PartitionsRaised) as error:
            self._fail(error)  # what it is given there it could not keep: a person corrects it
            return
        except RefoldError as error:
            self._trouble("suggest", error, "no partitions can be asked for")
            return
        self._troubles.pop("suggest", None)
        for partition, owner in list(self.owners.items()):
            if partition not in suggestion.partitions and not owner.draining:
                # It goes to another worker for good: hand over rather than be fenced.
                owner.background(owner.release())
        for partition in sorted(suggestion.partitions):
            task = self._tasks.get(partition)
            if task is None or task.done():
                task = asyncio.get_running_loop().create_task(self._own(partition))
                task.add_done_callback(self._own_ended)
                self._tasks[partition] = task

    async def _own(self, partition: int) -> None:
        """Claim and serve one partition, again after each end that allows it."""
        settings = self.settings
        wait_ms = settings.reclaim_min_ms
        while not self._stopping.is_set():
            wait_max_ms = settings.reclaim_max_ms
            begun_ms = self.clock.boot_ms()
            try:
                why = await self._serve(partition)
            except Exception as error:  # a defect: said once, and tried again ever more slowly
                self._trouble(f"partition {partition}", error, f"partition {partition} failed")
                wait_max_ms = DEFECT_WAIT_MAX_MS
            else:
                if why is not None:
                    if not why.again:
                        return
                    self._troubles.pop(f"partition {partition}", None)
                    lasted_ms = self.clock.boot_ms() - begun_ms
                    if isinstance(why, ClaimFenced) and lasted_ms < wait_max_ms:
                        pass  # against another owner: ever more slowly, until one has heard
                    elif why.__cause__ is None or lasted_ms > DEFECT_WAIT_MAX_MS:
                        wait_ms = settings.reclaim_min_ms
                    else:
                        wait_max_ms = DEFECT_WAIT_MAX_MS
            # Jittered, so that two owners that fence each other do not keep step.
            suggested: frozenset[int] | None = None
            while suggested is None:  # nobody claims what may be another's by now
                await self._pause(wait_ms * self._random.uniform(0.5, 1.5) / 1000)
                wait_ms = min(wait_ms * 2, wait_max_ms)
                if self._stopping.is_set():
                    return
                with suppress(RefoldError):
                    suggested = (await self.log.suggest(self.name)).partitions
            if partition not in suggested:
                return

    async def _serve(self, partition: int) -> ClaimEnded | None:
        """One claim from its beginning to its end; None where it could not be made."""
        owner = self._owner(partition)
        try:
            await owner.claim()
        except (ClaimRefused, EventsGone) as error:  # a person has to look at it
            self._fail(error)
            return None
        except (ClaimEnded, RefoldError) as error:
            text = str(error).replace(START_AGAIN, GOES_ON)
            self._outages.has(partition, UNCLAIMED, error, text)
            if (isinstance(error, ClaimEnded) and not error.again) or (
                # No registry is set, or it is another one: it would hold what it cannot serve.
                isinstance(error, SchemaUnavailable) and not error.mends
            ):
                self._fail(error)
            return None
        self._outages.mended(partition)
        self._counts["claims"] += 1
        self.owners[partition] = owner
        if self._stopping.is_set():  # told to stop while it claimed
            owner.background(owner.release())
        try:
            why = await owner.serve()
        except Exception as error:
            owner.broken(error)  # or its tasks would work on beside those of the next claim
            raise
        finally:
            self._forget(partition, owner)
        self.ends[why.code] = self.ends.get(why.code, 0) + 1
        if not why.again and why.exit_code == 4:
            self._fail(why)
        return why

    def _own_ended(self, task: "asyncio.Task[None]") -> None:
        """Nothing escapes `_own` in silence."""
        for partition, known in self._tasks.items():
            if known is task:
                self._outages.left(partition)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _owner(self, partition: int) -> PartitionOwner:
        return PartitionOwner(
            self.app,
            self.log,
            partition,
            self._codec,
            name=self.name,
            process=self.process,
            routed=self._routed,
            clock=self.clock,
            entropy=self._entropy,
            settings=self.settings,
            reporter=self._reporter,
            threads=self._threads,
            lookup_threads=self._lookup_threads,
            keyring=self._keyring,
            outages=self._outages,
            on_event=self._on_event,
            on_running=_nobody_watches if self._watchdog is None else self._watchdog.now,
            on_overdue=self._overdue,
        )

    def _forget(self, partition: int, owner: PartitionOwner) -> None:
        self._counts["events"] += owner.books.event_count
        self._counts["appends"] += owner.tail.appends
        self._counts["commands"] += owner.intake.taken
        self.append_stats.merge(owner.tail.stats)
        if self.owners.get(partition) is owner:
            del self.owners[partition]
        for call in owner.attempts.calls.values():
            if call.running and (call.in_thread or call.cancelled):
                self._overdue(call)

    def _overdue(self, call: Call) -> None:
        """Watch a call that may outlive its deadline: a thread, or one that swallows its cancel.

        Without a claim the process ends hard at the deadline, since another owner counts on it.
        With it, it has `lookup_for` more; then a person is asked, and the worker hands over and
        ends, because nothing else ends such a call.
        """
        grace_ms = 0 if call.in_thread else CANCEL_S * 1000
        self._check_in(call.deadline_boot_ms + grace_ms, self._check_overdue, call)

    def _check_overdue(self, call: Call) -> None:
        if not call.running:
            return
        if not self._is_owned(call):
            self._end_hard(call)
            return
        last_ms = call.deadline_boot_ms + call.definition.lookup_for_ms
        self._check_in(last_ms, self._check_endless, call)

    def _check_endless(self, call: Call) -> None:
        if not call.running:
            return
        if not self._is_owned(call):
            self._end_hard(call)
        elif not self._stopping.is_set():
            self._fail_overdue(call)

    def _end_hard(self, call: Call) -> None:
        if not isinstance(self.failure, CallOverdue):
            self._fail_overdue(call)
        self._exit_hard(EXIT_OVERDUE)

    def _fail_overdue(self, call: Call) -> None:
        overdue_ms = max(self.clock.boot_ms() - call.deadline_boot_ms, 0)
        error = CallOverdue(call.run_id, call.slot, call.attempt, overdue_ms)
        self._tell("warning", str(error), call.run_id)
        self._fail(error)

    def _is_owned(self, call: Call) -> bool:
        """Whether its owner still has the claim and watches over it."""
        name = (call.run_id, call.slot, call.attempt)
        return any(owner.attempts.calls.get(name) is call for owner in self.owners.values())

    def _check_in(self, boot_ms: float, check: Callable[[Call], None], call: Call) -> None:
        assert self._loop is not None
        self._loop.call_later(max(boot_ms - self.clock.boot_ms(), 0) / 1000, check, call)

    async def _release_all(self) -> None:
        """Hand over all partitions at once; what takes too long ends without a release."""
        settings = self.settings
        for owner in self.owners.values():
            owner.background(owner.release())  # one that is being released already goes on
        deadline = self.clock.boot_ms() + settings.drain_ms + HAND_OVER_MS
        in_time = True
        while serving := {task for task in self._tasks.values() if not task.done()}:
            left_ms = deadline - self.clock.boot_ms()
            if left_ms <= 0:
                in_time = False
                await self._abandon(serving)
                break
            await asyncio.wait(serving, timeout=min(settings.suggest_ms, left_ms) / 1000)
            # Still heard of meanwhile: a lease that runs out during a drain would let another
            # worker claim what is about to be handed over.
            with suppress(RefoldError):
                await self.log.suggest(self.name)
        await self._reporter.drained(REPORTS_MS / 1000)
        try:
            await self.log.give_up(self.name)
        except RefoldError as error:
            self._tell(
                "warning",
                f"the partitions could not be given up, another worker gets them "
                f"when the lease has run out: {error.message} ({error.code})",
            )
            return
        self.handed_over = in_time

    async def _abandon(self, serving: "set[asyncio.Task[None]]") -> None:
        """End the claims that are left, and with them the work of their owners."""
        limit_s = (self.settings.drain_ms + HAND_OVER_MS) / 1000
        for partition, owner in list(self.owners.items()):
            owner.tail.end(
                ClaimEnded(
                    f"partition {partition}: it could not be handed over within {limit_s:g} s",
                    kept="every acknowledged event",
                    next="nothing: the next owner claims and folds",
                )
            )
        _, late = await asyncio.wait(serving, timeout=CLAIM_END_MS / 1000)
        for task in late:  # a claim that the log does not answer
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CLAIM_END_MS / 1000)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._stopping.set()

    def _stalled(self, run_id: str | None, stalled_ms: int) -> None:
        what = "the engine" if run_id is None else f"the code of run {run_id}"
        self._tell(
            "warning",
            f"no progress for {stalled_ms} ms: {what} blocks its thread (R021)",
            run_id,
        )

    def _trouble(self, key: str, error: BaseException, what: str) -> None:
        """Say it once for each outage; what kind of error it is may change and is said again."""
        if self._troubles.get(key) is type(error):
            return
        self._troubles[key] = type(error)
        told = str(error).replace(START_AGAIN, GOES_ON)
        if not isinstance(error, RefoldError):
            cause: BaseException = error
            while (deeper := cause.__cause__ or cause.__context__) is not None:
                cause = deeper
            frames = traceback.extract_tb(cause.__traceback__)
            where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            told = f"{type(cause).__name__}: {cause}{where}"
        self._tell("warning", f"{what}, and is tried again: {told}")

    def _tell(self, kind: str, text: str, run_id: str | None = None, partition: int = -1) -> None:
        if self._on_event is not None:
            self._on_event(WorkerEvent(kind, partition, run_id, text, self.clock.wall_ms()))


def _nobody_watches(run_id: str | None) -> None:
    """Whose code runs is of no interest without a watchdog."""
