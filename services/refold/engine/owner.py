"""The owner of one partition: claims it, folds it, and lets the rooms around it do their work."""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from refold.app.application import App
from refold.engine import decide
from refold.engine.attempts import Attempts, describe
from refold.engine.bases import Base
from refold.engine.books import Books
from refold.engine.calls import Call
from refold.engine.checkpoints import Restored
from refold.engine.claiming import Claim, Claiming
from refold.engine.clock import Clock
from refold.engine.driver import Driver
from refold.engine.ending import ClaimEnded, ClaimReleased
from refold.engine.intake import Intake
from refold.engine.keeping import Keeper
from refold.engine.log_clock import LogClock
from refold.engine.outages import NO_CHECKPOINT, NOT_DELETED, Outages, Trouble
from refold.engine.parking import Parking
from refold.engine.reporter import Reporter
from refold.engine.sending import Sender
from refold.engine.session import LogLine
from refold.engine.settings import WorkerSettings
from refold.engine.settling import Settling
from refold.engine.tail import Tail
from refold.engine.timers import Timers
from refold.log.port import Entry, Log, Record, Topic
from refold.log.sizes import gathered_max
from refold.settings.signing import Keyring
from refold_projections.fold import (
    Boundary,
    Position,
    RunState,
    RunStates,
    Slot,
    boundary,
    sentence,
)
from refold_schemas.codec import Codec
from refold_schemas.errors import AppendUnknown, RefoldError
from refold_schemas.events import PartitionClaimed, PartitionReleased, TimerFired

HOUSEKEEPING_S: Final = 0.25
ASK_CLOCK_MS: Final = 10_000
"""How often the log is asked what its clock shows where a timer may be due by ours."""
LOOK_MS: Final = 5_000
"""An idle owner looks so often for what the log does not tell it: holes, and a log that was cut."""
PACK_AT_ONCE: Final = 500
"""How many idle states are packed at once where nothing else goes on."""


class WorkerEvent(NamedTuple):
    """Something that people may want to see: all of it is durable in the log when it is told.

    A traceback is of a run that has failed; it alone is in no log.

    `kind`: claimed, resumed, completed, failed, traceback, cancelled, in_doubt, waiting, blocked,
    diverged, conflict, finding, rejected, forwarded, warning, going_on, registry, ended_claim,
    released, log.
    """

    kind: str
    partition: int
    run_id: str | None
    text: str
    at_ms: int
    slot: str | None = None
    attempt: int | None = None
    claim: str | None = None
    """The first eight digits of the claim under which it happened."""


