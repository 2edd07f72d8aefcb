"""What must not strand a run: odd answers, odd lookups, odd clocks, defects of our own."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from refold import Absent, App, Effect, Found, Policy, RunContext
from refold.engine.attempts import Attempts
from refold.engine.settling import LOOKUPS_MAX
from refold.log.port import Entry, Topic
from refold.testing.sim_loop import current_process
from refold_schemas.codec import KIND_EVENT, KIND_REPORT, RecordHeader
from refold_schemas.events import CommandRejected, RunBlocked, RunCancelled, StepInDoubt
from support.lab import Lab


@pytest.fixture(autouse=True)
def _end_of_labs() -> Iterator[None]:
    yield
    while Lab.made:
        Lab.made.pop().end()


class Odd:
    """A value whose own code raises."""

    @property
    def usage(self) -> object:
        raise RuntimeError("not today")


ODD_ANSWERS: list[Any] = [
    {"model": "\ud800"},
    {"usage": {"input_tokens": 2**70}},
    Odd(),
    {"model": "m" * 100_000},
]


@pytest.mark.parametrize("answer", ODD_ANSWERS, ids=["surrogate", "huge", "raises", "long"])
def test_an_odd_model_answer_ends_its_step(answer: object) -> None:
    lab, app = Lab(), App("odd")

    @app.model()
    async def decide(index: int) -> object:
        return answer

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        try:
            await ctx.step(decide, 1)
        except Exception as error:
            return type(error).__name__
        return "kept"

    lab.start("r")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    assert lab.status() == "completed"


@pytest.mark.parametrize("policy", [Policy.RE_EXECUTABLE, Policy.ESCALATE])
def test_a_huge_error_ends_its_step_or_leaves_it_in_doubt(policy: Policy) -> None:
    lab, app = Lab(), App("huge")

    @app.step(policy=policy)
    async def raises() -> None:
        raise ValueError("x" * 5_000_000)

    @app.run("r")
    async def r(ctx: RunContext) -> None:
        await ctx.step(raises)

    lab.start("r")
    lab.worker(app)
    told = "failed" if policy is Policy.RE_EXECUTABLE else "in_doubt"
    assert lab.run(10, until=lambda: lab.status() == told)
    if told == "in_doubt":
        assert lab.boundary().needs == "person"
        assert [type(e) for e in lab.events(StepInDoubt)] == [StepInDoubt]


def test_a_defect_of_the_engine_parks_its_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, app = Lab(), App("defect")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def fine(index: int) -> int:
        return index

    @app.run("r")
    async def r(ctx: RunContext, index: int) -> int:
        return await ctx.step(fine, index)

    kept = Attempts._record_bare

    def broken(self: Attempts, call: Any, *rest: Any) -> None:
        if call.run_id == "run-1":
            raise ZeroDivisionError("a defect")
        kept(self, call, *rest)

    monkeypatch.setattr(Attempts, "_record_bare", broken)
    lab.start("r", 1, run_id="run-1")
    lab.start("r", 2, run_id="run-2")
    lab.worker(app)
    assert lab.run(10, until=lambda: lab.ended("run-2") and lab.status("run-1") == "blocked")
    [blocked] = lab.events(RunBlocked, "run-1")
    assert isinstance(blocked, RunBlocked)
    assert blocked.reason == "engine_error"
    assert "ZeroDivisionError: a defect" in blocked.detail
    assert lab.boundary("run-1").needs == "person"


class Shop:
    """Calls counted; the answer of each lookup is scripted."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0
        self.lookups = 0

    def app(self) -> App:
        app = App("shop")

        async def find(key: str) -> Found[str] | Absent:
            self.lookups += 1
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, BaseException):
                raise answer
            found: Found[str] | Absent = answer
            return found

        @app.step(
            policy=Policy.RESOLVABLE,
            lookup=find,
            settle=timedelta(0),
            timeout=timedelta(seconds=2),
        )
        async def charge(fx: Effect) -> str:
            self.calls += 1
            raise ConnectionError("lost")

        @app.run("r")
        async def r(ctx: RunContext) -> str:
            return await ctx.step(charge)

        return app


def test_a_lookup_that_raises_a_cancellation_of_its_own_is_asked_again() -> None:
    lab = Lab()
    shop = Shop(asyncio.CancelledError(), asyncio.CancelledError(), Found("paid"))
    lab.start("r")
    lab.worker(shop.app())
    assert lab.run(60, until=lab.ended)
    assert lab.status() == "completed"
    assert shop.lookups == 3


