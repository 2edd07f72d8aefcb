"""The crash explorer: kills a run's process at each moment of each step, and says what came of it.

The run function of an app runs on a log in memory in a simulated process, in virtual time. A first
pass without a crash finds the moments; then, for each of them, a fresh world is run up to it, the
process dies there (SIGKILL: nothing of it goes on), and a fresh one takes over.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from refold.app import App, Effect, StepDef
from refold.engine.settings import WorkerSettings
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Ack, Entry, Topic
from refold.testing.sim_codec import shared_codec
from refold.testing.sim_loop import SimProcess, Universe, current_process
from refold.worker import Worker
from refold_projections.fold import Boundary, PartitionFold, RunState, boundary, sentence
from refold_schemas.commands import ResolveStep, StartRun
from refold_schemas.events import Event, PartitionClaimed, StepCompleted, StepIntended
from refold_schemas.values import Absent, Found, Value, encode_value

EPOCH_MS = 1_767_225_600_000
LEASE_MS = 3_600_000
SETTINGS = WorkerSettings(tail_check_ms=30_000, suggest_ms=30_000, idle_after_ms=60_000)
TURNS_MAX = 5_000_000
RUN_ID = "explored"
DAYS_MAX = 30.0

Person = Callable[[str, str], Found[Any] | Absent | None]
"""`person(slot, effect_key)`: what somebody says of a slot, None for nothing."""


def nothing() -> None:
    """What is done, or read, where nobody says what."""


def silent(slot: str, key: str) -> None:
    """A person who says nothing."""


class Moment(StrEnum):
    """Where a process dies, in the order in which a step passes them."""

    INTENT_LOST = "before the intent is stored"
    INTENT_STORED = "before the intent is acknowledged"
    BEFORE_EFFECT = "after the intent, before the effect"
    AFTER_EFFECT = "after the effect, before the outcome"
    AFTER_OUTCOME = "after the outcome"


@dataclass(frozen=True)
class CrashPoint:
    """One moment of one attempt of a slot."""

    slot: str
    step: str
    attempt: int
    moment: Moment

    def __str__(self) -> str:
        """As a person reads it."""
        again = "" if self.attempt == 1 else f", attempt {self.attempt}"
        return f"{self.slot}{again}: {self.moment.value}"


@dataclass(frozen=True)
class Explored:
    """What came of a run whose process died at `point` (None: it did not die).

    `sentence` and `before` are the boundary at the takeover, before any work. `calls` counts how
    often each slot's function was entered over both lives, `effects` is what the caller's function
    of that name returned at the end; `calls_before` and `effects_before` are both at the moment of
    death. `result` is the stored result of a completed run.
    """

    point: CrashPoint | None
    sentence: str
    before: Boundary | None
    after: Boundary
    sentence_after: str
    result: Value | None
    calls: dict[str, int]
    effects: Any
    state: RunState
    calls_before: dict[str, int]
    effects_before: Any

    @property
    def status(self) -> str:
        """The run's status at the end: completed, in_doubt, …"""
        return self.after.status

    @property
    def repeated(self) -> tuple[str, ...]:
        """Slots whose function was entered more than once."""
        return tuple(slot for slot, count in self.calls.items() if count > 1)


@dataclass(frozen=True)
class Crashed(Explored):
    """What came of a run whose process died."""

    point: CrashPoint


@dataclass(frozen=True)
class Exploration:
    """The run without a crash, the points that it passed, and the crashes that were asked for."""

    calm: Explored
    points: tuple[CrashPoint, ...]
    crashes: tuple[Crashed, ...]

    def at(self, slot: str, moment: Moment, attempt: int = 1) -> Crashed:
        """The crash at this point. Raises KeyError."""
        for crashed in self.crashes:
            point = crashed.point
            if (point.slot, point.moment, point.attempt) == (slot, moment, attempt):
                return crashed
        raise KeyError(f"{slot}: {moment}, attempt {attempt}")


