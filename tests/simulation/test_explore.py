"""The crash explorer on a small app: every moment of every step, and what a policy makes of it."""

import asyncio
import inspect
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from refold.app import App, Effect, RunContext
from refold.testing.explore import CrashPoint, Exploration, Explored, Moment, explore_crashes
from refold_schemas.values import Absent, Found, Policy, decode_value

ACTED = (Moment.AFTER_EFFECT, Moment.AFTER_OUTCOME)
OPEN = (Moment.INTENT_STORED, Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT)


class World:
    """A far system that keeps what was done under which key."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.effects: Counter[str] = Counter()

    def act(self, what: str, key: str, amount: int) -> int:
        if key not in self.done or what == "mail":
            self.effects[what] += 1
            self.done[key] = amount
        return self.done[key]


world = World()
app = App("explored", time_zone="UTC")


async def find_charge(key: str) -> Any:
    return Found(world.done[key]) if key in world.done else Absent()


@app.step(policy=Policy.RE_EXECUTABLE)
async def load(amount: int) -> int:
    """Read something."""
    await asyncio.sleep(0.01)
    return amount + 1


@app.step(policy=Policy.RESOLVABLE, lookup=find_charge, key_ttl=None, settle=timedelta(seconds=1))
async def charge(fx: Effect, amount: int) -> int:
    """Act, found by key."""
    return world.act("charge", fx.key, amount)


@app.step(policy=Policy.KEYED, key_ttl=None)
def reserve(fx: Effect, amount: int) -> int:
    """Act under a key, in a function that is not async."""
    return world.act("reserve", fx.key, amount)


@app.step
async def mail(fx: Effect, amount: int) -> int:
    """Act with neither key nor lookup."""
    return world.act("mail", fx.key, amount)


@app.run("all", plan=["load", "charge", "reserve", "mail"])
async def everything(ctx: RunContext, amount: int) -> list[int]:
    """One step of each policy, and a wait."""
    loaded = await ctx.step(load, amount)
    paid = await ctx.step(charge, loaded)
    await ctx.sleep(timedelta(minutes=3))
    return [paid, await ctx.step(reserve, loaded), await ctx.step(mail, loaded)]


def reset() -> None:
    world.done.clear()
    world.effects.clear()


def effects() -> dict[str, int]:
    return dict(world.effects)


@pytest.fixture(scope="module")
def explored() -> Exploration:
    return explore_crashes(app, "all", 5, reset=reset, effects=effects)


def result(crash: Explored) -> object:
    assert crash.result is not None
    return decode_value(crash.result)


def test_it_finds_every_moment_of_every_step(explored: Exploration) -> None:
    points = {crash.point for crash in explored.crashes}
    for slot in ("charge#1", "reserve#1", "mail#1"):
        step = slot.partition("#")[0]
        assert {CrashPoint(slot, step, 1, moment) for moment in Moment} <= points
    of_load = {p.moment for p in points if p is not None and p.slot == "load#1"}
    assert of_load == {Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT, Moment.AFTER_OUTCOME}
    assert len(points) == len(explored.crashes) == 18


def test_no_effect_of_a_keyed_or_resolvable_step_happens_twice_or_is_lost(
    explored: Exploration,
) -> None:
    assert result(explored.calm) == [6, 6, 6]
    for crash in explored.crashes:
        assert crash.point is not None
        if "mail#1" in {entry.slot for entry in crash.after.in_doubt}:
            continue  # also where its intent was stored together with the outcome before it
        assert crash.status == "completed", str(crash.point)
        assert result(crash) == [6, 6, 6], str(crash.point)
        assert crash.effects == {"charge": 1, "reserve": 1, "mail": 1}, str(crash.point)


def test_an_escalated_step_stops_and_asks(explored: Exploration) -> None:
    for moment in OPEN:
        crash = explored.at("mail#1", moment)
        assert (crash.status, crash.after.needs) == ("in_doubt", "person")
        assert crash.effects.get("mail", 0) == (moment in ACTED)
        assert "mail in doubt since 00:03" in crash.sentence
        assert crash.repeated == ()


def test_the_sentence_comes_before_any_work(explored: Exploration) -> None:
    assert explored.at("charge#1", Moment.AFTER_EFFECT).sentence == (
        "one step complete, charge in doubt since 00:00, three steps remaining"
    )
    # The outcome of a re-executable step goes with the batch of the intent behind it.
    assert explored.at("charge#1", Moment.INTENT_LOST).sentence == (
        "no steps complete, four steps remaining"
    )
    assert explored.at("charge#1", Moment.AFTER_OUTCOME).sentence == (
        "two steps complete, waiting until 00:03, two steps remaining"
    )
    # The intent behind an outcome goes with it.
    assert explored.at("reserve#1", Moment.AFTER_OUTCOME).sentence == (
        "three steps complete, mail in doubt since 00:03, one step remaining"
    )
    assert explored.calm.sentence == ""


def test_only_what_was_at_risk_runs_again(explored: Exploration) -> None:
    for crash in explored.crashes:
        assert crash.point is not None
        # A batch that is lost takes the outcome before the intent with it.
        before = {"charge#1": "load#1", "mail#1": "reserve#1"}.get(crash.point.slot, "")
        lost = {before} if crash.point.moment is Moment.INTENT_LOST else set()
        assert set(crash.repeated) <= {crash.point.slot} | lost, str(crash.point)
    assert explored.at("charge#1", Moment.AFTER_EFFECT).calls["charge#1"] == 1  # looked up
    assert explored.at("reserve#1", Moment.AFTER_EFFECT).calls["reserve#1"] == 2  # under its key
    assert explored.at("load#1", Moment.AFTER_EFFECT).calls["load#1"] == 2


@pytest.mark.parametrize("moment", OPEN)
def test_a_person_lets_it_go_on(moment: Moment) -> None:
    def person(slot: str, key: str) -> Any:
        return Found(world.done[key]) if key in world.done else Absent()

    point = CrashPoint("mail#1", "mail", 1, moment)
    [crash] = explore_crashes(
        app, "all", 5, reset=reset, effects=effects, person=person, points=[point]
    ).crashes
    assert crash.status == "completed"
    assert crash.effects["mail"] == 1
    assert result(crash) == [6, 6, 6]


def test_a_process_can_die_after_a_person_has_spoken() -> None:
    """The mail is asked about after one crash; what comes after the word is explored too."""

    def person(slot: str, key: str) -> Any:
        return Absent()

    points = [
        CrashPoint("mail#1", "mail", 1, Moment.INTENT_STORED),
        CrashPoint("mail#1", "mail", 1, Moment.AFTER_OUTCOME),
    ]
    denied, _ = explore_crashes(
        app, "all", 5, reset=reset, effects=effects, person=person, points=points
    ).crashes
    assert denied.status == "completed"
    assert [attempt.number for attempt in denied.state.slots["mail#1"].attempts] == [1, 2]


def test_the_app_is_left_as_it_was(explored: Exploration) -> None:
    definition = app.steps["reserve"]
    assert definition.fn is inspect.unwrap(reserve)
    assert definition.is_async is False
    assert app.steps["charge"].lookup is find_charge


def test_a_point_that_does_not_exist_is_refused() -> None:
    point = CrashPoint("charge#2", "charge", 1, Moment.BEFORE_EFFECT)
    with pytest.raises(RuntimeError, match="was not reached again"):
        explore_crashes(app, "all", 5, reset=reset, points=[point])
