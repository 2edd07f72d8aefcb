"""What the engine does over a run's lives: crashing code, cancels, retries, limits, take-overs."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from refold import (
    Absent,
    App,
    Effect,
    Found,
    NotDone,
    Policy,
    Retry,
    RunContext,
    StepError,
)
from refold.log.port import Topic
from refold.testing.sim_loop import current_process
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold, state_hash
from refold_schemas.events import (
    CommandRejected,
    PartitionClaimed,
    RunBlocked,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepIntended,
    TimerFired,
)
from refold_schemas.values import decode_value
from support.lab import Lab


@pytest.fixture(autouse=True)
def _end_of_labs() -> Iterator[None]:
    yield
    while Lab.made:
        Lab.made.pop().end()


class CardDeclined(Exception):
    """The card was refused: the far system did not act."""


class Bank:
    """A far system on virtual time: deduplicates by key, can be told to lose its answer."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.silent = 0
        self.declines = 0
        self.locks: list[str] = []
        self.released: list[str] = []

    async def charge(self, key: str, pence: int, attempt: int) -> str:
        self.calls.append((key, attempt))
        if self.declines:
            self.declines -= 1
            raise CardDeclined("no")
        self.done.setdefault(key, pence)
        if self.silent:
            self.silent -= 1
            await current_process().loop.create_future()
        return f"paid {self.done[key]}"


def bank_app(bank: Bank, **step: Any) -> App:
    app = App("bank")

    async def find(key: str) -> Found[str] | Absent:
        return Found(f"paid {bank.done[key]}") if key in bank.done else Absent()

    options: dict[str, Any] = {
        "policy": Policy.RESOLVABLE,
        "lookup": find,
        "settle": timedelta(seconds=1),
        "timeout": timedelta(seconds=2),
        "not_done": (CardDeclined,),
        **step,
    }
    if options["policy"] is not Policy.RESOLVABLE:
        del options["lookup"], options["settle"]

    @app.step(**options)
    async def charge(fx: Effect, pence: int) -> str:
        return await bank.charge(fx.key, pence, fx.attempt)

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def read(index: int) -> int:
        return index

    @app.run("pay", plan=["read", "charge"])
    async def pay(ctx: RunContext, pence: int) -> str:
        await ctx.step(read, 1)
        return await ctx.step(charge, pence)

    @app.run("careful")
    async def careful(ctx: RunContext, pence: int) -> str:
        try:
            return await ctx.step(charge, pence)
        except CardDeclined as error:
            return f"declined: {error}"

    return app


def killer_app() -> App:
    app = App("killers")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def fine(index: int) -> int:
        return index

    @app.run("kills")
    async def kills(ctx: RunContext) -> None:
        current_process().kill()
        await ctx.step(fine, 1)

    @app.run("works")
    async def works(ctx: RunContext, count: int) -> int:
        for index in range(count):
            await ctx.step(fine, index)
            await ctx.sleep(timedelta(seconds=1))
        return count

    return app


# ---- runs that kill their process


def test_a_run_that_kills_its_process_is_parked_and_the_others_go_on() -> None:
    lab = Lab()
    app = killer_app()
    lab.start("works", 30, run_id="before")
    lab.start("kills", run_id="killer")
    lab.start("works", 3, run_id="after")
    for _ in range(6):
        process = lab.worker(app)
        lab.run(200, until=lambda p=process: not p.alive or lab.ended("before"))  # type: ignore[misc]
        if process.alive:
            break
    blocked = lab.events(RunBlocked, "killer")
    assert [e.reason for e in blocked if isinstance(e, RunBlocked)] == ["crashes_worker"]
    assert lab.status("killer") == "blocked"
    assert lab.boundary("killer").needs == "person"
    assert (lab.status("before"), lab.status("after")) == ("completed", "completed")
    claims = [lab.codec.decode(r.value or b"") for r in lab.broker.records(Topic.EVENTS, 0)]
    assert sum(isinstance(c, PartitionClaimed) for c in claims) == 4