class PartitionOwner:
    """Made for one claim: when it ends, the owner and all its state are dropped.

    `routed` is over how many partitions runs are routed (`refold.log.routing`).
    """

    def __init__(
        self,
        app: App,
        log: Log,
        partition: int,
        codec: Codec,
        *,
        name: str,
        process: str,
        routed: int,
        clock: Clock,
        entropy: Callable[[int], bytes],
        settings: WorkerSettings,
        reporter: Reporter,
        threads: Executor | None,
        lookup_threads: Executor | None,
        keyring: Keyring | None,
        outages: Outages,
        on_event: Callable[[WorkerEvent], None] | None,
        on_running: Callable[[str | None], None],
        on_overdue: Callable[[Call], None],
    ) -> None:
        self.app, self.log, self.partition, self.codec = app, log, partition, codec
        self.name, self.process, self.routed = name, process, routed
        self.clock, self.entropy, self.settings = clock, entropy, settings
        self.reporter, self.threads, self.lookup_threads = reporter, threads, lookup_threads
        self.keyring = keyring
        self.namespace = log.facts.namespace
        self.zone = ZoneInfo(settings.time_zone or app.time_zone)
        self.claimed_boot_ms = 0
        self.ended = False
        self.why: ClaimEnded | None = None
        self.draining = False
        self._released = False
        self.books: Books
        self.tail: Tail
        self.log_clock: LogClock
        self.keeper: Keeper
        self.timers: Timers
        self.driver = Driver(self)
        self.attempts = Attempts(self)
        self.settling = Settling(self)
        self.intake = Intake(self)
        self.parking = Parking(self)
        self.sender = Sender(self)
        self._on_event, self._on_overdue, self._outages = on_event, on_overdue, outages
        self.running = on_running
        """Name the run whose code is running, for the watchdog; None: nobody's."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done = asyncio.Event()
        self._told: set[str] = set()
        self._checkpoint_events = self._packed_events = 0
        self._checkpoint_boot_ms = 0
        self._needless: list[bytes] = []
        """Keys of snapshots that are yet to be deleted."""

    # ---- claiming

    async def claim(self) -> None:
        """Claim the partition and take it over. Raises what `Claiming.claim` raises."""
        from refold import __version__

        facts = self.log.facts
        claimed = PartitionClaimed(
            self.name,
            self.process,
            self.app.name,
            __version__,
            tuple(self.app.versions),
            facts.topic_ids,
            self.routed,
            self.settings.format_level,
        )
        claiming = Claiming(
            self.log, self.partition, self.codec, self.clock, self.settings, claimed, self.entropy
        )
        self._take_over(await claiming.claim())

    def _take_over(self, claim: Claim) -> None:
        self._restored: Restored | None = claim.restored
        fold = claim.restored.fold
        states = fold.runs
        assert isinstance(states, RunStates)
        self.claimed_boot_ms = claim.acked_boot_ms
        self.log_clock = LogClock(
            self.clock,
            append_ms=claim.append_ms,
            sent_boot_ms=claim.sent_boot_ms,
            told_boot_ms=claim.acked_boot_ms,
            skew_max_ms=self.settings.clock_skew_max_ms,
        )
        self.timers = Timers(
            self.log_clock,
            self._due,
            at_once=self.settings.timers_at_once,
            has_room=lambda: self.tail.keeps_up,
        )
        self.books = Books(
            fold,
            states,
            self.codec,
            self.log_clock,
            epoch=claim.epoch,
            batch_size_max=self.log.facts.batch_size_max,
            on_timer=self.timers.add,
            on_change=lambda run_id: self.soon(self._write_conflicts, run_id),
            on_limit=lambda run_id: self.soon(self.driver.check_limits, run_id),
            failed=self._failed,
            limits=self.settings,
        )
        self.tail = Tail(
            self.log,
            self.partition,
            fold.position.claim_id,
            fold.position,
            batch_bytes=gathered_max(self.settings.batch_bytes, self.log.facts.batch_size_max),
            timeout_ms=self.settings.append_timeout_ms,
            on_report=self._reported,
            on_end=self._claim_over,
            clock=self.clock,
            log_clock=self.log_clock,
        )
        self.books.tail = self.tail
        self.books.on_outbox = self.sender.wake
        self.keeper = Keeper(
            self.books,
            self.codec,
            self.partition,
            claim.restored.kept,
            claim.restored.base,
            self._keep,
            batch_size_max=lambda: self.log.facts.batch_size_max,
        )
        # What had to be folded counts: else one owner after the other would fold it again.
        folded = fold.position.offset_next - claim.restored.base.position.offset_next
        self._checkpoint_events = 1 - folded  # all but our own claim
        self.suspicious = fold.facts.unclean_row >= self.settings.unclean_suspicious
        self._checkpoint_boot_ms = self.clock.boot_ms()

    # ---- serving

    async def serve(self) -> ClaimEnded:
        """Do the partition's work until the claim ends; returns why it did."""
        self._begin()
        self.background(self.intake.run())
        self.background(self.parking.run())
        self.background(self.sender.run())
        self.background(self._watch())
        self.background(self._housekeeping())
        await self._done.wait()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        assert self.why is not None
        return self.why

    def _begin(self) -> None:
        """The first turn of a claim: runs that somebody must go on with go on, timers are armed."""
        self.tell("claimed", None, f"claim {self.books.claim_id.hex()[:8]}")
        restored, self._restored = self._restored, None  # once read, its memory is given back
        assert restored is not None, "a partition is claimed before it is served"
        if restored.unused:
            told = f"the newest checkpoint was not used, all was folded: {restored.unused}"
            self.warn("R027", None, told)
        if self.suspicious:
            self.warn(
                "R019",
                None,
                f"{self.books.facts.unclean_row} processes in a row ended without a release: runs "
                "start one at a time, each step with an intent",
            )
        live, active = dict(self.books.states.live), restored.active
        live.update((run_id, self.books.states[run_id]) for run_id in active)
        for run_id, state in live.items():
            if state.red or state.stray:
                self._write_conflicts(run_id)
        self.timers.load(self.books.states.live, restored.armed)
        self.driver.activate_all(live.values())
        for run_id in live:
            self.books.pack_later(run_id)

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
        self.books.commit(None, (PartitionReleased(why),), then=self._note_released)
        await self.tail.drained()
        # What is left of the outbox is in the checkpoint: the next owner sends it.
        while self.sender.owes and not self.ended and self.clock.boot_ms() < deadline:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        if not self.ended:
            await self.checkpoint()
        if self._released and not self.ended:
            self.tell("released", None, why)
        self.tail.end(ClaimReleased(self.partition, "the worker stops"))

    def _note_released(self) -> None:
        # Only now: who dies while draining has released nothing, whatever a checkpoint says.
        self._released = True

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

    async def _watch(self) -> None:
        """Notice reports and foreign claims while idle: the log says when something is there.

        Asking it ten times a second in each of 32 partitions is what an idle worker would be busy
        with. An owner that appends looks into the gaps of its own batches.
        """
        settings, tail = self.settings, self.tail
        look_ms = max(LOOK_MS, settings.tail_check_ms)
        while not self.ended:
            if tail.quiet:
                offset = tail.position.offset_next
                with suppress(RefoldError):  # the look says what there is to say
                    await self.log.wait(Topic.EVENTS, self.partition, offset, timeout_ms=look_ms)
                if tail.quiet and tail.position.offset_next == offset:
                    await tail.look()
            await asyncio.sleep(settings.tail_check_ms / 1000)

    async def _housekeeping(self) -> None:
        """End what is behind its deadline, evict idle runs, write checkpoints."""
        settings = self.settings
        often_s = settings.tail_check_ms / 1000
        since_s = 0.0
        while not self.ended:
            pause_s = often_s if self.attempts.calls else max(often_s, HOUSEKEEPING_S)
            await asyncio.sleep(pause_s)
            self.attempts.sweep()
            since_s += pause_s
            if since_s < HOUSEKEEPING_S or self.ended:
                continue
            since_s = 0.0
            self.driver.evict_idle()
            await self._pack_some()
            events = self.books.event_count - self._checkpoint_events
            waited = self.clock.boot_ms() - self._checkpoint_boot_ms
            if events >= settings.checkpoint_events or (
                events and waited >= settings.checkpoint_ms
            ):
                await self.checkpoint()
            elif waited >= ASK_CLOCK_MS and self.timers.held:
                # Where nothing happens the log says nothing of its clock: this asks it.
                await self.checkpoint()
                self.timers.look()

    async def _pack_some(self) -> None:
        """Pack states that wait for it, each in a turn of its own: a step may go on between two.

        While there are events it is an eighth of them, which keeps up with any number.
        """
        books, actors = self.books, self.driver.actors
        share = books.packing // 8 + 1
        count = max(PACK_AT_ONCE, share) if books.event_count == self._packed_events else share
        self._packed_events = books.event_count
        for run_id in books.next_to_pack(count):
            if self.ended:
                return
            if run_id not in actors:  # else somebody works on it again
                books.pack(run_id)
                await asyncio.sleep(0)

    async def checkpoint(self) -> None:
        """Snapshot the runs that changed, then a position. Failing costs a longer fold only."""
        self._checkpoint_events = self.books.event_count
        self._checkpoint_boot_ms = self.clock.boot_ms()
        try:
            old = await self.keeper.checkpoint(self._stands_at, whole=self.draining)
        except (RefoldError, OSError, TimeoutError) as error:
            self._checkpoint_events -= 1  # still owed, though nothing else may happen here
            self.cannot(NO_CHECKPOINT, error)
            return
        self.can(NO_CHECKPOINT)
        self._needless += old
        try:
            await self.keeper.delete(self._needless)
        except (RefoldError, OSError, TimeoutError) as error:
            self._checkpoint_events -= 1
            self.cannot(NOT_DELETED, error)
        else:
            self._needless = []
            self.can(NOT_DELETED)

    def _stands_at(self) -> Base:
        """The durable position, what this claim says, and what is still owed."""
        orders = self.books.orders_durable
        orders.sent((), self.tail.position.offset_next)
        return Base(
            self.tail.position,
            self.books.facts._replace(
                process=self.process,
                owner=self.name,
                app=self.app.name,
                partition_count=self.routed,
                topic_ids=self.log.facts.topic_ids,
                format_level=self.settings.format_level,
                released=self._released,
            ),
            orders.kept(),
        )

    async def _keep(self, entries: list[Entry]) -> int:
        """Append to the snapshots; returns where. Raises what the log raises, or AppendUnknown."""
        sent_boot_ms = self.clock.boot_ms()
        async with asyncio.timeout(self.settings.append_timeout_ms / 1000):
            ack = await self.log.append(Topic.SNAPSHOTS, self.partition, entries)
        if ack.stored_at is None:
            told = f"it was acknowledged with offset {ack.offset}"
            raise AppendUnknown(topic=Topic.SNAPSHOTS.value, partition=self.partition, reason=told)
        if ack.append_ms is not None and self.log_clock.held_ms:
            # Another broker's clock than that of the events: believed as far as ours agrees.
            shown_ms = min(ack.append_ms, self.clock.wall_ms())
            self.log_clock.note(shown_ms, sent_boot_ms)
        return ack.stored_at

    async def room(self) -> None:
        """Wait while more is queued than the log keeps up with: every queue has a limit."""
        while self.tail.queued_bytes > self.settings.queue_bytes_max and not self.ended:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.005)

    # ---- what happens

    def start_new(self, run_id: str) -> None:
        """A run was started by a command, and that is durable: its code begins."""
        if not self.draining:
            self.driver.begin(run_id)

    def _due(self, run_id: str, timer_id: str, generation: int) -> None:
        self.guarded(run_id, self._fire, run_id, timer_id, generation)

    def _fire(self, run_id: str, timer_id: str, generation: int) -> None:
        state = self.books.states.get(run_id)
        timer = None if state is None else state.timers.get(timer_id)
        if state is None or timer is None or timer.generation != generation or self.ended:
            return
        if timer.kind == "proof":
            self.settling.prove(state, timer)
            return
        if state.ended is not None:
            return
        then = self.driver.then_deliver(run_id, timer.slot) if timer.kind == "sleep" else None
        self.books.commit(run_id, (TimerFired(timer_id, generation),), then=then)
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
        actor = self.driver.actors.get(run_id)
        if state.open_slots and (actor is None or (actor.session is None and state.cancel is None)):
            # An idle run, a person being asked: it has to be awake to be told what was learnt.
            self.soon(self.driver.activate, run_id)
            return
        for name in state.open_slots:
            self.soon(self.settling.look_at, run_id, name)

    def _write_conflicts(self, run_id: str) -> None:
        """EvidenceConflict, in an ended run too: a red row, never a silent repair."""
        state = self.books.states.get(run_id)
        if state is None or self.ended or not (state.red or state.stray):
            return
        events = decide.conflicts_found(state)
        slots = ", ".join(sorted({name for name, _ in state.red} | {s[0] for s in state.stray}))
        self.books.commit(
            run_id,
            events,
            then=lambda: self.tell("conflict", run_id, f"evidence contradicts the record: {slots}"),
        )

    def word_believed_in_ms(
        self, run_id: str, slot: Slot, append_ms: int, since_boot_ms: int | None
    ) -> int:
        """How much too early a person's "it did not happen" was given; 0 or less: not at all.

        It counts from when it was appended, not from when it is decided: one that lay in a backlog
        may have been given while a call could still act. The log says when, by a clock that may
        have been set meanwhile: a word of the future is one of now, and one that was not there at
        `since_boot_ms` (None: nobody has looked) was given later. It errs on the late side.
        """
        boot_ms = self.clock.boot_ms()
        believed_boot_ms = boot_ms + self.settling.believe_in_ms(run_id, slot)
        said_ms = min(append_ms, self.log_clock.latest_ms(boot_ms))
        by_log_ms = self.log_clock.latest_ms(believed_boot_ms) - said_ms
        if since_boot_ms is None:
            return by_log_ms
        return min(by_log_ms, believed_boot_ms - since_boot_ms)

    def call_overdue(self, call: Call) -> None:
        """A call outlived its deadline: a thread, or a coroutine that swallowed its cancel."""
        if self.ended:
            self._on_overdue(call)
            return
        self.warn(
            "R020",
            call.run_id,
            f"{call.slot}: its call outlives its deadline; no 'absent' is believed meanwhile",
        )
        self._on_overdue(call)

    # ---- telling

    def tell(
        self,
        kind: str,
        run_id: str | None,
        text: str,
        *,
        slot: str | None = None,
        attempt: int | None = None,
    ) -> None:
        """Tell whoever listens. Callers see to it that what they tell is durable."""
        if self._on_event is not None:
            claim = self.books.claim_id.hex()[:8] if hasattr(self, "books") else None
            at_ms = self.clock.wall_ms()
            self._on_event(
                WorkerEvent(kind, self.partition, run_id, text, at_ms, slot, attempt, claim)
            )

    def warn(self, code: str, run_id: str | None, text: str) -> None:
        """A warning with its code."""
        self.tell("warning", run_id, f"{text} ({code})")

    def cannot(self, trouble: Trouble, error: Exception, text: str | None = None) -> None:
        """Something does not answer and is asked again: told once for all partitions."""
        self._outages.has(self.partition, trouble, error, text)

    def can(self, trouble: Trouble) -> None:
        """It answers."""
        self._outages.mended(self.partition, trouble)

    def tell_resumed(self, state: RunState) -> None:
        """The boundary of a run that is taken up again, computed once, before any work."""
        if self._on_event is None or state.run_id in self._told or state.event_count <= 2:
            return
        self._told.add(state.run_id)
        durable = self.books.durable(state.run_id) or state
        self.tell("resumed", state.run_id, self.sentence_of(durable))

    def tell_ended(self, run_id: str) -> None:
        """The run's end is durable."""
        state = self.books.states[run_id] if self._on_event is not None else None
        if state is not None and state.ended is not None:
            self.tell(state.ended.status, run_id, self.sentence_of(state))

    def sentence_of(self, state: RunState) -> str:
        """The operator's sentence for a state of this owner."""
        today = datetime.fromtimestamp(self.clock.wall_ms() / 1000, UTC)
        found = boundary(state, self.books.claim_id)
        return sentence(found, self.zone, today.astimezone(self.zone).date())

    def log_line(self, run_id: str, line: LogLine) -> None:
        """Write a line of `ctx.log`; called once the state that it was written in is durable."""
        fields = "".join(f" {name}={shown}" for name, shown in line.fields.items())
        self.tell("log", run_id, f"{line.level}: {line.message}{fields}")

    # ---- loop

    def soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it in the loop's next turn unless the claim has ended by then.

        The first argument is the run_id that it is about, or the run's actor.
        """
        about = arguments[0] if isinstance(arguments[0], str) else arguments[0].run_id

        def call() -> None:
            if not self.ended:
                self.guarded(about, function, *arguments)

        asyncio.get_running_loop().call_soon(call)

    def guarded(self, run_id: str, function: Callable[..., None], *arguments: Any) -> None:
        """Call it; a defect that shows itself parks the run with what happened, never in silence.

        Only if not even that can be recorded, the claim ends.
        """
        try:
            function(*arguments)
        except Exception as error:
            self._failed(run_id, error)

    def _failed(self, run_id: str, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{describe(error)} in {Path(where.filename).name}:{where.lineno}"
        try:
            self.driver.block(run_id, "engine_error", told)
        except Exception:
            self.broken(error)

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
            f"partition {self.partition}: the engine failed: {describe(error)}",
            kept="every acknowledged event",
            next="the worker claims again; report this with the traceback if it repeats",
        )
        why.__cause__ = error
        if hasattr(self, "tail"):
            self.tail.end(why)

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
