"""Field reports on timers: many due at once, and one that fires while it is cancelled.

F27: the scan for due timers wrote thousands of copies of each. F28: a timer fired while a cancel
for it was being processed, and the run jammed.
"""

from collections import Counter
from datetime import UTC, date, timedelta
from itertools import permutations
from zoneinfo import ZoneInfo

import pytest

from refold import App, Policy, RunContext
from refold.log.memory import AppendCall, AppendFault, Faults
from refold.log.port import Topic
from refold.worker import WorkerSettings
from refold_projections.fold import (
    Mark,
    PartitionFold,
    RunState,
    Stamp,
    Verdict,
    evolve,
    from_snapshot,
    sentence,
    to_snapshot,
)
from refold_projections.fold.plain import boundary_json
from refold_schemas.events import (
    CommandRejected,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunEvent,
    RunStarted,
    TimerCancelled,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import encode_value
from support.lab import Lab

# ---- F27: many timers due at once

RUNS, EACH = 200, 100


def sleepers() -> App:
    app = App("sleepers")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def read(number: int) -> int:
        return number

    @app.run("slumber")
    async def slumber(ctx: RunContext) -> int:
        async def nap() -> None:
            await ctx.sleep(timedelta(seconds=60))

        await ctx.gather(*[nap() for _ in range(EACH)])
        return EACH

    @app.run("work")
    async def work(ctx: RunContext) -> int:
        return await ctx.step(read, 1)

    return app


class Slow(Faults):
    """Every append takes 200 ms once `on` is set."""

    on = False

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if not self.on or call.topic is not Topic.EVENTS:
            return None
        return AppendFault((200,), answer_at_ms=200)


@pytest.mark.untraced
def test_twenty_thousand_timers_of_one_second_fire_once_each_f27() -> None:
    lab = Lab(settings=WorkerSettings(tail_check_ms=1_000, batch_bytes=128 * 1024))
    faults = lab.broker.faults = Slow()
    app = sleepers()
    for number in range(RUNS):
        lab.start("slumber", run_id=f"run-{number}")
    first = lab.worker(app)
    lab.run(50)
    log = _Reader(lab)
    assert log.count("TimerScheduled") == RUNS * EACH
    assert log.deadline_last_ms - log.deadline_first_ms < 1_000
    faults.on = True
    assert lab.run(30, until=lambda: log.count("TimerFired") > 5_000)
    first.kill()  # with a batch on its way
    lab.worker(app)
    assert lab.run(30, until=lambda: log.count("TimerFired") > 8_000)
    lab.start("work", run_id="other")
    at_command = log.count("TimerFired")
    assert lab.run(60, until=lambda: any(e.run_id == "other" for e in lab.told[-9:]))
    # Another run waits for what is queued, three batches at most, and not for the rest of them.
    assert log.count("TimerFired") - at_command < 4_000
    assert log.count("TimerFired") < RUNS * EACH - 4_000
    assert lab.run(120, until=lambda: log.count("RunCompleted") == RUNS + 1)
    lab.run(10)
    assert log.count("TimerFired") == RUNS * EACH
    # No copy that does not count either, but for the batch that the dead owner had sent.
    assert set(log.fold.skipped) <= {Verdict.FENCED}
    assert sum(log.fold.skipped.values()) <= 2_000


class _Reader:
    """Counts the events that count by their names, each read once and its body only if needed."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._read = lab, 0
        self.fold = PartitionFold(lab.codec, keep=lambda run_id: False)
        self._counts: Counter[str] = Counter()
        self.deadline_first_ms = self.deadline_last_ms = 0

    def count(self, name: str) -> int:
        stream = self._lab.broker.stream(Topic.EVENTS, 0)
        for record in stream.records[self._read :]:
            if self.fold.apply(record).verdict is Verdict.COUNTS:
                value = record.value or b""
                told = self._lab.codec.name_of(value) or ""
                self._counts[told] += 1
                if told == "TimerScheduled" and self._counts[told] in (1, RUNS * EACH):
                    event = self._lab.codec.decode(value)
                    assert isinstance(event, TimerScheduled)
                    self.deadline_first_ms = self.deadline_first_ms or event.deadline_ms
                    self.deadline_last_ms = event.deadline_ms
        self._read = stream.end
        return self._counts[name]


# ---- F28: fire, cancel and schedule in every order

NAME = "sleep:sleep#1"
SCHEDULED = TimerScheduled(NAME, 1, "sleep", "sleep#1", 1_000)
FIRED = TimerFired(NAME, 1)
CANCELLED = TimerCancelled(NAME, 1)
AGAIN = TimerScheduled(NAME, 2, "sleep", "sleep#1", 2_000)
FIRED_AGAIN = TimerFired(NAME, 2)
ORDERS = list(permutations([SCHEDULED, FIRED, CANCELLED, AGAIN, FIRED_AGAIN]))
STARTED = RunStarted("nap", "1", encode_value(None), bytes(32), "start", "tester")


def folded(events: list[RunEvent], *, cut: int | None = None) -> RunState:
    """The fold of the events; at `cut` the process ends, and its snapshot is all that is left."""
    state = evolve(None, "run-1", STARTED, Stamp(0, bytes(16), 0))
    assert state is not None
    for n, event in enumerate(events, 1):
        state = evolve(state, "run-1", event, Stamp(n * 10, bytes(16), n))
        assert state is not None
        if n == cut:
            state, _ = from_snapshot(to_snapshot(state, Mark(n, bytes(16), n)))
    return state


@pytest.mark.parametrize("events", ORDERS)
def test_every_order_of_a_timers_events_folds_f28(events: tuple[RunEvent, ...]) -> None:
    """What counts is the log's order: what is about another generation changes nothing."""
    in_order = list(events)
    state = folded(in_order)
    armed: int | None = None
    fired = 0
    for event in in_order:
        match event:
            case TimerScheduled(generation=generation):
                armed = generation
            case TimerFired(generation=generation) if generation == armed:
                armed, fired = None, fired + 1
            case TimerCancelled(generation=generation) if generation == armed:
                armed = None
    timer = state.timers.get(NAME)
    assert (timer.generation if timer is not None else None) == armed
    outcome = state.slots["sleep#1"].outcome if "sleep#1" in state.slots else None
    assert (outcome is not None) == (fired > 0)
    for cut in range(1, len(in_order) + 1):
        assert folded(in_order, cut=cut) == state


def nap() -> App:
    app = App("naps")

    @app.run("nap")
    async def nap(ctx: RunContext) -> str:
        await ctx.sleep(timedelta(seconds=1))
        await ctx.sleep(timedelta(seconds=1))
        return "awake"

    return app


class KillAt(Faults):
    """The process dies as its `number`th append to events is stored."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab, self.number, self.seen = lab, number, 0

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if call.topic is Topic.EVENTS and call.handle == "life-1":
            self.seen += 1
            if self.seen == self.number:
                process = next(p for p in self.lab.universe.processes if p.name == "life-1")
                self.lab.universe.later(0, process.kill)
        return None


@pytest.mark.parametrize("killed_at", [None, 2, 3, 4, 5])
@pytest.mark.parametrize("cancel_us", [*range(999_900, 1_001_100, 100), 1_999_900, 2_000_300])
def test_a_cancel_that_meets_a_timer_jams_nothing_f28(
    cancel_us: int, killed_at: int | None
) -> None:
    lab = Lab()
    if killed_at is not None:
        lab.broker.faults = KillAt(lab, killed_at)
    app = nap()
    lab.start("nap")
    first = lab.worker(app)

    def cancel() -> None:
        lab.cancel()

    lab.universe.later(cancel_us, cancel)
    lab.run(2.5, until=lambda: not first.alive)
    if not first.alive:
        lab.worker(app)
    assert lab.run(30, until=lab.ended)
    lab.run(5)
    # A cancel that came after the end is refused, and says so.
    events = [event for event in lab.events() if not isinstance(event, CommandRejected)]
    fired = [event for event in events if isinstance(event, TimerFired)]
    cancelled = [event for event in events if isinstance(event, TimerCancelled)]
    scheduled = [event for event in events if isinstance(event, TimerScheduled)]
    # Each timer ended once, one way or the other, and nothing comes behind the end of the run.
    over: list[TimerFired | TimerCancelled] = [*fired, *cancelled]
    ends = [(event.timer_id, event.generation) for event in over]
    assert sorted(ends) == sorted((event.timer_id, event.generation) for event in scheduled)
    assert isinstance(events[-1], RunCancelled | RunCompleted)
    asked = any(isinstance(event, RunCancelRequested) for event in events)
    assert lab.status() == ("cancelled" if asked else "completed")
    assert not lab.state().timers


# ---- for longer than a calendar goes


@pytest.mark.parametrize("duration", [timedelta.max, timedelta(days=9_000_000)])
def test_a_run_may_sleep_for_ever_and_its_boundary_can_be_read(duration: timedelta) -> None:
    app = App("sleepers")

    @app.run("for_ever")
    async def for_ever(ctx: RunContext) -> None:
        await ctx.sleep(duration)

    lab = Lab()
    lab.worker(app)
    lab.start("for_ever")
    lab.run(10, until=lambda: lab.needs("time"))
    seen = lab.boundary()
    told = sentence(seen, ZoneInfo("Asia/Tokyo"), date(2026, 8, 1))
    assert boundary_json(seen, 0, 1, UTC, told)["status"] == "waiting"
    assert told == "no steps complete, waiting until 9999-12-31 23:59"