def test_after_two_unclean_ends_every_step_gets_an_intent() -> None:
    lab = Lab()
    app = App("slow")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def slow(index: int) -> int:
        await asyncio.sleep(1)
        return index

    @app.run("steps")
    async def steps(ctx: RunContext) -> int:
        return sum([await ctx.step(slow, index) for index in range(8)])

    lab.start("steps")
    for _ in range(2):
        process = lab.worker(app)
        lab.run(1.5)
        process.kill()
    assert lab.events(StepIntended) == []
    lab.worker(app)
    assert lab.run(100, until=lab.ended)
    assert lab.events(StepIntended)
    assert lab.status() == "completed"


def test_a_person_lets_a_parked_killer_go_on() -> None:
    lab = Lab()
    lab.start("kills", run_id="run-1")
    for _ in range(3):
        process = lab.worker(killer_app())
        lab.run(30, until=lambda p=process: not p.alive)  # type: ignore[misc]
    mended = App("killers")

    @mended.step(policy=Policy.RE_EXECUTABLE)
    async def fine(index: int) -> int:
        return index

    @mended.run("kills", version="2")
    async def kills(ctx: RunContext) -> int:
        return await ctx.step(fine, 1)

    lab.worker(mended)
    lab.run(5)
    assert lab.status() == "blocked"
    lab.retry()
    assert lab.run(10, until=lab.ended)
    assert lab.status() == "completed"
    [resumed] = lab.events(RunResumed)
    assert isinstance(resumed, RunResumed)
    assert resumed.by == "tester"


# ---- cancel


@pytest.mark.parametrize("answered", [True, False])
def test_a_cancel_settles_what_is_open_before_the_run_is_cancelled(answered: bool) -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 0 if answered else 1
    app = bank_app(bank)
    lab.start("pay", 4160)
    lab.worker(app)
    lab.run(5, until=lambda: bool(bank.calls))
    if not answered:
        lab.cancel()
    assert lab.run(30, until=lab.ended)
    found = lab.boundary()
    assert found.status == ("completed" if answered else "cancelled")
    assert [e.slot for e in found.done] == ["read#1", "charge#1"]
    assert list(bank.done.values()) == [4160]
    assert found.in_doubt == ()


def test_a_cancelled_run_whose_effect_is_absent_is_looked_up_once_more_later() -> None:
    lab, bank = Lab(settings=WorkerSettings(proof_after_ms=90_000)), Bank()

    async def never(key: str, pence: int, attempt: int) -> str:
        await current_process().loop.create_future()
        return ""

    bank.charge = never  # type: ignore[method-assign]
    app = bank_app(bank)
    lab.start("pay", 4160)
    lab.worker(app)
    lab.run(1)
    lab.cancel()
    assert lab.run(60, until=lab.ended)
    assert lab.status() == "cancelled"
    slot = lab.state().slots["charge#1"]
    assert slot.absent_until_proven
    key = slot.effect_key
    bank.done[key] = 4160  # it was in the far system's queue all the time
    lab.run(95)
    assert lab.boundary().conflicts == ("charge#1",)
    assert lab.status() == "cancelled"


# ---- failures and retries


def test_an_observed_failure_is_retried_with_back_off_and_a_fresh_key_where_asked() -> None:
    lab, bank = Lab(), Bank()
    bank.declines = 2
    retry = Retry(max_attempts=4, first_wait=timedelta(seconds=2), fresh_key_on=(CardDeclined,))
    app = bank_app(bank, retry=retry)
    lab.start("pay", 4160)
    lab.worker(app)
    began = lab.now_ms()
    assert lab.run(60, until=lab.ended)
    assert lab.status() == "completed"
    assert [attempt for _, attempt in bank.calls] == [1, 2, 3]
    assert len({key for key, _ in bank.calls}) == 3
    assert lab.now_ms() - began >= 6_000
    intents = [e for e in lab.events(StepIntended) if isinstance(e, StepIntended)]
    assert [e.generation for e in intents] == [0, 1, 2]
    assert [e.arguments is None for e in intents] == [False, True, True]


