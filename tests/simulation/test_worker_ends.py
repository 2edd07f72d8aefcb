"""How a worker ends, and what it says of what keeps it from working."""

import asyncio
import re
from datetime import timedelta

import pytest

from refold import App, Effect, Policy, RunContext
from refold.engine.books import Books
from refold.engine.claiming import namespace_place
from refold.engine.ending import ClaimRefused
from refold.log import partition_for
from refold.log.memory import Answer, AppendCall, AppendFault, Faults, ReadCall, ReadFault
from refold.log.port import Entry, Topic
from refold.log.sizes import batch_size
from refold.worker import CallOverdue, WorkerSettings
from refold.worker.overdue import EXIT_OVERDUE
from refold.worker.worker import HAND_OVER_MS
from refold_projections.fold import PartitionFold
from refold_schemas.codec import KIND_CLAIM, RecordHeader
from refold_schemas.commands import StartRun
from refold_schemas.errors import BatchTooLarge, LogUnavailable
from refold_schemas.events import PartitionClaimed, PartitionReleased, StepIntended
from refold_schemas.values import encode_value
from support.lab import Lab


class Mail:
    """A far system that answers after `takes_s`, and a step that may cling to its call."""

    def __init__(self, takes_s: float, *, clings: bool = False) -> None:
        self.takes_s, self.clings = takes_s, clings
        self.app = App("mail")

        @self.app.step(
            policy=Policy.ESCALATE, timeout=timedelta(hours=1), lookup_for=timedelta(minutes=2)
        )
        async def mail(fx: Effect) -> str:
            ends_at = asyncio.get_running_loop().time() + self.takes_s
            while (left_s := ends_at - asyncio.get_running_loop().time()) > 0:
                try:
                    await asyncio.sleep(left_s)
                except asyncio.CancelledError:
                    if not self.clings:
                        raise
            return "sent"

        @self.app.run("order")
        async def order(ctx: RunContext) -> str:
            return await ctx.step(mail)


def released(lab: Lab, partition: int) -> bool:
    fold = PartitionFold(lab.codec)
    events = [fold.apply(r).event for r in lab.broker.records(Topic.EVENTS, partition)]
    return any(isinstance(e, PartitionReleased) for e in events)


def intents(lab: Lab, partition: int) -> int:
    fold = PartitionFold(lab.codec)
    events = [fold.apply(r).event for r in lab.broker.records(Topic.EVENTS, partition)]
    return sum(isinstance(e, StepIntended) for e in events)


def start(lab: Lab, run_id: str) -> None:
    command = StartRun(f"c-{run_id}", run_id, "order", encode_value(None), None, "tester")
    entry = Entry(run_id.encode(), lab.codec.encode(command))
    lab.broker.put(Topic.COMMANDS, partition_for(run_id, lab.broker.partition_count), [entry])


def test_all_partitions_drain_at_once_within_one_limit() -> None:
    lab = Lab(settings=WorkerSettings(drain_ms=10_000), partition_count=3)
    process = lab.worker(Mail(takes_s=9.0).app)
    for i in range(40):
        start(lab, f"run-{i}")
    assert lab.run(5, until=lambda: all(intents(lab, p) for p in range(3)))
    lab.workers[process.name].stop()
    lab.run(9.5)
    assert [released(lab, p) for p in range(3)] == [True] * 3
    said = [(event.partition, event.text) for event in lab.told if event.kind == "released"]
    assert sorted(said) == [(p, "drained") for p in range(3)]
    lab.run(2)
    assert lab.broker.suggest("another") == frozenset({0, 1, 2}), "given up"


class OneLess(Faults):
    """The group takes partition 1 away from its owner from some moment on."""

    taken = False

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        return partitions - {1} if self.taken else partitions


def test_a_stop_awaits_a_hand_over_that_had_begun_before() -> None:
    lab = Lab(settings=WorkerSettings(drain_ms=10_000), partition_count=2)
    faults = OneLess()
    lab.broker.faults = faults
    process = lab.worker(Mail(takes_s=9.0).app)
    start(lab, next(name for i in range(99) if partition_for(name := f"run-{i}", 2) == 1))
    assert lab.run(5, until=lambda: bool(intents(lab, 1)))
    faults.taken = True
    owner = lab.workers[process.name].owners[1]
    assert lab.run(2, until=lambda: owner.draining)
    worker = lab.workers[process.name]
    worker.stop()
    lab.run(7)
    assert worker.owners == {1: owner}, "it still drains"
    lab.run(5)
    assert released(lab, 1)
    assert owner.ended


