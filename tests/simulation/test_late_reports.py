"""What an owner learns after its claim has ended reaches the log, and settles what was in doubt."""

import asyncio
from datetime import timedelta

import pytest

from refold import Absent, App, Effect, Found, Policy, RunContext
from refold.log.memory import Answer, AppendCall, AppendFault, Faults
from refold.log.port import Entry, Topic
from refold_schemas.codec import KIND_CLAIM, KIND_REPORT, RecordHeader
from refold_schemas.events import (
    AttemptReported,
    PartitionClaimed,
    StepCompleted,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from support.lab import Lab

NARROW_BYTES = 4_000


class CardDeclined(Exception):
    """The card was refused: the far system did not act."""


def shop(calls: list[int], *, declines: bool = False, told: str = "sent to ada") -> App:
    app = App("shop")

    @app.step(policy=Policy.ESCALATE, timeout=timedelta(seconds=20), not_done=(CardDeclined,))
    async def mail(fx: Effect, to: str) -> str:
        calls.append(fx.attempt)
        await asyncio.sleep(3)
        if declines:
            raise CardDeclined("no")
        return told

    @app.run("order")
    async def order(ctx: RunContext, to: str) -> str:
        try:
            return await ctx.step(mail, to)
        except CardDeclined as error:
            return f"declined: {error}"

    return app


def foreign_claim(lab: Lab) -> None:
    """Somebody else claims the partition, and is never heard of again."""
    position = lab.fold().position
    facts = lab.fold().facts
    event = PartitionClaimed(
        "stranger", "elsewhere", "shop", "0", (), facts.topic_ids, 1, facts.format_level
    )
    header = RecordHeader(KIND_CLAIM, b"s" * 16, position.claim_epoch + 1, 0, lab.now_ms(), 0)
    lab.broker.put(Topic.EVENTS, 0, [Entry(None, lab.codec.encode(event), header.pack())])


@pytest.mark.parametrize(
    ("declines", "outcome", "verdict", "result"),
    [
        (False, "completed", "done", "sent to ada"),
        (True, "failed", "failed", "declined: no"),
    ],
)
def test_a_call_that_outlives_its_claim_reports_and_nobody_has_to_be_asked(
    declines: bool, outcome: str, verdict: str, result: str
) -> None:
    lab, calls = Lab(), list[int]()
    lab.worker(shop(calls, declines=declines))
    lab.start("order", "ada")
    assert lab.run(5, until=lambda: bool(calls))
    foreign_claim(lab)
    assert lab.run(2.5, until=lambda: bool(lab.events(StepInDoubt)))
    assert lab.needs("person")
    lab.run(2.4)  # idle for longer than its actor is kept: what wakes the run is the report
    assert lab.run(10, until=lab.ended)
    (report,) = [e for e in lab.events() if isinstance(e, AttemptReported)]
    assert (report.slot, report.attempt, report.outcome) == ("mail#1", 1, outcome)
    settled, *final = [e for e in lab.events() if isinstance(e, StepResolved)]
    assert [(e.evidence, e.final) for e in final] == ([("owner", True)] if declines else [])
    assert (settled.evidence, settled.verdict, settled.attempt) == ("late_report", verdict, 1)
    assert len(lab.events(StepIntended)) == len(calls) == 1
    assert not lab.events(StepCompleted)
    ended = lab.state().ended
    assert ended is not None
    assert ended.status == "completed"
    assert ended.result is not None
    assert ended.result.body == f'"{result}"'.encode()


class Narrowing(Faults):
    """A log that takes less from the first report on, which it does not store."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def on_append(self, call: AppendCall) -> AppendFault | None:
        header = call.entries[0].header
        if header is None or RecordHeader.unpack(header).kind != KIND_REPORT:
            return None
        if self.lab.broker.batch_size_max == NARROW_BYTES:
            return None
        self.lab.broker.batch_size_max = NARROW_BYTES
        return AppendFault(store_at_ms=(), answer=Answer.ERROR)


def test_a_report_that_the_log_takes_no_longer_says_at_least_that_it_happened() -> None:
    lab, calls = Lab(), list[int]()
    lab.broker.faults = Narrowing(lab)
    lab.worker(shop(calls, told="x" * 2 * NARROW_BYTES))
    lab.start("order", "ada")
    assert lab.run(5, until=lambda: bool(calls))
    foreign_claim(lab)
    assert lab.run(20, until=lambda: bool(lab.events(AttemptReported)))
    (report,) = [e for e in lab.events() if isinstance(e, AttemptReported)]
    assert (report.outcome, report.result) == ("completed", None)


@pytest.mark.parametrize("policy", [Policy.ESCALATE, Policy.RESOLVABLE])
def test_of_what_a_person_settled_nothing_is_kept_for_the_rest_of_the_claim(
    policy: Policy,
) -> None:
    """Neither when a call ended that nobody waits for, nor how often a lookup gave no answer."""
    lab, ends, app = Lab(), list[int](), App("shop")

    async def broken(key: str) -> Found[str] | Absent:
        raise ConnectionError("the bank is away")

    @app.step(
        policy=policy,
        timeout=timedelta(seconds=1),
        lookup=None if policy is Policy.ESCALATE else broken,
        settle=None if policy is Policy.ESCALATE else timedelta(0),
    )
    async def pay(fx: Effect) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(2)  # it goes on behind its deadline
        ends.append(fx.attempt)
        return "paid"

    @app.run("order")
    async def order(ctx: RunContext) -> str:
        return await ctx.step(pay)

    process = lab.worker(app)
    lab.start("order")
    assert lab.run(30, until=lambda: bool(lab.events(StepInDoubt)))
    attempts = lab.workers[process.name].owners[0].attempts
    if policy is Policy.RESOLVABLE:
        assert lab.run(30, until=lambda: bool(attempts.unanswered))
    lab.resolve("pay#1", happened=True, result="paid")
    assert lab.run(10, until=lambda: lab.ended() and bool(ends))
    lab.run(1)
    assert (attempts.ended_boot_ms, attempts.unanswered) == ({}, {})