def test_without_retry_there_is_none_and_run_code_gets_its_own_exception() -> None:
    lab, bank = Lab(), Bank()
    bank.declines = 1
    lab.start("careful", 4160)
    lab.worker(bank_app(bank))
    assert lab.run(10, until=lab.ended)
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    assert decode_value(ended.result) == "declined: no"
    assert len(bank.calls) == 1


def test_a_failed_run_is_retried_by_a_person_at_the_failure_that_ended_it() -> None:
    lab, bank = Lab(), Bank()
    bank.declines = 1
    lab.start("pay", 4160)
    lab.worker(bank_app(bank))
    assert lab.run(10, until=lab.ended)
    assert lab.status() == "failed"
    old_key = bank.calls[0][0]
    lab.retry(fresh_key=True)
    assert lab.run(10, until=lambda: lab.status() == "completed")
    assert [key == old_key for key, _ in bank.calls] == [True, False]
    assert len([e for e in lab.events(StepCompleted)]) == 2  # read is not run again


def test_a_timeout_is_a_doubt_and_never_a_failure() -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 1
    retry = Retry(max_attempts=5)
    lab.start("pay", 4160)
    lab.worker(bank_app(bank, retry=retry))
    assert lab.run(60, until=lab.ended)
    assert len(bank.calls) == 1
    assert lab.state().slots["charge#1"].failures == 0


def test_a_keyed_step_in_doubt_is_repeated_under_its_key_while_that_lives() -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 2
    lab.start("pay", 4160)
    lab.worker(bank_app(bank, policy=Policy.KEYED, key_ttl=timedelta(hours=1)))
    assert lab.run(60, until=lab.ended)
    assert len(bank.calls) == 3
    assert len({key for key, _ in bank.calls}) == 1
    assert list(bank.done.values()) == [4160]


def test_a_keyed_step_whose_key_may_be_forgotten_goes_to_a_person() -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 9
    lab.start("pay", 4160)
    lab.worker(bank_app(bank, policy=Policy.KEYED, key_ttl=timedelta(seconds=6)))
    assert lab.run(60, until=lambda: lab.needs("person"))
    calls = len(bank.calls)
    lab.run(120)
    assert len(bank.calls) == calls
    assert "forgotten" in (lab.boundary().reason or "")


# ---- people


def test_a_word_about_an_earlier_attempt_is_refused() -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 9
    lab.start("pay", 4160)
    lab.worker(bank_app(bank, policy=Policy.ESCALATE))
    assert lab.run(60, until=lambda: lab.needs("person"))
    lab.run(10)
    lab.resolve("charge#1", happened=False, attempt=1)
    assert lab.run(60, until=lambda: len(bank.calls) == 2)
    assert lab.run(60, until=lambda: lab.needs("person"))
    lab.run(10)
    lab.resolve("charge#1", happened=False, attempt=1)
    lab.run(1)
    rejections = lab.events(CommandRejected)
    assert [e.reason for e in rejections if isinstance(e, CommandRejected)] == ["other_attempt"]
    lab.resolve("charge#1", happened=True, result="paid 4160", attempt=2)
    assert lab.run(60, until=lab.ended)
    assert lab.status() == "completed"


def test_it_did_not_happen_is_refused_while_a_call_may_still_act() -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 1
    app = bank_app(bank, policy=Policy.ESCALATE, timeout=timedelta(seconds=30))
    lab.start("pay", 4160)
    process = lab.worker(app)
    lab.run(5, until=lambda: bool(bank.calls))
    process.kill()
    lab.worker(app)
    lab.run(10, until=lambda: lab.needs("person"))
    lab.resolve("charge#1", happened=False)  # asked now, while the old call could still act
    lab.run(1)
    [refused] = lab.events(CommandRejected)
    assert isinstance(refused, CommandRejected)
    assert refused.reason == "too_early"
    lab.run(40)
    lab.resolve("charge#1", happened=False)
    assert lab.run(60, until=lab.ended)


