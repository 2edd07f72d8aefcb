"""The owner of one partition: claims it, folds it, and lets the rooms around it do their work."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from refold.app.application import App
from refold.engine import checkpoints
from refold.engine.attempts import Attempts
from refold.engine.books import Books
from refold.engine.calls import Call
from refold.engine.clock import Clock
from refold.engine.driver import Driver
from refold.engine.ending import (
    ClaimEnded,
    ClaimFenced,
    ClaimRefused,
    ClaimReleased,
    ClaimUnknown,
    LogWasCut,
)
from refold.engine.intake import Intake
from refold.engine.reporter import Reporter
from refold.engine.session import LogLine
from refold.engine.settings import WorkerSettings
from refold.engine.settling import Settling
from refold.engine.tail import Tail
from refold.engine.timers import Timers
from refold.log.port import Entry, Log, Record, Topic
from refold_projections.fold import (
    Boundary,
    PartitionFold,
    Position,
    RunState,
    Slot,
    boundary,
    sentence,
)
from refold_schemas.codec import KIND_CLAIM, Codec, RecordHeader
from refold_schemas.errors import AppendUnknown, RefoldError
from refold_schemas.events import PartitionClaimed, PartitionReleased, TimerFired

READ_BYTES = 4 << 20
HOUSEKEEPING_S = 0.25
TOMBSTONES_MAX = 1_000


class WorkerEvent(NamedTuple):
    """Something that people may want to see: all of it is durable in the log when it is told.

    `kind`: claimed, resumed, completed, failed, cancelled, in_doubt, blocked, diverged, conflict,
    rejected, warning, ended_claim, released, log.
    """

    kind: str
    partition: int
    run_id: str | None
    text: str
    at_ms: int


class PartitionOwner:
    """Made for one claim: when it ends, the owner and all its state are dropped."""

    def __init__(
        self,
        app: App,
        log: Log,
        partition: int,
        codec: Codec,
        *,
        name: str,
        process: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
        settings: WorkerSettings,
        reporter: Reporter,
        threads: Executor | None,
        on_event: Callable[[WorkerEvent], None],
        on_running: Callable[[str | None], None],
        on_overdue: Callable[[Call], None],
    ) -> None:
        self.app, self.log, self.partition, self.codec = app, log, partition, codec
        self.name, self.process = name, process
        self.clock, self.entropy, self.settings = clock, entropy, settings
        self.reporter, self.threads = reporter, threads
        self.namespace = log.facts.namespace
        self.zone = ZoneInfo(app.time_zone)
        self.claimed_boot_ms = 0
        self._claim_sent_boot_ms = self._claim_append_ms = 0
        self.ended = False
        self.why: ClaimEnded | None = None
        self.draining = False
        self.books: Books
        self.tail: Tail
        self.timers: Timers
        self.driver = Driver(self)
        self.attempts = Attempts(self)
        self.settling = Settling(self)
        self.intake = Intake(self)
        self._on_event, self._on_running, self._on_overdue = on_event, on_running, on_overdue
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done = asyncio.Event()
        self._told: set[str] = set()
        self._checkpoint_events = 0
        self._checkpoint_boot_ms = 0

    # ---- claiming

    async def claim(self) -> None:
        """Append a claim, unconditionally, and fold everything up to and including it.

        Raises ClaimRefused before anything is written if the log's facts are not those of the last
        claim, or afterwards if a clock is wrong; ClaimUnknown or ClaimFenced if this claim does
        not own the partition. Source: design, section 3.1, rule 1.
        """
        fold, self._kept = await checkpoints.load(self.log, self.partition, self.codec)
        await self._read_on(fold, None)
        self._check_facts(fold)
        claim_id = self.entropy(16)
        epoch = fold.position.claim_epoch + 1
        asked_ms = self.clock.wall_ms()
        self._claim_sent_boot_ms = self.clock.boot_ms()
        header = RecordHeader(KIND_CLAIM, claim_id, epoch, 0, asked_ms, 0)
        claimed = self._claimed_event()
        entry = Entry(None, self.codec.encode(claimed), header.pack())
        offset, append_ms = await self._append_claim(entry)
        self.claimed_boot_ms = self.clock.boot_ms()
        self._claim_append_ms = await self._read_on(fold, offset + 1)
        if fold.position.last_offset != offset or fold.position.claim_id != claim_id:
            newer = fold.position.claim_id
            raise ClaimFenced(self.partition, claim_id, newer, fold.position.last_offset)
        self._check_clock(asked_ms, append_ms)
        self._take_over(fold, epoch)

    def _claimed_event(self) -> PartitionClaimed:
        from refold import __version__

        facts = self.log.facts
        return PartitionClaimed(
            self.name,
            self.process,
            self.app.name,
            __version__,
            tuple(self.app.versions),
            facts.topic_ids,
            facts.partition_count,
            self.settings.format_level,
        )

    async def _append_claim(self, entry: Entry) -> tuple[int, int | None]:
        try:
            async with asyncio.timeout(self.settings.append_timeout_ms / 1000):
                ack = await self.log.append(Topic.EVENTS, self.partition, [entry])
        except Exception as error:  # whatever it was: the claim may be stored, now or later
            raise ClaimUnknown(self.partition, f"{type(error).__name__}: {error}") from error
        if ack.offset is None or ack.offset < 0:
            raise ClaimUnknown(self.partition, f"the claim was acknowledged at {ack.offset}")
        return ack.offset, ack.append_ms

    async def _read_on(self, fold: PartitionFold, until: int | None) -> int:
        """Fold from the fold's position to the log's end, or up to `until`.

        Returns the append time of the last record.
        """
        append_ms = 0
        _, end = await self.log.bounds(Topic.EVENTS, self.partition)
        if fold.position.offset_next > end:
            raise LogWasCut(
                self.partition,
                f"it ends at {end}, below {fold.position.offset_next} where a checkpoint stands",
            )
        stop = end if until is None else until
        while fold.position.offset_next < stop:
            records = await self.log.read(
                Topic.EVENTS, self.partition, fold.position.offset_next, size_max=READ_BYTES
            )
            for record in records:
                if record.offset >= stop:
                    return append_ms
                fold.apply(record)
                append_ms = record.append_ms
            if not records:
                if until is None:
                    return append_ms  # holes at the end
                raise ClaimUnknown(
                    self.partition, "the claim is not found where it was acknowledged"
                )
            await asyncio.sleep(0)
        return append_ms

    def _check_facts(self, fold: PartitionFold) -> None:
        before, facts = fold.facts, self.log.facts
        if not before.app:
            return
        level = self.settings.format_level
        if before.app != self.app.name:
            what = f"belongs to app {before.app!r}, not {self.app.name!r}"
            then = "give this app a namespace of its own"
        elif before.partition_count != facts.partition_count:
            what = f"had {before.partition_count} partitions and has {facts.partition_count} now"
            then = "restore the partition count: runs live where their run_id hashes to"
        elif before.topic_ids != facts.topic_ids:
            what = "is not the log that was claimed before: its topics were made anew"
            then = "find out who deleted or restored it before a worker serves it"
        elif before.format_level > level:
            what = f"is written in format level {before.format_level}, this version knows {level}"
            then = "start a version of refold that knows it"
        else:
            return
        raise ClaimRefused(
            f"partition {self.partition} of {self.namespace!r} {what}",
            kept="everything; nothing was written",
            next=then,
        )

    def _check_clock(self, asked_ms: int, append_ms: int | None) -> None:
        if append_ms is None:
            return
        now_ms = self.clock.wall_ms()
        skew = max(asked_ms - append_ms, append_ms - now_ms)
        if skew > self.settings.clock_skew_max_ms:
            raise ClaimRefused(
                f"partition {self.partition}: this machine's wall clock and the log's differ by "
                f"{skew / 1000:.1f} s",
                kept="everything; the claim was written and serves nothing",
                next="set the clock, then start the worker again",
            )

    def _take_over(self, fold: PartitionFold, epoch: int) -> None:
        self.timers = Timers(self.clock, self._fire, at_once=self.settings.timers_at_once)
        self.books = Books(
            fold,
            self.codec,
            self.clock,
            epoch=epoch,
            batch_size_max=self.log.facts.batch_size_max,
            on_timer=self.timers.add,
            on_change=lambda run_id, state: self.soon(self._write_conflicts, run_id),
        )
        self.tail = Tail(
            self.log,
            self.partition,
            fold.position.claim_id,
            fold.position,
            batch_bytes=self.settings.batch_bytes,
            timeout_ms=self.settings.append_timeout_ms,
            on_report=self._reported,
            on_end=self._claim_over,
        )
        self.books.tail = self.tail
        # What was folded after its snapshot is not in any snapshot yet.
        stands = self._kept.marks
        self.books.dirty = {r: None for r, mark in fold.marks.items() if stands.get(r) != mark}
        self.suspicious = fold.facts.unclean_row >= self.settings.unclean_suspicious
        self._checkpoint_boot_ms = self.clock.boot_ms()

    # ---- serving

    async def serve(self) -> ClaimEnded:
        """Do the partition's work until the claim ends; returns why it did."""
        self.tell("claimed", None, f"claim {self.books.claim_id.hex()[:8]}")
        if self.suspicious:
            self.warn(
                "R019",
                None,
                f"{self.books.facts.unclean_row} processes in a row ended without a release: runs "
                "start one at a time, each step with an intent",
            )
        for run_id, state in list(self.books.states.items()):
            if state.red or state.stray:
                self._write_conflicts(run_id)
        self.timers.load(self.books.states)
        self.driver.activate_all()
        self.background(self.intake.run())
        self.background(self._housekeeping())
        await self._done.wait()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        assert self.why is not None
        return self.why

    async def release(self) -> None:
        """Hand over cleanly: no new work, drain within the limit, snapshots, PartitionReleased."""
        if self.ended or self.draining:
            return
        self.draining = True
        self.timers.close()
        deadline = self.clock.boot_ms() + self.settings.drain_ms
        while self.attempts.calls and not self.ended and self.clock.boot_ms() < deadline:  # noqa: ASYNC110 - calls end in many places
            await asyncio.sleep(0.01)
        self.driver.drop_all()
        if self.ended:
            return
        left = len(self.attempts.calls)
        why = f"drained but for {left} attempts in flight" if left else "drained"
        self.books.commit(None, (PartitionReleased(why),))
        await self.tail.drained()
        if not self.ended:
            await self.checkpoint()
        self.tail.end(ClaimReleased(self.partition, "the worker stops"))

    def _claim_over(self, why: ClaimEnded) -> None:
        """Rules 5 and 7: run code stops, calls in flight go on to their deadline and report."""
        if self.ended:
            return
        self.ended, self.why = True, why
        self.timers.close()
        self.driver.drop_all()
        self.attempts.claim_over()
        if not isinstance(why, ClaimReleased):
            self.tell("ended_claim", None, str(why))
        self._done.set()

    async def _housekeeping(self) -> None:
        """Look for reports and foreign claims while idle, evict idle runs, write checkpoints."""
        settings = self.settings
        every_s = settings.tail_check_ms / 1000
        since_s = 0.0
        while not self.ended:
            await asyncio.sleep(every_s)
            if self.tail.quiet:
                await self.tail.look()
            since_s += every_s
            if since_s < HOUSEKEEPING_S or self.ended:
                continue
            since_s = 0.0
            self.driver.evict_idle()
            events = self.books.event_count - self._checkpoint_events
            waited = self.clock.boot_ms() - self._checkpoint_boot_ms
            if events >= settings.checkpoint_events or (
                events and waited >= settings.checkpoint_ms
            ):
                await self.checkpoint()

    async def checkpoint(self) -> None:
        """Snapshot every run that changed, then the position. Failing costs a longer fold only."""
        position = self.tail.position
        facts = self.books.facts._replace(
            process=self.process,
            owner=self.name,
            app=self.app.name,
            partition_count=self.log.facts.partition_count,
            topic_ids=self.log.facts.topic_ids,
            format_level=self.settings.format_level,
            released=self.draining and self.tail.quiet,
        )
        runs = list(self.books.unsaved())
        dirty, self.books.dirty = self.books.dirty, {}
        self._checkpoint_events = self.books.event_count
        self._checkpoint_boot_ms = self.clock.boot_ms()
        label = self._kept.label(self.books.claim_id)
        try:
            for batch in checkpoints.snapshot_batches(
                self.codec, label, runs, self.log.facts.batch_size_max
            ):
                await self._keep(batch)
            kept = checkpoints.checkpoint_of(self.partition, position, facts)
            await self._keep([Entry(f"/{label}".encode(), self.codec.encode(kept))])
        except (RefoldError, OSError, TimeoutError) as error:
            self.books.dirty = {**dirty, **self.books.dirty}
            self._kept.failed((state.run_id for state, _ in runs), label)
            self.warn("R016", None, f"no checkpoint could be written: {error}")
            return
        # Only now: until the new position stands, the old snapshots are what a reader needs.
        old = self._kept.replaced((state.run_id for state, _ in runs), label)
        try:
            for i in range(0, len(old), TOMBSTONES_MAX):
                await self._keep([Entry(key, None) for key in old[i : i + TOMBSTONES_MAX]])
        except (RefoldError, OSError, TimeoutError) as error:
            self.warn("R016", None, f"old snapshots could not be deleted: {error}")

    async def _keep(self, entries: list[Entry]) -> None:
        """Append to the snapshots. Raises what the log raises, also where its answer is unknown."""
        async with asyncio.timeout(self.settings.append_timeout_ms / 1000):
            ack = await self.log.append(Topic.SNAPSHOTS, self.partition, entries)
        if ack.offset is None or ack.offset < 0:
            told = f"it was acknowledged with offset {ack.offset}"
            raise AppendUnknown(topic=Topic.SNAPSHOTS.value, partition=self.partition, reason=told)

    async def room(self) -> None:
        """Wait while more is queued than the log keeps up with: every queue has a limit."""
        while self.tail.queued_bytes > self.settings.queue_bytes_max and not self.ended:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.005)

    # ---- what happens

    def start_new(self, run_id: str) -> None:
        """A run was started by a command, and that is durable: its code begins."""
        if not self.draining:
            self.driver.begin(run_id)

    def _fire(self, run_id: str, timer_id: str, generation: int) -> None:
        state = self.books.states.get(run_id)
        timer = None if state is None else state.timers.get(timer_id)
        if state is None or timer is None or timer.generation != generation or self.ended:
            return
        if state.ended is not None and timer.kind != "proof":
            return
        then = self.driver.then_deliver(run_id, timer.slot) if timer.kind == "sleep" else None
        self.books.commit(run_id, (TimerFired(timer_id, generation),), then=then)
        if timer.kind == "proof":
            self.settling.prove(run_id, timer.slot)
            return
        actor = self.driver.actors.get(run_id)
        if actor is None or (actor.session is None and state.cancel is None):
            self.driver.activate(run_id)
        elif timer.kind == "sleep":
            self.driver.outcome_recorded(run_id, timer.slot)
        else:
            self.settling.look_at(run_id, timer.slot)

    def _reported(self, record: Record) -> None:
        """A late report was read: evidence, which may settle a slot in doubt."""
        run_id = self.books.report(record)
        if run_id is None:
            return
        state = self.books.states[run_id]
        for name in state.open_slots:
            self.soon(self.settling.look_at, run_id, name)

    def _write_conflicts(self, run_id: str) -> None:
        """EvidenceConflict, in an ended run too: a red row, never a silent repair."""
        from refold.engine.decide import conflicts_found

        state = self.books.states.get(run_id)
        if state is None or self.ended or not (state.red or state.stray):
            return
        events = conflicts_found(state)
        slots = ", ".join(sorted({name for name, _ in state.red} | {s[0] for s in state.stray}))
        self.books.commit(
            run_id,
            events,
            then=lambda: self.tell("conflict", run_id, f"evidence contradicts the record: {slots}"),
        )

    def believed_at_ms(self, run_id: str, slot: Slot) -> int:
        """From which moment on, by the log's own clock, "it did not happen" can be believed.

        A person's word counts from when it was appended, not from when it is decided: one that lay
        in a backlog may have been given while a call could still act. The log's clock is known at
        our claim's append, which came after `_claim_sent_boot_ms`, so this errs on the late side.
        """
        boot_ms = self.clock.boot_ms() + self.settling.believe_in_ms(run_id, slot)
        return self._claim_append_ms + boot_ms - self._claim_sent_boot_ms

    def thread_overdue(self, call: Call) -> None:
        """A sync step outlived its deadline: it cannot be cancelled, only watched."""
        self.warn(
            "R020",
            call.run_id,
            f"{call.slot}: its thread outlives its deadline; no 'absent' is believed meanwhile",
        )
        self._on_overdue(call)

    # ---- telling

    def tell(self, kind: str, run_id: str | None, text: str) -> None:
        """Tell whoever listens. Callers see to it that what they tell is durable."""
        self._on_event(WorkerEvent(kind, self.partition, run_id, text, self.clock.wall_ms()))

    def warn(self, code: str, run_id: str | None, text: str) -> None:
        """A warning with its code."""
        self.tell("warning", run_id, f"{text} ({code})")

    def tell_resumed(self, state: RunState) -> None:
        """The boundary of a run that is taken up again, computed once, before any work."""
        if state.run_id in self._told or state.event_count <= 2:
            return
        self._told.add(state.run_id)
        self.tell("resumed", state.run_id, self.sentence_of(state))

    def tell_ended(self, run_id: str) -> None:
        """The run's end is durable."""
        state = self.books.states[run_id]
        if state.ended is not None:
            self.tell(state.ended.status, run_id, self.sentence_of(state))

    def sentence_of(self, state: RunState) -> str:
        """The operator's sentence for a state of this owner."""
        today = datetime.fromtimestamp(self.clock.wall_ms() / 1000, UTC)
        found = boundary(state, self.books.claim_id)
        return sentence(found, self.zone, today.astimezone(self.zone).date())

    def log_line(self, run_id: str, line: LogLine) -> None:
        """Write a line of `ctx.log`; called once the state that it was written in is durable."""
        fields = "".join(f" {name}={value!r}" for name, value in line.fields.items())
        self.tell("log", run_id, f"{line.level}: {line.message}{fields}")

    # ---- loop

    def soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it in the loop's next turn unless the claim has ended by then."""

        def call() -> None:
            if not self.ended:
                function(*arguments)

        asyncio.get_running_loop().call_soon(call)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that ends with the claim; one that breaks ends the claim, never in silence."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.broken(error)

    def broken(self, error: BaseException) -> None:
        """The engine itself failed: the claim ends and the fold decides what counts."""
        why = ClaimEnded(
            f"partition {self.partition}: the engine failed: {type(error).__name__}: {error}",
            kept="every acknowledged event",
            next="the worker claims again; report this with the traceback if it repeats",
        )
        why.__cause__ = error
        if hasattr(self, "tail"):
            self.tail.end(why)

    @contextmanager
    def running(self, run_id: str) -> Iterator[None]:
        """Names the run whose code is running, for the watchdog."""
        self._on_running(run_id)
        try:
            yield
        finally:
            self._on_running(None)

    # ---- what others may see: durable state only

    @property
    def position(self) -> Position:
        """The durable position."""
        return self.tail.position

    def runs(self) -> Iterable[str]:
        """The run_ids of the partition."""
        return self.books.states.keys()

    def state(self, run_id: str) -> RunState | None:
        """A run's durable state."""
        return self.books.durable(run_id)

    def boundary(self, run_id: str) -> Boundary | None:
        """A run's boundary at the durable position."""
        state = self.state(run_id)
        return None if state is None else boundary(state, self.books.claim_id)
