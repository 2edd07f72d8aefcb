"""Field reports on acknowledgements: late, unknown, half a batch, and offsets with holes.

F12: ownership was announced before the claim was durable. F15: an append has a third outcome,
unknown. F16: a batch silently lost its tail. F18: contiguous offsets were taken for a promise.
"""

from datetime import timedelta
from typing import Any

import pytest

from refold import App, Effect, Policy, ResultUnrecordable, RunContext
from refold.log.memory import Answer, AppendCall, AppendFault, Faults
from refold.log.port import Entry, Topic
from refold.testing.sim_loop import SimProcess
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold, Verdict
from refold_schemas.codec import RecordHeader
from refold_schemas.commands import StartRun
from refold_schemas.events import (
    CommandRejected,
    PartitionClaimed,
    RunBlocked,
    RunStarted,
    StepCompleted,
    StepIntended,
    TimerFired,
)
from refold_schemas.values import encode_value
from support.lab import Lab
from support.vendor import Vendor

SHORT = WorkerSettings(append_timeout_ms=2_000)


def orders(vendor: Vendor) -> App:
    """A run with every kind of record: reads, effects by key and by lookup, a timer, parallels."""
    app = App("orders")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def read(index: int) -> str:
        return "x" * 100 * index

    @app.step(
        policy=Policy.RESOLVABLE,
        lookup=vendor.find,
        settle=timedelta(milliseconds=200),
        timeout=timedelta(seconds=1),
    )
    async def charge(fx: Effect, pence: int) -> str:
        return await vendor.act(fx, pence=pence)

    @app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(seconds=1))
    async def book(fx: Effect, pallets: int) -> str:
        return await vendor.act(fx, pallets=pallets)

    @app.run("order", plan=["read", "charge", "book"])
    async def order(ctx: RunContext) -> list[Any]:
        first = await ctx.step(read, 1)
        paid = await ctx.step(charge, 4160)
        await ctx.sleep(timedelta(seconds=1))
        rest = await ctx.gather(ctx.step(book, 1), ctx.step(charge, 5), ctx.step(read, 3))
        return [first, paid, *rest]

    return app


SLOTS = {
    "read#1",
    "charge#1",
    "gather#1[0]/book#1",
    "gather#1[1]/charge#1",
    "gather#1[2]/read#1",
}


def check_once(lab: Lab, vendor: Vendor) -> None:
    """Nothing lost, nothing doubled: in the far system, in the record, for every reader."""
    assert lab.status() == "completed"
    assert len(vendor.done) == 3
    done = [event.slot for event in lab.events(StepCompleted) if isinstance(event, StepCompleted)]
    assert len(done) == len(set(done))
    assert {entry.slot for entry in lab.boundary().done} == SLOTS
    assert len(lab.events(TimerFired)) == 1
    assert len(lab.events(RunStarted)) == 1
    # One intent for each call, one key for each slot.
    intents = [event for event in lab.events(StepIntended) if isinstance(event, StepIntended)]
    assert {(c.slot, c.attempt) for c in vendor.calls} <= {(i.slot, i.attempt) for i in intents}
    assert len({(call.slot, call.attempt) for call in vendor.calls}) == len(vendor.calls)
    for slot in {intent.slot for intent in intents}:
        assert len({intent.effect_key for intent in intents if intent.slot == slot}) == 1
    assert not lab.boundary().conflicts


class Nth(Faults):
    """The `number`th append to `ns.events` of one process meets a fault."""

    def __init__(self, number: int, fault: AppendFault, handle: str = "life-1") -> None:
        self.number, self.fault, self.handle = number, fault, handle
        self.seen = 0
        self.struck: AppendCall | None = None

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if call.topic is not Topic.EVENTS or call.handle != self.handle:
            return None
        self.seen += 1
        if self.seen != self.number:
            return None
        self.struck = call
        return self.fault


# ---- F15: the third outcome


TOLD = {
    Answer.ERROR: "",
    Answer.MINUS_ONE: "acknowledged with offset -1",
    Answer.NONE: "acknowledged with offset None",
    Answer.SILENCE: "no acknowledgement within",
}
STORED = {"stored": (0,), "lost": (), "doubled": (0, 30), "late": (3_000,)}