def explore_crashes(
    app: App,
    name: str,
    input: object = None,
    *,
    points: Iterable[CrashPoint] | None = None,
    moments: Sequence[Moment] = tuple(Moment),
    run_id: str = RUN_ID,
    reset: Callable[[], object] = nothing,
    effects: Callable[[], Any] = nothing,
    person: Person = silent,
    seed: int = 0,
    days_max: float = DAYS_MAX,
    settings: WorkerSettings = SETTINGS,
) -> Exploration:
    """Crash the run `name` of `app` at every point (or at `points`) and report each.

    The others are what `CrashExplorer` takes.
    """
    explorer = CrashExplorer(
        app,
        name,
        input,
        run_id=run_id,
        reset=reset,
        effects=effects,
        person=person,
        seed=seed,
        days_max=days_max,
        settings=settings,
    )
    calm, passed = explorer.calm()
    chosen = [p for p in passed if p.moment in moments] if points is None else points
    return Exploration(calm, passed, tuple([explorer.crash(point) for point in chosen]))


class CrashExplorer:
    """Runs the run `name` of `app` without a crash, or with one at a chosen point.

    `reset` makes the outer world fresh before each pass, `effects` reads it.
    `person(slot, effect_key)` answers for a slot that waits for a person: Found(value), Absent(),
    or None, which leaves it there. A pass ends when the run has ended, waits for a person who says
    nothing or for other code, or after `days_max` days of virtual time. Sync steps run on the
    simulated loop, not in a thread; a step may await asyncio's own things, but no socket.
    """

    def __init__(
        self,
        app: App,
        name: str,
        input: object = None,
        *,
        run_id: str = RUN_ID,
        reset: Callable[[], object] = nothing,
        effects: Callable[[], Any] = nothing,
        person: Person = silent,
        seed: int = 0,
        days_max: float = DAYS_MAX,
        settings: WorkerSettings = SETTINGS,
    ) -> None:
        self.app, self.name, self.given, self.run_id = app, name, encode_value(input), run_id
        self.reset, self.effects, self.person = reset, effects, person
        self.seed, self.days_max, self.settings = seed, days_max, settings
        self.codec = shared_codec()
        self.points: dict[CrashPoint, None] = {}
        self.armed: CrashPoint | None = None
        self.calls: dict[str, int] = {}
        self.universe: Universe
        self.broker: MemoryBroker
        self._live: PartitionFold
        self._offset_next = 0
        self._verdict = False
        self._said = 0

    def calm(self) -> tuple[Explored, tuple[CrashPoint, ...]]:
        """The run without a crash, and the points that it passed, in order."""
        with self.instrumented():
            explored = self._run(None)
        return explored, tuple(self.points)

    def crash(self, point: CrashPoint) -> Crashed:
        """The run whose process dies at `point`. Raises RuntimeError if it never came there."""
        with self.instrumented():
            found = self._run(point)
        parts = {field.name: getattr(found, field.name) for field in fields(found)}
        return Crashed(**{**parts, "point": point})

    # ---- one pass

    def _run(self, point: CrashPoint | None) -> Explored:
        self.reset()
        self.armed, self.points, self.calls = point, {}, {}
        self._live, self._offset_next, self._verdict = PartitionFold(self.codec), 0, False
        self.universe = Universe(Random(self.seed))
        self.broker = MemoryBroker(
            "explored",
            lease_ms=LEASE_MS,
            now_ms=lambda: EPOCH_MS + self.universe.now_us // 1000,
            schedule=self.universe.schedule_ms,
        )
        self.broker.exists = True
        self._publish(StartRun("start", self.run_id, self.name, self.given, None, "explorer"))
        self._said = 0
        try:
            return self._lives(point)
        finally:
            for process in list(self.universe.processes):
                process.kill()

    def _lives(self, point: CrashPoint | None) -> Explored:
        process = self._start(1)
        calls_before, effects_before = dict[str, int](), None
        if point is not None:
            self._play(process)
            # The end is in the log before the process passes what comes after it.
            until_us = self.universe.now_us + 5_000_000
            self.universe.run(until_us, stop=lambda: not process.alive, turns_max=TURNS_MAX)
            if process.alive:
                raise RuntimeError(f"{point} was not reached again: the run is not deterministic")
            calls_before, effects_before = dict(self.calls), self.effects()
            process = self._start(2)
            self._go_on(self._taken_over)
        self._play(process)
        # The end is in the log; the process still has to read its acknowledgement.
        self.universe.run(self.universe.now_us + 1_000, turns_max=TURNS_MAX)
        return self._explored(point, calls_before, effects_before)

    def _play(self, process: SimProcess) -> None:
        """Go on, with what the person says, until the run is settled or the process has died."""
        while self._go_on(lambda: not process.alive or self._settled()):
            if not process.alive or not self._speak(process):
                return

    def _go_on(self, stop: Callable[[], bool]) -> bool:
        limit_us = int(self.days_max * 86_400e6)
        return self.universe.run(limit_us, stop=stop, turns_max=TURNS_MAX)

    def _start(self, life: int) -> SimProcess:
        process = SimProcess(self.universe, f"life-{life}", epoch_ms=EPOCH_MS)
        log = _CrashLog(self, process)
        process.on_kill.append(log.kill)
        worker = Worker(
            self.app,
            log,
            owner="explored",
            process=process.name,
            clock=process,
            entropy=Random(f"{self.seed}/{life}").randbytes,
            settings=self.settings,
            watch=False,
            codec=self.codec,
        )

        async def main() -> None:
            await log.open(create=True)
            await worker.run()

        process.start(main())
        return process

    def _publish(self, command: Any) -> None:
        entry = Entry(self.run_id.encode(), self.codec.encode(command))
        self.broker.put(Topic.COMMANDS, 0, [entry])

    def _fold(self) -> PartitionFold:
        """The fold of the whole log, which goes on from where it was."""
        for record in self.broker.records(Topic.EVENTS, 0)[self._offset_next :]:
            self._live.apply(record)
            self._offset_next += 1
        return self._live

    def _taken(self) -> tuple[PartitionFold, int]:
        """The fold up to the second claim, which is what the second life found, and its time."""
        fold = PartitionFold(self.codec)
        claims = 0
        for record in self.broker.records(Topic.EVENTS, 0):
            claims += isinstance(fold.apply(record).event, PartitionClaimed)
            if claims == 2:
                return fold, record.append_ms
        raise AssertionError("the second life has claimed nothing")

    def _taken_over(self) -> bool:
        """Whether the second life has claimed, though there may be nothing left to do for it."""
        return self._fold().facts.process == "life-2"

    def _settled(self) -> bool:
        """Whether the run has ended or waits for somebody."""
        if self.broker.bounds(Topic.EVENTS, 0)[1] == self._offset_next:
            return self._verdict
        fold = self._fold()
        state = fold.runs.get(self.run_id)
        self._verdict = False
        if state is not None:
            needs = None if state.ended else boundary(state, fold.claim_id).needs
            self._verdict = state.ended is not None or needs in ("person", "code")
        return self._verdict

    def _speak(self, process: SimProcess) -> bool:
        """Let the person say one thing; whether they had something to say."""
        fold = self._fold()
        state = fold.runs[self.run_id]
        if state.ended is not None:
            return False
        for entry in boundary(state, fold.claim_id).in_doubt:
            answer = self.person(entry.slot, entry.effect_key) if entry.escalated else None
            if answer is None:
                continue
            value = encode_value(answer.value) if isinstance(answer, Found) else None
            happened = isinstance(answer, Found)
            self._publish(
                ResolveStep(
                    f"said-{self._said}",
                    self.run_id,
                    entry.slot,
                    None,
                    happened,
                    value,
                    "person",
                    "looked",
                )
            )
            self._verdict = False
            self._said += 1
            # "It did not happen" is refused until no call can reach the far system any more.
            wait_us = 1_000 * (
                1_000
                + 2 * max((a.timeout_ms + a.settle_ms) for a in state.slots[entry.slot].attempts)
            )
            until_us = self.universe.now_us + wait_us
            self.universe.run(until_us, stop=lambda: not process.alive, turns_max=TURNS_MAX)
            return True
        return False

    def _explored(
        self, point: CrashPoint | None, calls_before: dict[str, int], effects_before: Any
    ) -> Explored:
        before, told = None, ""
        if point is not None:
            taken, at_ms = self._taken()
            state = taken.runs.get(self.run_id)
            if state is not None:
                before = boundary(state, taken.claim_id)
                told = self._sentence(before, at_ms)
        fold = self._fold()
        state = fold.runs[self.run_id]
        after = boundary(state, fold.claim_id)
        result = state.ended.result if state.ended is not None else None
        return Explored(
            point,
            told,
            before,
            after,
            self._sentence(after, self.broker.now_ms()),
            result,
            dict(self.calls),
            self.effects(),
            state,
            calls_before,
            effects_before,
        )

    def _sentence(self, found: Boundary, at_ms: int) -> str:
        zone = ZoneInfo(self.app.time_zone)
        return sentence(
            found, zone, datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone).date()
        )

    # ---- moments

    async def pass_(self, slot: str, step: str, attempt: int, moment: Moment) -> None:
        """A process passes a moment: it is noted, and dies there if that is the armed one."""
        point = CrashPoint(slot, step, attempt, moment)
        self.points[point] = None
        if point == self.armed:
            self.armed = None
            await current_process().kill_here()

    def events_of(self, topic: Topic, entries: Sequence[Entry]) -> list[Event]:
        """The events in a batch of the first topic that matters."""
        if topic is not Topic.EVENTS:
            return []
        return [self.codec.decode(entry.value or b"") for entry in entries]

    @contextmanager
    def instrumented(self) -> Iterator[None]:
        """Steps and lookups of the app pass their moments while this lasts."""
        kept = []
        for definition in self.app.steps.values():
            _ = definition.returns  # resolved from the function as it was written
            kept.append((definition, dict(definition.__dict__)))
            changes = {"fn": self._wrapped(definition), "is_async": True, "wants_effect": True}
            if definition.lookup is not None:
                changes["lookup"] = _as_async(definition.lookup)
            # The record is frozen for everybody else; it is put back below.
            definition.__dict__.update(changes)
        try:
            yield
        finally:
            for definition, before in kept:
                definition.__dict__.clear()
                definition.__dict__.update(before)

    def _wrapped(self, definition: StepDef) -> Callable[..., Coroutine[Any, Any, Any]]:
        original, name, wants_effect = definition.fn, definition.name, definition.wants_effect

        async def step(fx: Effect, *args: Any, **kwargs: Any) -> Any:
            await self.pass_(fx.slot, name, fx.attempt, Moment.BEFORE_EFFECT)
            self.calls[fx.slot] = self.calls.get(fx.slot, 0) + 1
            result = original(fx, *args, **kwargs) if wants_effect else original(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            await self.pass_(fx.slot, name, fx.attempt, Moment.AFTER_EFFECT)
            return result

        return step


def _as_async(lookup: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(lookup)
    async def ask(*args: Any) -> Any:
        answer = lookup(*args)
        return await answer if inspect.isawaitable(answer) else answer

    return ask


class _CrashLog(MemoryLog):
    """A handle that passes the moments of intents and outcomes."""

    def __init__(self, explorer: CrashExplorer, process: SimProcess) -> None:
        super().__init__("memory://explored", broker=explorer.broker, name=process.name)
        self._explorer = explorer

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append as the memory log does, with the moments before and after it."""
        explorer = self._explorer
        events = explorer.events_of(topic, entries)
        intents = [event for event in events if isinstance(event, StepIntended)]
        outcomes = [event for event in events if isinstance(event, StepCompleted)]
        for intent in intents:
            await explorer.pass_(intent.slot, intent.step, intent.attempt, Moment.INTENT_LOST)
        ack = await super().append(topic, partition, entries)
        for intent in intents:
            await explorer.pass_(intent.slot, intent.step, intent.attempt, Moment.INTENT_STORED)
        for outcome in outcomes:
            step = outcome.step or outcome.slot.rpartition("/")[2].partition("#")[0]
            await explorer.pass_(outcome.slot, step, outcome.attempt, Moment.AFTER_OUTCOME)
        return ack