def test_a_far_system_is_not_asked_for_everything_at_once() -> None:
    lab, app = Lab(), App("shop")
    asking = most = 0

    async def find(key: str) -> Found[str]:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await asyncio.sleep(1)
        asking -= 1
        return Found("paid")

    @app.step(policy=Policy.RESOLVABLE, lookup=find, settle=timedelta(0))
    async def charge(fx: Effect) -> str:
        raise ConnectionError("lost")

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        return await ctx.step(charge)

    runs = [f"r{number}" for number in range(3 * LOOKUPS_MAX)]
    for run_id in runs:
        lab.start("r", run_id=run_id)
    lab.worker(app)
    assert lab.run(60, until=lambda: all(lab.ended(run_id) for run_id in runs))
    assert most == LOOKUPS_MAX


def test_absence_is_tried_again_with_back_off_and_not_for_ever() -> None:
    lab, shop = Lab(), Shop(Absent())
    lab.start("r")
    lab.worker(shop.app())
    lab.run(30)
    assert 2 <= shop.calls <= 7
    assert lab.run(3600, until=lambda: lab.status() == "blocked")
    assert shop.calls == 21
    [blocked] = lab.events(RunBlocked)
    assert isinstance(blocked, RunBlocked)
    assert blocked.reason == "limit"
    lab.cancel()
    assert lab.run(60, until=lab.ended)


def test_a_command_that_was_refused_is_not_applied_when_it_is_read_again() -> None:
    lab, app = Lab(), App("refused")

    @app.step(policy=Policy.ESCALATE, timeout=timedelta(seconds=30))
    async def mail(fx: Effect) -> str:
        await current_process().loop.create_future()
        return ""

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        return await ctx.step(mail)

    lab.start("r")
    first = lab.worker(app)
    lab.run(5)
    first.kill()
    lab.worker(app)
    assert lab.run(20, until=lambda: lab.needs("person"))
    said = lab.say_it_did_not_happen("mail#1")
    lab.run(1)
    lab.run(60)
    lab.publish(said)
    lab.run(5)
    reasons = [e.reason for e in lab.events(CommandRejected) if isinstance(e, CommandRejected)]
    assert reasons == ["too_early", "duplicate"]
    assert lab.needs("person")


def test_lines_of_a_busy_run_are_written_as_what_precedes_them_is_durable() -> None:
    lab, app = Lab(), App("lines")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def fine(index: int) -> int:
        return index

    @app.run("r")
    async def r(ctx: RunContext) -> None:
        for index in range(200):
            await ctx.step(fine, index)
            ctx.log.info("did", index=index)

    lab.start("r")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    lab.run(1)
    lines = [event.text for event in lab.told if event.kind == "log"]
    assert len(lines) == 200
    assert lines[0] == "info: did index=0"


def test_a_coroutine_that_swallows_its_cancellation_is_told_and_its_slot_goes_on() -> None:
    lab, app = Lab(), App("stubborn")
    calls: list[int] = []

    @app.step(policy=Policy.KEYED, key_ttl=timedelta(days=1), timeout=timedelta(seconds=2))
    async def stubborn(fx: Effect) -> str:
        calls.append(fx.attempt)
        while fx.attempt == 1:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return "done"

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        return await ctx.step(stubborn)

    lab.start("r")
    lab.worker(app)
    assert lab.run(60, until=lab.ended)
    assert calls == [1, 2]
    assert any("R020" in event.text for event in lab.told)


def test_starts_with_a_wrong_clock_are_no_unclean_ends() -> None:
    lab, app = Lab(), App("clock")

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        await ctx.sleep(timedelta(seconds=100))
        return "slept"

    lab.start("r")
    first = lab.worker(app)
    lab.run(5)
    lab.stop(first)
    for _ in range(4):
        wrong = lab.worker(app, skew_ms=60_000)
        lab.run(5)
        wrong.kill()
    assert lab.fold().facts.unclean_total == 0
    lab.run(5)
    lab.worker(app)
    assert lab.run(200, until=lab.ended)
    assert lab.status() == "completed"