@pytest.mark.parametrize("number", range(2, 8))
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("answer", TOLD, ids=str)
def test_an_unknown_append_ends_the_claim_and_nothing_else_f15(
    answer: Answer, stored: str, number: int
) -> None:
    lab, vendor = Lab(settings=SHORT), Vendor()
    faults = Nth(number, AppendFault(STORED[stored], answer, answer_at_ms=20))
    lab.broker.faults = faults
    lab.start("order")
    process = lab.worker(orders(vendor))
    assert lab.run(60, until=lab.ended)
    lab.run(5)
    assert faults.struck is not None
    assert process.alive
    check_once(lab, vendor)
    # The claim ended once, said why, and a new claim was the barrier.
    ends = [event.text for event in lab.told if event.kind == "ended_claim"]
    assert len(ends) == 1
    assert "an append ended as unknown" in ends[0]
    assert TOLD[answer] in ends[0]
    assert len(claims_that_count(lab)) == 2
    # What came behind the barrier, and what came twice, is in the log and counts for nobody.
    skipped = lab.fold().skipped
    size = len(faults.struck.entries)
    if stored == "late":
        assert skipped.get(Verdict.FENCED, 0) == size
    elif stored == "doubled":
        assert sum(skipped.values()) == size
    else:
        assert sum(skipped.values()) == 0


def claims_that_count(lab: Lab) -> list[PartitionClaimed]:
    fold = PartitionFold(lab.codec)
    applied = [fold.apply(record) for record in lab.broker.records(Topic.EVENTS, 0)]
    return [a.event for a in applied if isinstance(a.event, PartitionClaimed)]


# ---- F12: a claim that is not durable owns nothing


@pytest.mark.parametrize("answer", [Answer.ERROR, Answer.SILENCE, Answer.MINUS_ONE], ids=str)
def test_nothing_happens_before_a_claim_is_acknowledged_f12(answer: Answer) -> None:
    """The claim is stored at once and answered after five seconds, with a timeout."""
    lab, vendor = Lab(settings=WorkerSettings(append_timeout_ms=5_000)), Vendor()
    app = orders(vendor)
    lab.start("order")
    first = lab.worker(app)
    assert lab.run(10, until=lambda: lab.status() == "waiting")  # one timer is armed
    first.kill()
    calls = len(vendor.calls)
    lab.start("order", run_id="run-2")
    faults = Nth(1, AppendFault((0,), answer, answer_at_ms=5_000), handle="life-2")
    lab.broker.faults = faults
    end = lab.broker.bounds(Topic.EVENTS, 0)[1]
    lab.worker(app)
    assert lab.run(10, until=lambda: faults.struck is not None)
    lab.run(4.9)
    # The timer is due, a command waits, the claim stands in the log: nobody moves.
    assert lab.broker.bounds(Topic.EVENTS, 0)[1] == end + 1
    assert len(vendor.calls) == calls
    assert not [event for event in lab.told if event.kind == "claimed"][1:]
    assert lab.run(60, until=lambda: lab.ended() and lab.ended("run-2"))
    assert len(vendor.done) == 6
    # After the ambiguous answer it claimed again: three claims, and the second served nothing.
    assert len(claims_that_count(lab)) == 3
    assert len([event for event in lab.told if event.kind == "claimed"]) == 2