class ToAll(Faults):
    """The group gives the partition to everybody who asks, or cannot be asked."""

    away = False

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        if self.away:
            raise LogUnavailable("memory://lab", "the group of owners cannot be asked")
        return frozenset({0})


def claims(lab: Lab) -> int:
    headers = [RecordHeader.read(r.header) for r in lab.broker.records(Topic.EVENTS, 0)]
    return sum(header is not None and header.kind == KIND_CLAIM for header in headers)


def test_who_lost_its_claim_does_not_claim_before_the_group_can_be_asked() -> None:
    lab, faults = Lab(), ToAll()
    lab.broker.faults = faults
    lab.worker(Mail(takes_s=1.0).app, name="first")
    assert lab.run(5, until=lambda: claims(lab) == 1)
    faults.away = True
    taken = PartitionClaimed(
        "another", "elsewhere", "mail", "0", (), lab.broker.facts.topic_ids, 1, 1
    )
    header = RecordHeader(KIND_CLAIM, bytes(15) + b"x", 2, 0, lab.now_ms(), 0)
    lab.broker.put(Topic.EVENTS, 0, [Entry(None, lab.codec.encode(taken), header.pack())])
    assert lab.run(5, until=lambda: any("superseded" in event.text for event in lab.told))
    lab.run(10)
    assert claims(lab) == 2
    faults.away = False
    assert lab.run(5, until=lambda: claims(lab) == 3)


def test_events_that_were_made_anew_under_their_snapshots_are_not_begun_again() -> None:
    """Each command would be decided a second time, and each effect repeated."""
    lab, app = Lab(), Mail(takes_s=0.1).app
    first = lab.worker(app, name="first")
    lab.start("order")
    assert lab.run(5, until=lambda: lab.status() == "completed")
    lab.stop(first)  # it leaves a checkpoint
    broker = lab.broker
    kept = {t: broker.records(t, 0) for t in (Topic.COMMANDS, Topic.SNAPSHOTS)}
    assert all(kept.values())
    broker.recreate()
    for topic, records in kept.items():
        broker.put(topic, 0, [Entry(r.key, r.value, r.header) for r in records])
    second = lab.worker(app, name="second")
    assert not lab.run(10, until=lambda: bool(broker.records(Topic.EVENTS, 0)))
    refused = lab.failures[second.name]
    assert isinstance(refused, ClaimRefused)
    assert "has lost its events" in refused.message


def test_owners_that_fence_each_other_do_it_ever_more_slowly() -> None:
    """Each such claim looks like a process that died: runs would be parked for it (R019)."""
    lab = Lab()
    lab.broker.faults = ToAll()
    for name in ("first", "second"):
        lab.worker(Mail(takes_s=1.0).app, name=name)
    lab.run(10)
    assert claims(lab) < 40


class Mute(Faults):
    """Appends to the events stay without an answer once it is mute."""

    mute = False

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if self.mute and call.topic is not Topic.COMMANDS:
            return AppendFault(store_at_ms=(), answer_at_ms=10**9)
        return None


def test_a_log_that_does_not_answer_keeps_no_worker_from_ending() -> None:
    settings = WorkerSettings(drain_ms=1_000, append_timeout_ms=10**8)
    lab = Lab(settings=settings)
    faults = Mute()
    lab.broker.faults = faults
    process = lab.worker(Mail(takes_s=3600.0).app)
    lab.start("order")
    assert lab.run(5, until=lambda: bool(lab.events(StepIntended)))
    worker = lab.workers[process.name]
    (owner,) = worker.owners.values()
    faults.mute = True
    worker.stop()
    assert lab.run((1_000 + HAND_OVER_MS) / 1000 + 3, until=lambda: not worker.owners)
    lab.run(1)
    assert owner.ended
    assert not owner._tasks, "nothing of it works on"
    assert any("could not be handed over within 6 s" in e.text for e in lab.told)
    assert not worker.handed_over
    assert lab.broker.suggest("another") == frozenset({0})