def test_a_command_with_endless_texts_is_refused_and_the_partition_goes_on() -> None:
    lab, app = Lab(), App("poison")

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        return "fine"

    lab.start("\x01" * 1_100_000, run_id="poison")
    lab.start("r")
    lab.worker(app)
    assert lab.run(20, until=lab.ended)
    assert lab.status() == "completed"
    assert [event for event in lab.told if event.kind == "ended_claim"] == []
    [rejected] = [event.text for event in lab.told if event.kind == "rejected"]
    assert rejected.startswith("StartRun: too_large: its run has 1,100,000 characters")


@pytest.mark.parametrize("signal", [SystemExit(7), KeyboardInterrupt()])
@pytest.mark.parametrize("many", [False, True])
def test_an_exit_raised_by_a_step_ends_the_step_and_not_the_process(
    signal: BaseException, many: bool
) -> None:
    lab, app = Lab(), App("exits")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def leaves(index: int) -> int:
        raise signal

    @app.run("r")
    async def r(ctx: RunContext) -> Any:
        if many:
            return await ctx.map(leaves, [1, 2])
        return await ctx.step(leaves, 1)

    lab.start("r")
    process = lab.worker(app)
    assert lab.run(20, until=lab.ended)
    assert process.alive
    assert lab.status() == "failed"


def test_a_report_header_around_another_body_says_nothing_to_any_reader() -> None:
    lab, app = Lab(), App("forged")

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        await ctx.sleep(timedelta(seconds=5))
        return "slept"

    lab.start("r")
    lab.worker(app)
    lab.run(2)
    header = RecordHeader(KIND_REPORT, lab.fold().claim_id, 0, 0, lab.now_ms(), 0)
    body = lab.codec.encode(RunCancelled("forged"))
    lab.broker.put(Topic.EVENTS, 0, [Entry(b"run-1", body, header.pack())])
    assert lab.run(20, until=lab.ended)
    assert lab.status() == "completed"


def test_a_record_of_our_claim_that_we_did_not_write_ends_the_claim() -> None:
    lab, app = Lab(), App("forged")
    sent: list[int] = []

    @app.step(policy=Policy.ESCALATE)
    async def mail(fx: Effect, index: int) -> int:
        sent.append(index)
        return index

    @app.run("r")
    async def r(ctx: RunContext) -> None:
        for index in range(6):
            await ctx.step(mail, index)
            await ctx.sleep(timedelta(seconds=1))

    lab.start("r")
    lab.worker(app)
    lab.run(2.5)
    fold = lab.fold()
    header = RecordHeader(KIND_EVENT, fold.claim_id, fold.position.claim_epoch, 999, 0, 0)
    body = lab.codec.encode(RunCancelled("forged"))
    lab.broker.put(Topic.EVENTS, 0, [Entry(b"run-1", body, header.pack())])
    assert lab.run(60, until=lab.ended)
    assert lab.status() == "completed"
    assert sent == [0, 1, 2, 3, 4, 5]
    assert [event for event in lab.told if event.kind == "ended_claim"] != []


class Deaf(list[Any]):
    """A listener whose disk is full."""

    def append(self, event: Any) -> None:
        raise OSError(28, "No space left on device")


def test_a_listener_that_fails_is_no_part_of_the_work() -> None:
    lab, app = Lab(), App("shop")
    lab.told = Deaf()

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def charge(fx: Effect) -> str:
        return fx.key

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        ctx.log.info("charging")
        return await ctx.step(charge)

    lab.start("unknown", run_id="run-0")
    lab.start("r")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    ended = lab.state().ended
    assert ended is not None
    assert ended.status == "completed"


def test_commands_that_were_made_anew_stop_their_owner() -> None:
    lab, app = Lab(), App("shop")

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        return "done"

    for at in range(3):
        lab.start("r", run_id=f"run-{at}")
    process = lab.worker(app)
    assert lab.run(10, until=lambda: all(lab.ended(f"run-{at}") for at in range(3)))
    lab.broker.cut(Topic.COMMANDS, 0, 0)  # as a topic that was deleted and made again
    lab.start("r", run_id="run-3")  # its offset is one that was decided
    assert lab.run(20, until=lambda: process.name in lab.failures)
    assert lab.failures[process.name].code == "R013"
    assert "its commands end at 1, below 3" in str(lab.failures[process.name])
    lab.worker(app)
    assert lab.run(20, until=lambda: len(lab.failures) == 2)