class Everybody(Faults):
    """For a second the group gives the partition to all who ask; all claims are stored at once."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.claimed: set[str] = set()

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if call.handle in self.claimed or call.topic is not Topic.EVENTS:
            return None
        self.claimed.add(call.handle)
        return AppendFault((10 - self.lab.now_ms() % 10,), answer_at_ms=12)

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        return frozenset({0}) if self.lab.universe.now_us < 1_000_000 else partitions


@pytest.mark.parametrize("seed", range(12))
def test_two_owners_that_claim_in_one_millisecond_f12(seed: int) -> None:
    lab, vendor = Lab(seed=seed), Vendor()
    app = orders(vendor)
    lab.broker.faults = Everybody(lab)
    lab.start("order")
    processes = [lab.worker(app, name=f"owner-{index}") for index in range(2)]
    acted: list[tuple[str, str]] = []

    def serves() -> set[str]:
        return {p.name for p in processes if lab.workers[p.name].owners}

    lab.universe.after_turn.append(lambda: acted.extend(last_calls(lab, vendor, len(acted))))
    assert lab.run(60, until=lab.ended)
    lab.run(5)
    records = lab.broker.records(Topic.EVENTS, 0)
    first = [lab.codec.decode(record.value or b"") for record in records[:2]]
    assert all(isinstance(event, PartitionClaimed) for event in first)
    assert records[0].append_ms == records[1].append_ms
    check_once(lab, vendor)
    # Whoever acted was, at that moment, the owner by the latest claim that counts.
    assert len(acted) == len(vendor.calls)
    assert all(caller == owner for caller, owner in acted)
    assert len(serves()) == 1


def last_calls(lab: Lab, vendor: Vendor, seen: int) -> list[tuple[str, str]]:
    """For each call since: who made it, and who owned the partition then by the log."""
    return [(call.process, lab.fold().facts.process) for call in vendor.calls[seen:]]


# ---- F16: a decision is stored whole or refused whole


def writer(payload: int) -> App:
    app = App("writer")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def produce(size: int) -> str:
        return "x" * size

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def send(text: str, note: str) -> int:
        return len(text)

    @app.run("write", plan=["produce", "send"])
    async def write(ctx: RunContext) -> str:
        try:
            first, _ = await ctx.gather(ctx.step(produce, payload), ctx.step(produce, 10))
        except ResultUnrecordable as error:
            return str(error)
        await ctx.sleep(timedelta(seconds=1))
        await ctx.step(send, first, "y" * 300)
        return "all of it"

    return app


SIZES = [*range(15_000, 17_001, 250), *range(16_000, 16_400, 8), 40_000]


@pytest.mark.parametrize("payload", SIZES)
def test_a_decision_is_stored_whole_or_refused_whole_f16(payload: int) -> None:
    """Results around the 16 KiB that some clients hold for a batch by default."""
    lab = Lab(settings=SHORT)
    lab.broker.batch_size_max = 16_384
    lab.start("write")
    lab.start("write", run_id="neighbour")
    process = lab.worker(writer(payload))
    assert lab.run(60, until=lambda: settled(lab, "run-1") and settled(lab, "neighbour"))
    assert process.alive
    check_contiguous(lab)
    assert len(claims_that_count(lab)) == 1
    done = {e.slot: e for e in lab.events(StepCompleted) if isinstance(e, StepCompleted)}
    assert set(done) - {"send#1"} == {"gather#1[0]/produce#1", "gather#1[1]/produce#1"}
    big = done["gather#1[0]/produce#1"]
    if big.unrecordable is not None:
        # It happened, so it is recorded, without what is too large to be kept.
        assert payload > 15_800
        assert big.result is None
        assert "16,384 fit into a batch" in big.unrecordable.reason
        assert lab.status() == "completed"
        return
    assert payload < 16_384
    if lab.status() == "blocked":  # its intent, which holds the text with more beside it
        (blocked,) = lab.events(RunBlocked)
        assert isinstance(blocked, RunBlocked)
        assert blocked.reason == "limit"
        assert "send#1" in blocked.detail
        assert "16,384 fit into a batch" in blocked.detail
        assert "send#1" not in lab.state().slots
    else:
        assert lab.status() == "completed"
        assert "send#1" in done


def settled(lab: Lab, run_id: str) -> bool:
    return lab.status(run_id) in ("completed", "blocked", "failed")


def test_the_sizes_reach_all_three_ends_f16() -> None:
    ends = set()
    for payload in (15_000, 15_960, 16_392):
        lab = Lab(settings=SHORT)
        lab.broker.batch_size_max = 16_384
        lab.start("write")
        lab.worker(writer(payload))
        assert lab.run(60, until=lambda lab=lab: settled(lab, "run-1"))  # type: ignore[misc]
        big = lab.state().slots["gather#1[0]/produce#1"].outcome
        assert big is not None
        ends.add((lab.status(), big.kind))
    assert ends == {("completed", "ok"), ("blocked", "ok"), ("completed", "unrecordable")}


@pytest.mark.parametrize("payload", range(15_700, 16_400, 20))
def test_an_input_that_fits_no_batch_is_refused_and_blocks_nobody_f16(payload: int) -> None:
    lab = Lab(settings=SHORT)
    lab.broker.batch_size_max = 16_384
    app = App("inputs")

    @app.run("echo", plan=["a step whose name takes some room in the batch"])
    async def echo(ctx: RunContext, text: str) -> int:
        return len(text)

    command = StartRun("large", "run-1", "echo", encode_value("x" * payload), None, "tester")
    entry = Entry(b"run-1", lab.codec.encode(command))
    # As a client of another make may write it: what its log took must not stop this one.
    lab.broker.put(Topic.COMMANDS, 0, [entry])
    lab.start("echo", "short", run_id="neighbour")
    lab.worker(app)
    assert lab.run(30, until=lambda: lab.ended("neighbour"))
    assert len(claims_that_count(lab)) == 1
    check_contiguous(lab)
    if not lab.events(RunStarted):
        (rejected,) = [e for e in lab.events() if isinstance(e, CommandRejected)]
        assert rejected.reason == "too_large"
        assert "16,384 fit into a batch" in rejected.detail
        assert "run-1" not in lab.fold().runs
    else:
        assert lab.status() == "completed"


def check_contiguous(lab: Lab) -> None:
    """Every n of every claim is there, once and in order."""
    expected: dict[bytes, int] = {}
    for record in lab.broker.records(Topic.EVENTS, 0):
        assert record.header is not None
        header = RecordHeader.unpack(record.header)
        if header.kind == 0:
            assert header.n == expected.get(header.claim_id, 0)
            expected[header.claim_id] = header.n + 1
    assert lab.fold().skipped == {}


# ---- F18: holes are no loss


class Holes(Faults):
    """A hole of one to three offsets in front of every batch, as control records leave."""

    def __init__(self) -> None:
        self.made = 0

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if call.topic is not Topic.EVENTS:
            return None
        self.made += 1
        return AppendFault(hole=1 + self.made % 3)


def test_holes_in_the_offsets_are_read_and_passed_f18() -> None:
    lab, vendor = Lab(), Vendor()
    faults = lab.broker.faults = Holes()
    app = orders(vendor)
    lab.start("order")
    first = lab.worker(app)
    assert lab.run(10, until=lambda: lab.status() == "waiting")
    # The owner looked into every gap, found nothing foreign and went on.
    assert faults.made >= 4
    assert len(claims_that_count(lab)) == 1
    assert not [event for event in lab.told if event.kind == "ended_claim"]
    first.kill()
    lab.broker.hole(Topic.EVENTS, 0, 5)  # and the log ends with one
    lab.worker(app)
    assert lab.run(60, until=lab.ended)
    check_once(lab, vendor)
    assert len(claims_that_count(lab)) == 2


def test_holes_in_the_commands_are_read_and_passed_f18() -> None:
    lab, vendor = Lab(), Vendor()
    for number in range(3):
        lab.broker.hole(Topic.COMMANDS, 0, 2)
        lab.start("order", run_id=f"run-{number}")
    lab.broker.hole(Topic.COMMANDS, 0, 4)
    lab.worker(orders(vendor))
    assert lab.run(60, until=lambda: all(lab.ended(f"run-{number}") for number in range(3)))
    assert len(vendor.done) == 9
    assert lab.fold().position.command_next == 9


def test_an_owner_that_is_idle_follows_a_hole_f18() -> None:
    lab, vendor = Lab(), Vendor()
    process: SimProcess = lab.worker(orders(vendor))
    lab.run(1)
    lab.broker.hole(Topic.EVENTS, 0, 7)
    owner = lab.workers[process.name].owners[0]
    end = lab.broker.bounds(Topic.EVENTS, 0)[1]
    assert lab.run(10, until=lambda: owner.position.offset_next == end)
    lab.start("order")
    assert lab.run(60, until=lab.ended)
    assert len(claims_that_count(lab)) == 1