@pytest.mark.untraced
def test_a_call_that_swallows_its_cancellation_ends_its_worker_after_lookup_for() -> None:
    lab = Lab(settings=WorkerSettings(drain_ms=1_000))
    process = lab.worker(Mail(takes_s=10**6, clings=True).app)
    lab.start("order")
    deadline_s = 3600
    lab.run(deadline_s + 110)
    worker = lab.workers[process.name]
    assert process.alive
    assert worker.owners, "it is watched for lookup_for first"
    lab.run(60)
    assert released(lab, 0), "handed over"
    assert lab.exits == {process.name: EXIT_OVERDUE}, "and only the end of the process ends it"
    assert isinstance(worker.failure, CallOverdue)
    assert sum("(R023)" in e.text for e in lab.told) == 1
    assert lab.needs("person")


@pytest.mark.untraced
def test_a_call_that_ends_while_its_worker_hands_over_leaves_the_error() -> None:
    lab = Lab(settings=WorkerSettings(drain_ms=10_000))
    process = lab.worker(Mail(takes_s=3600 + 125, clings=True).app)
    lab.start("order")
    lab.run(3600 + 140)
    assert lab.exits == {}
    error = lab.failures[process.name]
    assert isinstance(error, CallOverdue)
    assert (error.run_id, error.slot, error.attempt) == ("run-1", "mail#1", 1)
    assert error.exit_code == EXIT_OVERDUE


@pytest.mark.untraced
def test_a_call_that_only_takes_long_ends_nobody() -> None:
    lab = Lab()
    process = lab.worker(Mail(takes_s=3600 + 60, clings=True).app)
    lab.start("order")
    lab.run(3600 + 900)  # far beyond what a call that clings is given
    assert process.alive
    assert lab.workers[process.name].owners
    assert lab.failures == {}
    assert lab.exits == {}


def test_a_defect_of_the_owner_is_told_with_its_cause_and_backed_off_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = []

    def broken(self: Books, *arguments: object, **more: object) -> None:
        tries.append(1)
        try:
            raise LookupError("no such shelf")
        except LookupError as error:
            raise RuntimeError("the books cannot be opened") from error

    lab = Lab()
    with monkeypatch.context() as patched:
        patched.setattr(Books, "__init__", broken)
        lab.worker(Mail(takes_s=1.0).app)
        lab.run(300)
    assert 5 < len(tries) < 40
    warnings = [e.text for e in lab.told if e.kind == "warning"]
    assert len(warnings) == 1
    assert "partition 0 failed, and is tried again: LookupError: no such shelf in " in warnings[0]
    assert "test_worker_ends.py:" in warnings[0]
    lab.start("order")
    assert lab.run(60, until=lambda: lab.ended()), "and goes on once it is mended"


class Away(Faults):
    """A log that refuses every read while it is away."""

    away = True

    def on_read(self, call: ReadCall) -> ReadFault | None:
        return ReadFault(refused=self.away)


def test_an_outage_of_the_log_is_told_once_each_time() -> None:
    lab = Lab()
    faults = Away()
    lab.broker.faults = faults
    lab.worker(Mail(takes_s=1.0).app)

    def told() -> int:
        return sum("partition 0 is not claimed" in event.text for event in lab.told)

    lab.run(60)
    assert told() == 1
    (text,) = [e.text for e in lab.told if e.kind == "warning" and "is not claimed" in e.text]
    assert "this worker goes on by itself" in text
    assert "start again" not in text
    faults.away = False
    assert lab.run(10, until=lambda: any(e.kind == "claimed" for e in lab.told))
    assert told() == 1
    (over,) = [e.text for e in lab.told if e.kind == "going_on"]
    assert re.fullmatch(r"what was tried again works again, after [56]\d s \(partition 0\)", over)


def test_an_outage_that_several_partitions_meet_is_told_once_with_their_number() -> None:
    lab = Lab(partition_count=8)
    faults = lab.broker.faults = Away()
    faults.away = False
    lab.worker(Mail(takes_s=1.0).app)

    def told(kind: str) -> list[tuple[int, str]]:
        return [
            (event.partition, event.text)
            for event in lab.told
            if event.kind == kind and "asked for" not in event.text
        ]

    assert lab.run(10, until=lambda: len(told("claimed")) == 8)
    for times in (1, 2):
        faults.away = True
        for partition in range(8):
            lab.broker.put(Topic.COMMANDS, partition, [Entry(b"run", b"no command")])
        lab.run(20)
        assert len(told("warning")) == times
        partition, text = told("warning")[-1]
        assert partition == -1
        assert text.startswith("commands of 8 partitions cannot be read; it is tried again: ")
        assert text.endswith("(R016)")
        assert len(told("going_on")) == times - 1
        faults.away = False
        lab.run(20)
        partition, text = told("going_on")[-1]
        assert (len(told("going_on")), partition) == (times, -1)
        assert text.endswith("(8 partitions)")
    assert len(told("warning")) == 2


