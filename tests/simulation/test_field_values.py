"""Field reports on values: what comes back is what went in, or storing it was refused by name.

F33: numbers were rounded on their way. F34: a naive time meant something else on each host. F40: an
answer that could not be stored made the engine run its step again for ever. Each value goes through
a step, its event, the fold, a death, and the replay by another process.
"""

import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from refold import App, Policy, ResultUnrecordable, RunContext
from refold.log.port import Topic
from refold_projections.fold import PartitionFold
from refold_schemas.events import StepCompleted, StepIntended
from refold_schemas.values import decode_value
from support.lab import Lab

TOKYO = timezone(timedelta(hours=9))


class Source:
    """A step's far system: hands out one value, and counts how often it was asked."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.asked = 0
        self.seen: list[Any] = []
        self.refused: list[str] = []


def passing(source: Source) -> App:
    app = App("values")

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def produce() -> Any:
        source.asked += 1
        return source.value

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def consume(value: Any) -> Any:
        return [value]

    @app.run("carry")
    async def carry(ctx: RunContext) -> Any:
        try:
            value = await ctx.step(produce)
        except ResultUnrecordable as error:
            source.refused.append(str(error))
            await ctx.sleep(timedelta(seconds=10))
            return str(error)
        source.seen.append(value)
        await ctx.sleep(timedelta(seconds=10))
        (again,) = await ctx.step(consume, value)
        source.seen.append(again)
        return again

    return app


def carry(source: Source) -> Lab:
    """The run over two lives: the second has everything from the record."""
    lab = Lab()
    app = passing(source)
    lab.start("carry")
    first = lab.worker(app)
    lab.run(5)
    first.kill()
    lab.worker(app)
    assert lab.run(30, until=lab.ended)
    assert lab.status() == "completed"
    assert source.asked == 1
    return lab


def same(one: object, other: object) -> bool:
    """Equal and of the same kind, the sign of a zero included."""
    return type(one) is type(other) and repr(one) == repr(other)


NUMBERS = [
    3.7,
    2**31,
    2**53 + 1,
    2**63,
    10**30,
    -(2**63) - 1,
    True,
    False,
    1,
    1.0,
    0.1,
    -0.0,
    1e308,
    5e-324,
    Decimal("4160.10"),
    Decimal("1E+400"),
]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_a_number_comes_back_equal_and_of_its_kind_f33(number: Any) -> None:
    source = Source(number)
    lab = carry(source)
    assert len(source.seen) == 3  # live, replayed, and through another step
    assert all(same(seen, number) for seen in source.seen)
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    assert same(decode_value(ended.result), number)
    arguments = {
        argument.name: decode_value(argument.value)
        for event in lab.events(StepIntended)
        if isinstance(event, StepIntended)
        for argument in event.arguments or ()
    }
    assert same(arguments["value"], number)
    # A reader of its own folds the same values.
    fold = PartitionFold(lab.codec)
    fold.apply_all(lab.broker.records(Topic.EVENTS, 0))
    outcome = fold.runs["run-1"].slots["produce#1"].outcome
    assert outcome is not None
    assert outcome.value is not None
    assert same(decode_value(outcome.value), number)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), complex(1, 2)], ids=repr)
def test_a_number_that_cannot_be_kept_is_refused_by_name_f33(number: Any) -> None:
    source = Source({"prices": [1, number]})
    carry(source)
    assert source.seen == []
    assert "result.prices[1]" in source.refused[0]


@pytest.fixture
def _zone_again() -> Iterator[None]:
    before = os.environ.get("TZ")
    yield
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


MOMENTS = [
    datetime(2026, 3, 29, 1, 30, 0, 123_456, TOKYO),
    datetime(2026, 3, 29, 1, 30, 0, 1, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
]


@pytest.mark.usefixtures("_zone_again")
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_time_means_the_same_on_every_host_f34(moment: datetime) -> None:
    logs = []
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        os.environ["TZ"] = zone
        time.tzset()
        source = Source({"at": moment})
        lab = carry(source)
        assert all(seen == {"at": moment} for seen in source.seen)
        assert {seen["at"].utcoffset() for seen in source.seen} == {moment.utcoffset()}
        logs.append([record.value for record in lab.broker.records(Topic.EVENTS, 0)])
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.usefixtures("_zone_again")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_time_without_a_zone_is_refused_by_name_f34(zone: str) -> None:
    os.environ["TZ"] = zone
    time.tzset()
    source = Source({"placed": datetime(2026, 3, 29, 1, 30)})  # noqa: DTZ001 - the fault itself
    carry(source)
    assert source.seen == []
    assert "result.placed" in source.refused[0]


# ---- F40: what cannot be stored ends its step all the same


def a_circle() -> list[Any]:
    circle: list[Any] = [1]
    circle.append(circle)
    return circle


def a_depth() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


class Rude:
    """Its repr cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


ODD: dict[str, Any] = {
    "socket": lambda: socket.socket(),
    "lambda": lambda: lambda: 1,
    "generator": lambda: (number for number in [1]),
    "circle": a_circle,
    "depth": a_depth,
    "rude": Rude,
    "exception": lambda: ValueError("as a value"),
    "surrogate": lambda: "\ud800",
}


@pytest.mark.parametrize("kind", ODD)
def test_an_answer_that_cannot_be_stored_ends_its_step_once_f40(kind: str) -> None:
    value = ODD[kind]()
    source = Source({"answer": {"parts": [0, value]}})
    try:
        lab = carry(source)
    finally:
        if isinstance(value, socket.socket):
            value.close()
    # It happened once, the run has gone on, live and replayed, and was told the same both times.
    assert source.seen == []
    assert len(set(source.refused)) == 1
    assert len(source.refused) == 2
    (done,) = [event for event in lab.events(StepCompleted) if isinstance(event, StepCompleted)]
    lost = done.unrecordable
    assert lost is not None
    assert lost.type == "builtins.dict"
    assert lost.path.startswith("result.answer.parts[1]")
    assert lost.reason
    assert 0 < len(lost.repr) <= 1_000
    assert lost.path in source.refused[0]
    assert len(lab.events(StepIntended)) == 1
    outcome = lab.state().slots["produce#1"].outcome
    assert outcome is not None
    assert outcome.kind == "unrecordable"
    assert [entry.slot for entry in lab.boundary().done] == ["produce#1"]


def test_run_code_that_does_not_catch_it_fails_and_runs_nothing_again_f40() -> None:
    asked = []
    app = App("values")

    @app.step(policy=Policy.ESCALATE)
    async def send() -> Any:
        asked.append(1)
        return object()

    @app.run("mail")
    async def mail(ctx: RunContext) -> Any:
        return await ctx.step(send)

    lab = Lab()
    lab.start("mail")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    lab.run(3600)
    assert lab.status() == "failed"
    assert asked == [1]
    ended = lab.state().ended
    assert ended is not None
    assert ended.error is not None
    assert ended.error.type == "ResultUnrecordable"
    assert "send#1" in ended.error.message