def test_a_word_that_lay_in_the_backlog_counts_from_when_it_was_given() -> None:
    lab, bank = Lab(), Bank()
    bank.silent = 1
    app = bank_app(bank, policy=Policy.ESCALATE, timeout=timedelta(seconds=30))
    lab.start("pay", 4160)
    first = lab.worker(app)
    lab.run(5, until=lambda: bool(bank.calls))
    first.kill()
    second = lab.worker(app)
    lab.run(10, until=lambda: lab.needs("person"))
    second.freeze(60_000_000)
    lab.resolve("charge#1", happened=False)  # given while the call could act, decided a minute on
    lab.run(100, until=lambda: bool(lab.events(CommandRejected)))
    [refused] = lab.events(CommandRejected)
    assert isinstance(refused, CommandRejected)
    assert refused.reason == "too_early"


# ---- limits


def test_a_run_at_its_limit_is_parked_and_can_still_be_cancelled() -> None:
    lab = Lab(settings=WorkerSettings(events_max=60))
    app = killer_app()
    lab.start("works", 500)
    lab.worker(app)
    assert lab.run(400, until=lambda: lab.status() == "blocked")
    [blocked] = lab.events(RunBlocked)
    assert isinstance(blocked, RunBlocked)
    assert blocked.reason == "limit"
    lab.cancel()
    assert lab.run(10, until=lab.ended)
    assert lab.status() == "cancelled"


# ---- take-overs


def test_a_takeover_from_a_checkpoint_gives_what_the_whole_fold_gives() -> None:
    lab, bank = Lab(settings=WorkerSettings(checkpoint_events=10, checkpoint_ms=500)), Bank()
    app = killer_app()
    for number in range(8):
        lab.start("works", 12, run_id=f"run-{number}")
    first = lab.worker(app)
    lab.run(6)
    first.kill()
    whole = {run_id: state_hash(s) for run_id, s in lab.fold().runs.items()}
    snapshots = lab.broker.records(Topic.SNAPSHOTS, 0)
    assert snapshots
    second = lab.worker(app)
    worker = lab.workers[second.name]
    lab.run(5, until=lambda: bool(worker.owners))
    owner = worker.owners[0]
    taken = {r: owner.state(r) for r in owner.runs()}
    assert {r: state_hash(s) for r, s in taken.items() if s is not None} == whole
    assert lab.run(60, until=lambda: all(lab.ended(f"run-{n}") for n in range(8)))
    for number in range(8):
        completed = lab.events(StepCompleted, f"run-{number}")
        assert len(completed) == 12
        assert len(lab.events(TimerFired, f"run-{number}")) == 12
    assert bank.calls == []


def test_damaged_and_foreign_snapshots_fall_back_to_the_fold() -> None:
    from refold.log.port import Entry

    lab = Lab(settings=WorkerSettings(checkpoint_events=10, checkpoint_ms=500))
    app = killer_app()
    lab.start("works", 10)
    first = lab.worker(app)
    lab.run(4)
    first.kill()
    whole = state_hash(lab.state())
    for record in lab.broker.records(Topic.SNAPSHOTS, 0):
        lab.broker.put(
            Topic.SNAPSHOTS, 0, [Entry(record.key, (record.value or b"")[:-3] + b"\xff\xff\xff")]
        )
    second = lab.worker(app)
    worker = lab.workers[second.name]
    lab.run(5, until=lambda: bool(worker.owners))
    taken = worker.owners[0].state("run-1")
    assert taken is not None
    assert state_hash(taken) == whole
    assert lab.run(60, until=lab.ended)