def test_whose_log_it_is_not_learns_where_its_url_names_another() -> None:
    places = {
        "kafka://b1:9092,b2:9092/shop": "kafka://HOST:PORT/NAME",
        "memory://shop": "memory://NAME",
        "sqlite:///a.db?ns=shop": "?ns=",
    }
    for url, place in places.items():
        assert place in namespace_place(url)
    lab = Lab()
    first = lab.worker(Mail(takes_s=1.0).app)
    lab.run(10)
    lab.stop(first)
    other = lab.worker(App("another"))
    assert lab.run(60, until=lambda: other.name in lab.failures)
    assert "memory://NAME" in lab.failures[other.name].next


def test_run_code_that_swallows_its_teardown_is_told_of_when_it_is_cancelled_too() -> None:
    lab, app = Lab(), App("clinging")

    @app.run("order")
    async def order(ctx: RunContext) -> None:
        while True:
            try:
                await ctx.sleep(timedelta(hours=1))
            except GeneratorExit:  # not the engine's: Python ends, and takes it away
                raise
            except BaseException:  # what nobody should catch
                continue

    lab.worker(app)
    lab.start("order")
    assert lab.run(5, until=lambda: lab.needs("time"))
    lab.cancel()
    assert lab.run(5, until=lambda: lab.status() == "cancelled")
    assert any("(R018)" in one.text for one in lab.told)


class NoSnapshots(Faults):
    """A log that takes no snapshots while it is full, or none of what deletes old ones."""

    full = deletes_nothing = False

    def on_append(self, call: AppendCall) -> AppendFault | None:
        deletes = call.entries[0].value is None
        if call.topic is Topic.SNAPSHOTS and (self.full or (self.deletes_nothing and deletes)):
            return AppendFault(store_at_ms=(), answer=Answer.ERROR)
        return None


@pytest.mark.parametrize("what", ["full", "deletes_nothing"])
def test_what_a_checkpoint_could_not_do_is_done_later_though_nothing_else_happens(
    what: str,
) -> None:
    """Else the outage would seem to last as long as nobody starts a run, and snapshots stay."""
    lab = Lab()
    faults = lab.broker.faults = NoSnapshots()
    lab.worker(Mail(takes_s=1.0).app)

    def keys() -> set[bytes]:
        """Those that stand."""
        last = {record.key: record.value for record in lab.broker.records(Topic.SNAPSHOTS, 0)}
        return {key or b"" for key, value in last.items() if value is not None}

    lab.start("order", run_id="run-1")
    assert lab.run(120, until=lambda: len(keys()) == 2)
    setattr(faults, what, True)
    lab.start("order", run_id="run-2")
    assert lab.run(120, until=lambda: any("(R016)" in event.text for event in lab.told))
    setattr(faults, what, False)
    assert lab.run(120, until=lambda: any(event.kind == "going_on" for event in lab.told))
    assert sorted(key.partition(b"/")[0] for key in keys()) == [b"", b"run-1", b"run-2"]


class Narrow(Faults):
    """A log that takes less than it tells, and learns it a byte at a time."""

    def __init__(self, lab: Lab, size_max: int) -> None:
        self.lab, self.size_max = lab, size_max

    def on_append(self, call: AppendCall) -> AppendFault | None:
        size, topic = batch_size(call.entries), call.topic.value
        if size > self.size_max:
            self.lab.broker.batch_size_max = size - 1
            raise BatchTooLarge(topic=topic, partition=call.partition, size=size, size_max=size - 1)
        return None


def test_a_limit_that_nobody_tells_costs_a_few_claims_under_load() -> None:
    """Small decisions are gathered up to a limit that is yet to be learnt."""
    lab = Lab()
    lab.broker.faults = Narrow(lab, 70_000)
    app = App("shop")

    @app.run("echo")
    async def echo(ctx: RunContext, text: str) -> str:
        return text

    for number in range(1_000):
        lab.start("echo", "x" * 1_000, run_id=f"run-{number}")
    lab.worker(app)
    assert lab.run(60, until=lambda: len(lab.fold().runs) == 1_000)
    assert sum(event.kind == "ended_claim" for event in lab.told) <= 5
