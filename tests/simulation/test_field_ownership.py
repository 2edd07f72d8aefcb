"""Field reports on ownership: doubled recovery, owners that froze, and drains that were too short.

F09: recovery picked up what the same process, or a living one, was already doing. F11: a frozen
owner learned that it was superseded after its side effects. F14: work was abandoned at each
rebalance and done again by the next owner.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from refold import App, Effect, Policy, RunContext
from refold.client import Client
from refold.log import partition_for
from refold.log.memory import AppendCall, AppendFault, Faults, MemoryLog, ReadCall, ReadFault
from refold.log.port import Entry, Topic
from refold.testing.sim_loop import SimProcess, current_process
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold, RunState, Verdict, state_hash
from refold_schemas.commands import StartRun
from refold_schemas.events import (
    AttemptReported,
    CommandRejected,
    PartitionClaimed,
    PartitionReleased,
    StepCompleted,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refold_schemas.values import encode_value
from support.lab import Lab
from support.vendor import Vendor

SECOND = timedelta(seconds=1)


def shop(vendor: Vendor, *, policy: Policy, timeout: timedelta = 30 * SECOND) -> App:
    app = App("shop")
    options: dict[str, Any] = {"policy": policy, "timeout": timeout}
    if policy is Policy.RESOLVABLE:
        options |= {"lookup": vendor.find, "settle": SECOND}
    if policy is Policy.KEYED:
        options |= {"key_ttl": None}

    @app.step(**options)
    async def charge(fx: Effect, pence: int) -> str:
        return await vendor.act(fx, pence=pence)

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def read(index: int) -> int:
        return index

    @app.run("buy", plan=["read", "charge"])
    async def buy(ctx: RunContext, index: int) -> str:
        await ctx.step(read, index)
        return await ctx.step(charge, 100 + index)

    @app.run("hold", plan=["read", "charge"])
    async def hold(ctx: RunContext, index: int) -> None:
        await ctx.step(read, index)
        await ctx.step(charge, 100 + index)
        await ctx.sleep(timedelta(hours=1))

    return app


# ---- F09: nothing is picked up that is already being done


SLOW = ReadFault(delay_ms=400, record_count_max=20)


class SlowReads(Faults):
    """Every read of events and snapshots takes its time: a takeover that lasts."""

    def on_read(self, call: ReadCall) -> ReadFault | None:
        return None if call.topic is Topic.COMMANDS else SLOW


def test_runs_that_start_during_a_slow_takeover_are_entered_once_f09() -> None:
    lab = Lab(settings=WorkerSettings(checkpoint_events=50, checkpoint_ms=500))
    vendor = Vendor(seconds=0.3)
    app = shop(vendor, policy=Policy.KEYED)
    for index in range(40):
        lab.start("buy", index, run_id=f"old-{index}")
    first = lab.worker(app)
    assert lab.run(10, until=lambda: len(vendor.calls) == 40)
    first.kill()  # forty attempts are open
    lab.broker.faults = SlowReads()
    lab.worker(app)
    started_us = lab.universe.now_us
    for index in range(200):
        lab.run(0.0025)
        lab.start("buy", index, run_id=f"new-{index}")
    assert lab.universe.now_us - started_us <= 550_000
    assert len(claims(lab)) == 1  # it has not even claimed yet
    names = [f"old-{n}" for n in range(40)] + [f"new-{n}" for n in range(200)]
    assert lab.run(120, until=lambda: len(vendor.done) == 240)
    lab.run(5)
    assert all(lab.ended(name) for name in names)
    entered = Counter((call.slot, call.attempt, call.key) for call in vendor.calls)
    assert set(entered.values()) == {1}
    assert len(vendor.done) == 240
    # The forty were repeated under their keys by the second life, the others never were.
    assert Counter(vendor.per_key.values()) == {2: 40, 1: 200}
    events = [lab.codec.decode(r.value or b"") for r in lab.broker.records(Topic.EVENTS, 0)]
    intents = [event for event in events if isinstance(event, StepIntended)]
    assert len(intents) == len(vendor.calls) == 280


class Suggested(Faults):
    """The group gives the partition to one process, whoever asks."""

    def __init__(self) -> None:
        self.handle = "life-1"

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        return frozenset({0}) if handle == self.handle else frozenset()


@pytest.mark.parametrize("policy", [Policy.RESOLVABLE, Policy.ESCALATE], ids=str)
def test_a_late_result_is_evidence_for_the_intent_that_exists_f09(policy: Policy) -> None:
    """Another owner claims while a call is under way: nobody starts it again."""
    lab, vendor = Lab(), Vendor(seconds=4.0)
    faults = lab.broker.faults = Suggested()
    app = shop(vendor, policy=policy)
    lab.start("buy", 1)
    first = lab.worker(app, name="first")
    assert lab.run(10, until=lambda: len(vendor.calls) == 1)
    faults.handle = "life-2"
    lab.worker(app, name="second")
    assert lab.run(30, until=lab.ended)
    assert first.alive
    assert [call.process for call in vendor.calls] == ["life-1"]
    assert len(lab.events(StepIntended)) == 1
    (resolved,) = lab.events(StepResolved)
    assert isinstance(resolved, StepResolved)
    assert (resolved.verdict, resolved.evidence) == ("done", "late_report")


# ---- F11: a frozen owner


class FreezeAtIntent(Faults):
    """SIGSTOP of the owner as its first intent goes out; it is stored then, or when it wakes."""

    def __init__(self, lab: Lab, *, seconds: int, stored: bool) -> None:
        self.lab, self.seconds, self.stored = lab, seconds, stored
        self.frozen: SimProcess | None = None

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if self.frozen is not None or call.topic is not Topic.EVENTS:
            return None
        events = [self.lab.codec.decode(entry.value or b"") for entry in call.entries]
        if not any(isinstance(event, StepIntended) for event in events):
            return None
        self.frozen = current_process()
        self.frozen.freeze(self.seconds * 1_000_000)
        if self.stored:
            return AppendFault()
        return AppendFault((self.seconds * 1000,), answer_at_ms=self.seconds * 1000 + 1)


def readers_agree(lab: Lab, owner: SimProcess) -> None:
    """The owner, a reader from the start, one from a checkpoint, and a client have equal states."""
    lab.run(1)
    state = lab.workers[owner.name].owners[0].state("run-1")
    assert state is not None
    told: list[RunState] = []

    async def ask() -> None:
        log = MemoryLog("memory://lab", broker=lab.broker, name="asking")
        await log.open(create=False)
        async with Client(log) as client:
            told.append(await client.state("run-1"))

    asking = SimProcess(lab.universe, "asking")
    asking.start(ask())
    assert lab.run(10, until=lambda: bool(told))
    whole = PartitionFold(lab.codec)
    whole.apply_all(lab.broker.records(Topic.EVENTS, 0))
    hashes = {state_hash(s) for s in (state, told[0], whole.runs["run-1"], lab.state())}
    assert len(hashes) == 1


def test_an_owner_that_froze_before_its_intent_was_stored_does_nothing_f11() -> None:
    lab, vendor = Lab(settings=WorkerSettings(checkpoint_ms=500)), Vendor()
    faults = FreezeAtIntent(lab, seconds=8, stored=False)
    lab.broker.faults = faults
    app = shop(vendor, policy=Policy.RESOLVABLE)
    lab.start("hold", 1)
    first = lab.worker(app, name="first")
    second = lab.worker(app, name="second")
    assert lab.run(7, until=lambda: lab.needs("time"))
    assert first.frozen
    assert [call.process for call in vendor.calls] == [second.name]
    lab.run(10)
    assert not first.frozen
    # It woke, its intent was stored behind the newer claim, and counts for nobody.
    assert lab.fold().skipped == {Verdict.FENCED: len(last_batch(lab))}
    (why,) = [event.text for event in lab.told if event.kind == "ended_claim"]
    assert "was superseded by claim" in why
    assert f"at offset {claim_offset(lab, second)}" in why
    assert [call.process for call in vendor.calls] == [second.name]
    readers_agree(lab, second)


def last_batch(lab: Lab) -> list[Any]:
    """What the frozen owner had sent: the records of its claim behind the newer one."""
    fold = PartitionFold(lab.codec)
    applied = [fold.apply(record) for record in lab.broker.records(Topic.EVENTS, 0)]
    return [a for a in applied if a.verdict is Verdict.FENCED]


def claim_offset(lab: Lab, process: SimProcess) -> int:
    for record in lab.broker.records(Topic.EVENTS, 0):
        event = lab.codec.decode(record.value or b"")
        if isinstance(event, PartitionClaimed) and event.process == process.name:
            return record.offset
    raise AssertionError(f"{process.name} has not claimed")


def test_an_owner_that_froze_past_its_deadline_does_not_act_f11() -> None:
    """Its intent is acknowledged and counts; the last look comes too late."""
    lab, vendor = Lab(), Vendor()
    faults = FreezeAtIntent(lab, seconds=20, stored=True)
    lab.broker.faults = faults
    app = shop(vendor, policy=Policy.ESCALATE, timeout=2 * SECOND)
    lab.start("hold", 1)
    lab.worker(app, name="first")
    second = lab.worker(app, name="second")
    assert lab.run(15, until=lambda: lab.needs("person"))
    assert vendor.calls == []
    # The one risk is shown, and settled by the evidence of the owner that woke.
    assert lab.run(40, until=lambda: lab.needs("time"))
    assert [call.process for call in vendor.calls] == [second.name]
    reports = [e for e in lab.events(AttemptReported) if isinstance(e, AttemptReported)]
    assert [(r.slot, r.attempt, r.outcome) for r in reports] == [("charge#1", 1, "never_started")]
    readers_agree(lab, second)


def test_an_owner_that_froze_in_its_call_is_one_risk_and_its_answer_is_evidence_f11() -> None:
    lab, vendor = Lab(), Vendor()

    async def freeze() -> None:
        await current_process().freeze_here(8_000_000)

    vendor.after = [freeze]
    app = shop(vendor, policy=Policy.ESCALATE, timeout=60 * SECOND)
    lab.start("hold", 1)
    first = lab.worker(app, name="first")
    second = lab.worker(app, name="second")
    assert lab.run(7, until=lambda: lab.needs("person"))
    assert first.frozen
    assert [entry.slot for entry in lab.boundary().in_doubt] == ["charge#1"]
    lab.resolve("charge#1", happened=False)  # refused: a call could still reach the far system
    assert lab.run(40, until=lambda: lab.needs("time"))
    assert [call.process for call in vendor.calls] == [first.name]
    assert len(lab.events(StepIntended)) == 1
    (rejected,) = [e for e in lab.events() if isinstance(e, CommandRejected)]
    assert rejected.reason == "too_early"
    (resolved,) = lab.events(StepResolved)
    assert isinstance(resolved, StepResolved)
    assert (resolved.verdict, resolved.evidence) == ("done", "late_report")
    readers_agree(lab, second)


# ---- F14: rolling restarts


PARTITIONS = 6
RUNS = 100


def long_steps(calls: dict[tuple[str, str, int], str], done: dict[str, int]) -> App:
    """Steps of 0 to 30 seconds, of each policy that goes on by itself."""
    app = App("long")

    async def act(fx: Effect, seconds: float) -> float:
        assert (fx.run_id, fx.slot, fx.attempt) not in calls
        calls[fx.run_id, fx.slot, fx.attempt] = current_process().name
        done[fx.key] = done.get(fx.key, 0) + (fx.key not in done)
        await asyncio.sleep(seconds)
        return seconds

    async def find(key: str) -> Any:
        from refold import Absent, Found

        return Found(float(done[key])) if key in done else Absent()

    @app.step(policy=Policy.KEYED, key_ttl=None, timeout=60 * SECOND)
    async def book(fx: Effect, seconds: float) -> float:
        return await act(fx, seconds)

    @app.step(policy=Policy.RESOLVABLE, lookup=find, settle=SECOND, timeout=60 * SECOND)
    async def charge(fx: Effect, seconds: float) -> float:
        return await act(fx, seconds)

    @app.step(policy=Policy.RE_EXECUTABLE, timeout=60 * SECOND)
    async def read(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @app.run("long")
    async def long(ctx: RunContext, seconds: list[float]) -> int:
        for index, each in enumerate(seconds):
            step: Callable[..., Any] = (book, charge, read)[index % 3]
            await ctx.step(step, each)
        return len(seconds)

    return app


def test_a_rolling_restart_hands_over_without_repeating_anything_f14() -> None:
    settings = WorkerSettings(drain_ms=2_000, tail_check_ms=1_000)
    lab = Lab(settings=settings, partition_count=PARTITIONS)
    calls: dict[tuple[str, str, int], str] = {}
    done: dict[str, int] = {}
    app = long_steps(calls, done)
    random = Random(14)
    owners = [lab.worker(app, name=f"owner-{n}") for n in range(3)]
    lab.run(5)
    for number in range(RUNS):
        run_id = f"run-{number}"
        given = [round(random.uniform(0, 30), 1) for _ in range(4)]
        command = StartRun(run_id, run_id, "long", encode_value(given), None, "tester")
        entry = Entry(run_id.encode(), lab.codec.encode(command))
        lab.broker.put(Topic.COMMANDS, partition_for(run_id, PARTITIONS), [entry])
    lab.run(20)
    assert sorted(len(lab.workers[p.name].owners) for p in owners) == [2, 2, 2]
    for number, process in enumerate(list(owners)):
        lab.stop(process)
        process.kill()  # its process ends here, with the calls that its drain has left
        owners.append(lab.worker(app, name=f"next-{number}"))
        lab.run(10)

    lab.run(400)
    events: dict[type, list[tuple[str, Any]]] = {}
    released = []
    folds = [PartitionFold(lab.codec) for _ in range(PARTITIONS)]
    for partition, fold in enumerate(folds):
        for record in lab.broker.records(Topic.EVENTS, partition):
            applied = fold.apply(record)
            if applied.run_id is not None:
                events.setdefault(type(applied.event), []).append((applied.run_id, applied.event))
            elif isinstance(applied.event, PartitionReleased):
                released.append(applied.event)
        assert fold.facts.unclean_total == 0
    states = [state for fold in folds for state in fold.runs.values()]
    assert len(states) == RUNS
    assert all(state.ended is not None for state in states)
    intents = {(run_id, i.slot, i.attempt) for run_id, i in events[StepIntended]}
    # Each call has its intent, each intent its call: nothing was abandoned, nothing done twice.
    assert set(calls) == intents
    keys = [s.effect_key for state in states for s in state.slots.values() if s.attempts]
    assert sorted(done) == sorted(keys)
    assert set(done.values()) == {1}
    # What each drain left is told, and is what recovery then found.
    left = sum(int(r.reason.split()[3]) for r in released if r.reason != "drained")
    assert left > 20
    repeated = {key for key in intents if key[2] > 1}
    found = [e for _, e in events[StepResolved] if e.verdict == "done"]
    assert len(repeated) + len(found) >= 10
    assert StepInDoubt not in events  # a hand-over is no doubt that a person has to know of
    assert len(events[StepCompleted]) + len(found) == RUNS * 4


def claims(lab: Lab) -> list[PartitionClaimed]:
    """Every claim in the log."""
    events = [lab.codec.decode(r.value or b"") for r in lab.broker.records(Topic.EVENTS, 0)]
    return [event for event in events if isinstance(event, PartitionClaimed)]