def test_a_deleted_snapshot_costs_a_fold_that_is_told_and_no_run() -> None:
    from refold.log.port import Entry

    lab = Lab(settings=WorkerSettings(checkpoint_events=10, checkpoint_ms=500))
    app = killer_app()
    for number in range(3):
        lab.start("works", 6, run_id=f"run-{number}")
    first = lab.worker(app)
    lab.run(4)
    first.kill()
    for record in lab.broker.records(Topic.SNAPSHOTS, 0):
        if record.key is not None and record.key.startswith(b"run-1/"):
            lab.broker.put(Topic.SNAPSHOTS, 0, [Entry(record.key, None)])
    lab.worker(app)
    assert lab.run(60, until=lambda: all(lab.ended(f"run-{n}") for n in range(3)))
    told = [e.text for e in lab.told if e.kind == "warning" and "(R027)" in e.text]
    assert len(told) == 1
    lab.start("works", 6, run_id="run-1")  # the same again: it is not started a second time
    lab.run(2)
    assert len(lab.events(RunStarted, "run-1")) == 1


def test_a_hand_over_is_clean_and_the_next_owner_goes_on() -> None:
    lab = Lab()
    app = killer_app()
    lab.start("works", 5)
    first = lab.worker(app)
    lab.run(2.5)
    lab.stop(first)
    assert lab.fold().facts.released
    lab.worker(app, name="next")
    assert lab.run(60, until=lab.ended)
    assert lab.fold().facts.unclean_total == 0


def test_a_worker_that_joins_is_handed_its_share_without_a_fence() -> None:
    lab = Lab(partition_count=4)
    first = lab.worker(killer_app(), name="first")
    lab.run(5)
    second = lab.worker(killer_app(), name="second")
    lab.run(20)
    owned = [set(lab.workers[p.name].owners) for p in (first, second)]
    assert sorted(owned[0] | owned[1]) == [0, 1, 2, 3]
    assert [len(partitions) for partitions in owned] == [2, 2]
    for partition in range(4):
        fold = PartitionFold(lab.codec)
        fold.apply_all(lab.broker.records(Topic.EVENTS, partition))
        assert fold.facts.unclean_total == 0
    assert [event for event in lab.told if event.kind == "ended_claim"] == []


# ---- acquisitions


def test_an_expired_handle_is_acquired_again_under_the_next_generation() -> None:
    lab, bank = Lab(), Bank()
    app = App("locks")

    @app.step(policy=Policy.KEYED, key_ttl=timedelta(days=1))
    async def unlock(fx: Effect, handle: str) -> None:
        bank.released.append(handle)

    @app.step(
        policy=Policy.KEYED,
        key_ttl=timedelta(days=1),
        release=unlock,
        valid_for=timedelta(seconds=60),
    )
    async def lock(fx: Effect, name: str) -> str:
        bank.locks.append(fx.key)
        return f"handle-{len(bank.locks)}"

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def use(handle: str) -> str:
        return handle

    @app.run("r")
    async def r(ctx: RunContext) -> list[str]:
        handle = await ctx.step(lock, "erp")
        first = await ctx.step(use, handle)
        await ctx.sleep(timedelta(seconds=120))
        return [first, await ctx.step(use, handle)]

    lab.start("r")
    first = lab.worker(app)
    lab.run(5)
    first.kill()
    lab.run(200)
    lab.worker(app)
    assert lab.run(300, until=lab.ended)
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    assert decode_value(ended.result) == ["handle-1", "handle-2"]
    assert len(set(bank.locks)) == 2
    assert bank.released == ["handle-2"]


def test_not_done_from_a_step_is_an_observed_failure() -> None:
    lab = Lab()
    app = App("nd")
    tries: list[int] = []

    @app.step(policy=Policy.ESCALATE, retry=Retry(max_attempts=3))
    async def mail(fx: Effect) -> str:
        tries.append(fx.attempt)
        if len(tries) < 3:
            raise NotDone("the queue was closed")
        return "sent"

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def broken() -> None:
        raise KeyError("x")

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        sent = await ctx.step(mail)
        try:
            await ctx.step(broken)
        except StepError as error:
            return f"{sent}, then {error.type_name}"
        return sent

    lab.start("r")
    lab.worker(app)
    assert lab.run(60, until=lab.ended)
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    assert decode_value(ended.result) == "sent, then KeyError"
    assert tries == [1, 2, 3]
