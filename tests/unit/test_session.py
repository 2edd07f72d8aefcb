"""A session: slots, log order, divergence, teardown and what run code is told, by name."""

import asyncio
import contextvars
import dataclasses
import gc
import re
import signal
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import immutables
import pytest
from pydantic import BaseModel

from refold import App, NotDone, Policy, Retry, RunContext
from refold.engine.acquisitions import Acquisitions
from refold.engine.session import (
    ChunkAsked,
    CursorAsked,
    Diverged,
    LogLine,
    Raised,
    Returned,
    SleepAsked,
    StepAsked,
    Unsettled,
)
from refold_projections.fold.state import Attempt, Outcome, RunState, Slot
from refold_schemas.commands import SLOT_CHARS_MAX
from refold_schemas.errors import (
    CallRefused,
    ForeignAwait,
    LoopMisused,
    RefoldError,
    ResultUnrecordable,
    Revalidation,
    RunTornDown,
    StepAbsent,
    StepError,
    StepOutsideRun,
    ValueRefused,
    ValueTooLarge,
)
from refold_schemas.values import Unrecordable, digest_value, encode_value
from support.play import STARTED_MS, Play, new_state, replay

Body = Callable[[RunContext], Awaitable[Any]]


def reading(app: App, name: str, result: Callable[..., Any] = lambda item: item) -> Any:
    """Register a re-executable step of one argument `item`."""

    def step(item: Any) -> Any:
        return result(item)

    return app.step(name=name, policy=Policy.RE_EXECUTABLE)(step)


def acting(app: App, name: str, **declared: Any) -> Any:
    """Register an undeclared step of one argument `item`."""

    def step(item: Any) -> Any:
        return item

    return app.step(name=name, **declared)(step)


def running(app: App, body: Body) -> App:
    """Make `body` the run function of the app."""

    async def test(ctx: RunContext) -> Any:
        return await body(ctx)

    app.run("test", version=str(len(app.versions) + 1))(test)
    return app


def asked_first(play: Play, index: int) -> StepAsked:
    """What a process asked for at that place."""
    ask = play.asked[index]
    assert isinstance(ask, StepAsked)
    return ask


# ---- slots


def test_slots_name_scope_step_and_occurrence() -> None:
    app = App("a")
    load, charge = reading(app, "load"), acting(app, "charge")

    async def pair(ctx: RunContext) -> None:
        await ctx.step(load, 1)
        await ctx.gather(ctx.step(load, 2), ctx.step(load, 3))

    async def body(ctx: RunContext) -> None:
        await ctx.step(load, 0)
        await ctx.step(load, 0)
        await ctx.gather(fraud=ctx.step(charge, 1), stock=pair(ctx))
        await ctx.map(load, range(5), every=2)
        await ctx.map(charge, range(2))
        await ctx.sleep(timedelta(seconds=1))
        async for batch, state in ctx.each(range(3), every=2):
            await ctx.step(load, list(batch))
            batch.commit(state)

    play = Play(running(app, body), new_state()).run()
    slots = sorted(play.state.slots.values(), key=lambda slot: slot.born)
    assert [slot.name for slot in slots] == [
        "load#1",
        "load#2",
        "gather#1[fraud]/charge#1",
        "gather#1[stock]/load#1",
        "gather#1[stock]/gather#1[0]/load#1",
        "gather#1[stock]/gather#1[1]/load#1",
        "map#1[0..1]/load#1",
        "map#1[2..3]/load#1",
        "map#1[4..4]/load#1",
        "map#2[0]/charge#1",
        "map#2[1]/charge#1",
        "sleep#1",
        "each#1[0..1]/load#1",
        "each#1[2..2]/load#1",
    ]


def test_equal_calls_in_one_gather_and_later_are_slots_of_their_own() -> None:
    """Same step, same arguments is not same intent (two equal vouchers)."""
    app = App("a")
    issue = acting(app, "issue_voucher")

    async def body(ctx: RunContext) -> Any:
        await ctx.gather(ctx.step(issue, 10), ctx.step(issue, 10))
        return await ctx.step(issue, 10)

    play = Play(running(app, body), new_state()).run()
    assert len(play.state.slots) == 3
    for prefix in play.history:
        again = replay(app, prefix).run()
        assert set(again.state.slots) == set(play.state.slots)


def test_asks_come_in_the_order_in_which_run_code_asked() -> None:
    app = App("a")
    load, charge = reading(app, "load"), acting(app, "charge")

    async def body(ctx: RunContext) -> None:
        ctx.log.info("first", count=1)
        await ctx.gather(ctx.step(charge, 2), ctx.sleep(timedelta(milliseconds=1.5)))
        await ctx.map(load, [5, 6], every=9, concurrency=3)

    play = Play(running(app, body), new_state()).start()
    assert [type(ask) for ask in play.asked] == [LogLine, StepAsked, SleepAsked]
    asked = play.asked[1]
    assert isinstance(asked, StepAsked)
    assert (asked.slot, asked.arguments) == ("gather#1[0]/charge#1", {"item": 2})
    assert [(a.name, a.value) for a in asked.stored] == [("item", encode_value(2))]
    assert play.asked[2] == SleepAsked("gather#1[1]/sleep#1", 2)
    assert play.session.waiting_slots == ("gather#1[0]/charge#1", "gather#1[1]/sleep#1")
    play.finish("gather#1[1]/sleep#1")
    play.finish("gather#1[0]/charge#1")
    chunk = play.asked[-1]
    assert isinstance(chunk, ChunkAsked)
    assert (chunk.slot, chunk.items, chunk.concurrency) == (
        "map#1[0..1]/load#1",
        [{"item": 5}, {"item": 6}],
        3,
    )
    play.run()
    assert play.session.ended
    assert not play.session.replaying


def test_arguments_are_stored_as_they_were_when_they_were_asked() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> None:
        shared = [1]

        async def other() -> None:
            shared.append(2)
            await ctx.step(load, shared)

        await ctx.gather(ctx.step(load, shared), other())

    play = Play(running(app, body), new_state()).start()
    stored = [ask.stored[0].value for ask in play.asked if isinstance(ask, StepAsked)]
    assert stored == [encode_value([1]), encode_value([1, 2])]


def test_concurrency_of_a_map_bounds_the_items_under_way() -> None:
    app = App("a")
    charge = acting(app, "charge")

    async def body(ctx: RunContext) -> Any:
        return await ctx.map(charge, range(5), concurrency=2)

    play = Play(running(app, body), new_state()).start()
    while play.end is None:
        assert len(play.open) <= 2
        play.finish(list(play.open)[-1])
    assert play.result == [0, 1, 2, 3, 4]


def test_empty_gather_map_and_each_ask_for_nothing() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        nothing: list[int] = []
        loop = ctx.each(nothing, every=2, state="s")
        async for batch, state in loop:
            batch.commit(state)
        return await ctx.gather(), await ctx.map(load, []), loop.state

    play = Play(running(app, body), new_state()).start()
    assert play.asked == [Returned(((), [], "s"))]


# ---- log order


@pytest.mark.parametrize("first", [0, 1])
def test_two_parallel_tools_that_finish_in_either_order(first: int) -> None:
    """Live and replayed alike: run code sees outcomes in log order, whichever came first."""
    app = App("a")
    tool = acting(app, "tool")

    async def body(ctx: RunContext) -> Any:
        seen: list[str] = []

        async def use(name: str) -> str:
            seen.append(await ctx.step(tool, name))
            return name

        both = await ctx.gather(use("search"), use("fetch"))
        await ctx.step(tool, seen)
        return both, seen

    running(app, body)
    live = Play(app, new_state()).start()
    live.finish(list(live.open)[first])
    live.run()
    expected = ["search", "fetch"] if first == 0 else ["fetch", "search"]
    assert live.result == (("search", "fetch"), expected)
    for prefix in live.history:
        again = replay(app, prefix)
        assert not isinstance(again.end, Diverged)
        if len(prefix.slots) >= 2:
            assert again.run().result == live.result


@pytest.mark.parametrize(("first", "raised"), [("a", "a"), ("b", "b")])
def test_gather_raises_the_failure_that_is_first_in_log_order(first: str, raised: str) -> None:
    app = App("a")

    @app.step(not_done=(LookupError,))
    def find(item: str) -> None:
        raise LookupError(item)

    charge = acting(app, "charge")

    async def body(ctx: RunContext) -> Any:
        try:
            await ctx.gather(a=ctx.step(find, "a"), b=ctx.step(find, "b"), c=ctx.step(charge, 1))
        except LookupError as error:
            return str(error), error.__notes__

    running(app, body)
    play = Play(app, new_state()).start()
    play.finish(f"gather#1[{first}]/find#1")
    assert play.end is None, "the other branches run to their end first"
    play.run()
    other = {"a": "b", "b": "a"}[first]
    note = f"also failed: gather#1[{other}]: LookupError: {other}"
    assert play.result == (raised, [note])
    assert replay(app, play.state).result == play.result


def test_a_sibling_whose_error_cannot_be_read_is_noted_all_the_same() -> None:
    app = App("a")

    class Unprintable(LookupError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def fails(error: Exception) -> None:
        raise error

    async def body(ctx: RunContext) -> Any:
        try:
            await ctx.gather(a=fails(LookupError("a")), b=fails(Unprintable()))
        except LookupError as error:
            return error.__notes__

    play = Play(running(app, body), new_state()).start()
    note = "also failed: gather#1[b]: Unprintable: (its message cannot be read: RuntimeError)"
    assert play.result == [note]


def test_a_log_line_shows_a_field_as_it_was_when_it_was_written() -> None:
    app = App("a")
    charge = acting(app, "charge")

    async def body(ctx: RunContext) -> Any:
        orders = ["a"]
        ctx.log.info("before", orders=orders, count=len(orders))
        orders.append("b")
        await ctx.step(charge, 1)

    play = Play(running(app, body), new_state()).start().run()
    assert [line.fields for line in play.log] == [{"orders": "['a']", "count": "1"}]


def test_a_map_begins_nothing_after_a_failure_and_leaves_nothing_running() -> None:
    app = App("a")

    @app.step(not_done=(NotDone,))
    def charge(item: int) -> int:
        if item == 1:
            raise NotDone("no")
        return item

    async def body(ctx: RunContext) -> Any:
        await ctx.map(charge, range(9), concurrency=3)

    play = Play(running(app, body), new_state()).start()
    play.finish("map#1[1]/charge#1")
    assert set(play.open) == {"map#1[0]/charge#1", "map#1[2]/charge#1"}
    play.run()
    assert isinstance(play.error, NotDone)
    assert len(play.state.slots) == 3


def test_contextvars_of_branches_do_not_mix() -> None:
    app = App("a")
    load = reading(app, "load")
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")
    var.set("of the process")

    async def body(ctx: RunContext) -> Any:
        before = var.get()
        var.set("parent")

        async def child(name: str) -> tuple[str, str]:
            inherited = var.get()
            var.set(name)
            await ctx.step(load, 1)
            return inherited, var.get()

        return before, await ctx.gather(child("x"), child("y")), var.get()

    play = Play(running(app, body), new_state()).run()
    assert play.result == ("unset", (("parent", "x"), ("parent", "y")), "parent")


def test_now_is_the_time_of_the_last_outcome_of_the_branch() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        times = [ctx.now()]

        async def child(item: int) -> None:
            await ctx.step(load, item)
            times.append(ctx.now())

        await ctx.gather(child(1), child(2))
        times.append(ctx.now())
        await ctx.step(load, 3)
        return [int(t.timestamp() * 1000) - STARTED_MS for t in [*times, ctx.now()]], times[
            0
        ].tzinfo

    running(app, body)
    play = Play(app, new_state()).start()
    play.finish("gather#1[1]/load#1", at_ms=STARTED_MS + 5)
    play.finish("gather#1[0]/load#1", at_ms=STARTED_MS + 7)
    play.finish("load#1", at_ms=STARTED_MS + 11)
    assert isinstance(play.result, tuple)
    assert play.result[0] == [0, 5, 7, 7, 11]
    assert str(play.result[1]) == "UTC"
    assert replay(app, play.state).result == play.result


def test_uuid_and_random_are_the_same_on_replay_and_differ_by_scope() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        async def child() -> Any:
            first = ctx.uuid()
            await ctx.step(load, 1)
            return str(first), str(ctx.uuid()), ctx.random.random(), ctx.random.random()

        return await ctx.gather(child(), child()), str(ctx.uuid())

    running(app, body)
    play = Play(app, new_state()).run()
    result: Any = play.result
    (one, two), own = result
    assert len({*one, *two, own}) == 9
    assert replay(app, play.state).result == play.result
    other = Play(app, new_state()._replace(nonce=bytes(32))).run()
    assert other.result != play.result


def test_log_lines_are_written_once() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> None:
        for number in range(3):
            ctx.log.info("before", number=number)
            await ctx.step(load, number)
        ctx.log.warning("end")

    running(app, body)
    live = Play(app, new_state()).run()
    assert [(line.level, line.fields) for line in live.log] == [
        ("info", {"number": "0"}),
        ("info", {"number": "1"}),
        ("info", {"number": "2"}),
        ("warning", {}),
    ]
    assert live.log[1].at_ms == STARTED_MS + 1000
    # The line behind the last outcome may not have been written; those before it were.
    assert [line.fields for line in replay(app, live.history[2]).log] == [{"number": "2"}]
    asked = Play(app, live.history[2]).start()
    asked.intend("load#3")
    assert replay(app, asked.state).log == [], "load#3 is recorded, so what is before it was logged"


class Unspeakable:
    """Neither its text nor its repr can be made."""

    def __repr__(self) -> str:
        raise ValueError("no words")


def test_a_log_line_is_formatted_as_in_logging_and_never_fails_a_run() -> None:
    app = App("a")

    async def body(ctx: RunContext) -> str:
        ctx.log.info("paid %d pence for %s", 4160, "order", message="a field of this name")
        ctx.log.debug("%(order)s", {"order": "48211"})
        ctx.log.warning("100%")
        ctx.log.error("%d", "many")
        ctx.log.info("too few %s %s", 1)
        ctx.log.info("none", 1)
        ctx.log.info(KeyError("x"))
        ctx.log.info("bad %s", Unspeakable())
        return "done"

    play = Play(running(app, body), new_state()).run()
    assert play.result == "done"
    assert [line.message for line in play.log] == [
        "paid 4160 pence for order",
        "48211",
        "100%",
        "%d ('many',)",
        "too few %s %s (1,)",
        "none (1,)",
        "'x'",
        "(a line that cannot be written: ValueError)",
    ]
    assert play.log[0].fields == {"message": "'a field of this name'"}


def test_what_another_branch_logged_before_a_recorded_outcome_is_not_written_again() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> None:
        async def child(name: str) -> None:
            await ctx.step(load, name)
            ctx.log.info(name)
            await ctx.step(load, name)

        await ctx.gather(child("a"), child("b"))

    live = Play(running(app, body), new_state()).start()
    live.finish("gather#1[0]/load#1")
    live.finish("gather#1[1]/load#1")
    assert [line.message for line in live.log] == ["a", "b"]
    assert [line.message for line in replay(app, live.state).log] == ["b"]


# ---- divergence


@pytest.mark.parametrize("recorded", [False, True])
def test_the_five_step_divergence_is_parked_at_step_one(recorded: bool) -> None:
    """A model that is called again plans otherwise: found at the first differing argument.

    With the model call as a step its answer is read from the record and nothing differs.
    """
    plans = iter(["refund", "escalate"])
    app = App("a")

    @app.model()
    def plan() -> str:
        return next(plans)

    search, order = reading(app, "search"), reading(app, "read_order")
    refund, ticket = acting(app, "refund"), acting(app, "create_ticket")
    ran: list[str] = []

    async def body(ctx: RunContext) -> Any:
        decision = await ctx.step(plan) if recorded else next(plans)
        window = "refund window" if decision == "refund" else "returns policy"
        ran.append(await ctx.step(search, window))
        await ctx.step(order, "48211")
        await ctx.step(order, "48211")
        return await ctx.step(refund if decision == "refund" else ticket, 4160)

    running(app, body)
    live = Play(app, new_state()).start()
    while "refund#1" not in live.open:
        live.finish(next(iter(live.open)))
    again = replay(app, live.state)
    if recorded:
        assert list(again.open) == ["refund#1"]
        return
    assert again.asked == [
        Diverged("search#1", "step 1 search: argument item 'refund window' → 'returns policy'")
    ]
    assert ran == ["refund window"], "nothing behind the difference was executed"
    assert again.session.ended


def test_no_branch_runs_on_once_one_has_diverged() -> None:
    app = App("a")
    load = reading(app, "load")
    first, ran = "a", []

    async def body(ctx: RunContext) -> None:
        async def child(name: str) -> None:
            ran.append(name)
            await ctx.step(load, name)

        await ctx.gather(child(first), child("b"))

    running(app, body)
    live = Play(app, new_state()).run()
    ran.clear()
    first = "changed"
    again = replay(app, live.state)
    slot = "gather#1[0]/load#1"
    assert again.detail == f"step 1 load ({slot}): argument item 'a' → 'changed'"
    assert ran == ["changed"]
    again.session.close()


def diverges(record: RunState, body: Body, app: App) -> str:
    running(app, body)
    play = replay(app, record)
    assert len(play.asked) == 1
    return play.detail


def five_steps() -> tuple[App, Any, Any, Play]:
    app = App("a")
    load = reading(app, "load")

    @app.step
    def charge(order: str, pence: int) -> str:
        return order

    async def body(ctx: RunContext) -> None:
        for number in range(4):
            await ctx.step(load, number)
        await ctx.step(charge, "48211", 4160)

    return app, load, charge, Play(running(app, body), new_state()).run()


def test_a_differing_argument_is_named_with_both_values() -> None:
    app, load, charge, live = five_steps()

    async def changed(ctx: RunContext) -> None:
        for number in range(4):
            await ctx.step(load, number)
        await ctx.step(charge, "48211", 4610)

    detail = diverges(live.state, changed, app)
    assert detail == "step 5 charge: argument pence 4160 → 4610"


def test_all_differing_arguments_are_named() -> None:
    app, load, charge, live = five_steps()

    async def changed(ctx: RunContext) -> None:
        for number in range(4):
            await ctx.step(load, number)
        await ctx.step(charge, "48212", 1)

    assert diverges(live.state, changed, app) == (
        "step 5 charge: argument order '48211' → '48212'; argument pence 4160 → 1"
    )


def test_another_step_in_a_recorded_place_is_named() -> None:
    app, load, charge, live = five_steps()

    async def changed(ctx: RunContext) -> None:
        await ctx.step(load, 0)
        await ctx.step(charge, "48211", 4160)

    assert diverges(live.state, changed, app) == (
        "step 2 load: recorded as load#2, but the code asks for charge#1 instead"
    )


def test_a_new_step_before_recorded_ones_is_a_divergence() -> None:
    app, load, _, live = five_steps()
    check = reading(app, "check")

    async def changed(ctx: RunContext) -> None:
        await ctx.step(load, 0)
        await ctx.step(check, 0)
        await ctx.step(load, 1)

    assert diverges(live.state, changed, app) == (
        "step 2 load: recorded as load#2, but the code asks for check#1 instead"
    )


def test_a_recorded_slot_that_code_passes_by_is_a_divergence() -> None:
    app, load, _, live = five_steps()

    async def changed(ctx: RunContext) -> None:
        for number in range(4):
            await ctx.step(load, number)

    assert diverges(live.state, changed, app) == (
        "step 5 charge: recorded as charge#1, but the code ends before it"
    )


def test_a_recorded_slot_without_outcome_that_nobody_asks_for_is_a_divergence() -> None:
    app = App("a")
    charge, load = acting(app, "charge"), reading(app, "load")

    async def body(ctx: RunContext) -> None:
        await ctx.gather(a=ctx.step(charge, 1), b=ctx.step(load, 2))

    live = Play(running(app, body), new_state()).start()
    live.intend("gather#1[a]/charge#1")

    async def changed(ctx: RunContext) -> None:
        await ctx.gather(b=ctx.step(load, 2))

    assert diverges(live.state, changed, app) == (
        "step 1 charge: recorded as gather#1[a]/charge#1, but the code does not ask for it"
    )


def test_a_step_whose_name_is_gone_is_named() -> None:
    _, _, _, live = five_steps()
    app = App("b")
    load = reading(app, "load")
    debit = acting(app, "debit")

    async def renamed(ctx: RunContext) -> None:
        for number in range(4):
            await ctx.step(load, number)
        await ctx.step(debit, "48211")

    assert diverges(live.state, renamed, app) == (
        "step 5 charge: the app has no step of this name any more"
    )


def test_another_order_of_recorded_steps_is_a_divergence() -> None:
    app = App("a")
    one, two = reading(app, "one"), reading(app, "two")

    async def body(ctx: RunContext) -> None:
        await ctx.step(one, 1)
        await ctx.step(two, 1)

    live = Play(running(app, body), new_state()).run()

    async def changed(ctx: RunContext) -> None:
        await ctx.step(two, 1)
        await ctx.step(one, 1)

    assert diverges(live.state, changed, app) == (
        "step 1 one: recorded as one#1, but the code asks for two#1 instead"
    )


class OrderThen(BaseModel):
    order: str


class OrderNow(BaseModel):
    order: str
    currency: str = "GBP"


def test_a_type_with_a_new_default_field_is_no_divergence() -> None:
    """The fingerprints differ, the values read into today's type do not."""

    def app_with(annotation: Any) -> tuple[App, Any]:
        app = App("a")

        def load(order: Any, hint: str = "none") -> str:
            return "loaded"

        load.__annotations__["order"] = annotation
        return app, app.step(policy=Policy.RE_EXECUTABLE)(load)

    then, load_then = app_with(OrderThen)

    async def before(ctx: RunContext) -> Any:
        return await ctx.step(load_then, OrderThen(order="48211"))

    live = Play(running(then, before), new_state()).run()
    # As after a deploy: the class at the recorded name has one more field.
    slot = live.state.slots["load#1"]
    value = slot.arguments[0].value
    renamed = dataclasses.replace(value, type=value.type.replace("OrderThen", "OrderNow"))
    arguments = (dataclasses.replace(slot.arguments[0], value=renamed),)
    state = live.state._replace(
        slots=live.state.slots.set("load#1", slot._replace(arguments=arguments))
    )
    now, load_now = app_with(OrderNow)
    currency = "GBP"

    async def after(ctx: RunContext) -> Any:
        return await ctx.step(load_now, OrderNow(order="48211", currency=currency))

    running(now, after)
    assert replay(now, state).result == "loaded"
    currency = "EUR"
    assert replay(now, state).detail == ("step 1 load: argument order.currency 'GBP' → 'EUR'")


def test_a_new_parameter_counts_only_if_it_is_not_its_default() -> None:
    app = App("a")

    @app.step(name="load")
    def load_then(item: int) -> int:
        return item

    async def before(ctx: RunContext) -> Any:
        return await ctx.step(load_then, 1)

    live = Play(running(app, before), new_state()).run()
    now = App("a")

    @now.step(name="load")
    def load_now(item: int, hint: str = "none") -> int:
        return item

    hint = "none"

    async def after(ctx: RunContext) -> Any:
        return await ctx.step(load_now, 1, hint=hint)

    running(now, after)
    assert replay(now, live.state).result == 1
    hint = "some"
    assert replay(now, live.state).detail == ("step 1 load: argument hint is sent but not recorded")


def test_volatile_arguments_do_not_count() -> None:
    app = App("a")

    @app.step(volatile=("created_at",), policy=Policy.RE_EXECUTABLE)
    def load(item: int, created_at: int) -> int:
        return item

    clock = iter(range(100))

    async def body(ctx: RunContext) -> Any:
        return await ctx.step(load, 7, created_at=next(clock)), await ctx.gather(
            ctx.map(load_item, range(3), every=2)
        )

    @app.step(volatile=("request",), policy=Policy.RE_EXECUTABLE, name="load_item")
    def load_item(item: int, request: int = 0) -> int:
        return item

    running(app, body)
    live = Play(app, new_state()).run()
    assert replay(app, live.state).result == live.result


def test_arguments_kept_as_a_digest_are_compared_by_it() -> None:
    app = App("a")
    load = reading(app, "load", len)
    text = "x" * 100

    async def body(ctx: RunContext) -> Any:
        return await ctx.step(load, text)

    running(app, body)
    live = Play(app, new_state()).run()
    slot = live.state.slots["load#1"]
    argument = slot.arguments[0]
    kept = (dataclasses.replace(argument, value=digest_value(argument.value)),)
    state = live.state._replace(
        slots=live.state.slots.set("load#1", slot._replace(arguments=kept, fingerprint=b"old"))
    )
    assert replay(app, state).result == 100
    text = "y" * 100
    assert "(kept as a digest only)" in replay(app, state).detail


def test_a_chunk_with_another_item_diverges() -> None:
    app = App("a")
    load = reading(app, "load")
    items = [1, 2, 3]

    async def body(ctx: RunContext) -> Any:
        return await ctx.map(load, items, every=2)

    running(app, body)
    live = Play(app, new_state()).run()
    assert replay(app, live.state).result == [1, 2, 3]
    items[2] = 4
    assert replay(app, live.state).detail == (
        "step 2 load (map#1[2..2]/load#1): argument items[0].item 3 → 4"
    )


def test_an_input_that_todays_type_refuses_parks_the_run() -> None:
    app = App("a")

    @app.run("test")
    async def test(ctx: RunContext, order: OrderNow) -> None:
        raise AssertionError("is not to run")

    play = replay(app, new_state(input={"number": 1}))
    assert isinstance(play.end, Diverged)
    assert play.end.slot == "input"
    assert "does not validate" in play.detail


# ---- what run code is told


def test_declared_exceptions_come_back_as_themselves_live_and_on_replay() -> None:
    app = App("a")

    class Declined(Exception):
        def __init__(self, code: int) -> None:
            self.code = code
            super().__init__(f"declined with {code}")

    class Expired(LookupError):
        pass

    @app.step(not_done=(Declined, LookupError), retry=Retry(1, fresh_key_on=(KeyError,)))
    def charge(kind: str) -> None:
        raise {
            "declined": Declined(51),
            "expired": Expired("card"),
            "key": KeyError("k"),
            "not_done": NotDone("busy"),
            "other": ValueError("bad"),
        }[kind]

    async def body(ctx: RunContext) -> Any:
        seen = []
        for kind in ("declined", "expired", "key", "not_done", "other"):
            try:
                await ctx.step(charge, kind)
            except Exception as error:
                seen.append((type(error).__name__, str(error).split(". Kept")[0]))
        return seen

    running(app, body)
    live = Play(app, new_state()).run()
    assert live.result == [
        ("Declined", "declined with 51"),
        ("StepError", "step charge#2 failed: Expired: card"),  # a local class cannot be found again
        ("KeyError", "'k'"),
        ("NotDone", "busy"),
        ("StepError", "step charge#5 failed: ValueError: bad"),
    ]
    assert replay(app, live.state).result == live.result


def test_a_subclass_of_a_declared_type_comes_back_as_itself() -> None:
    app = App("a")
    seen: list[type] = []

    @app.step(not_done=(OSError,))
    def charge() -> None:
        raise ConnectionRefusedError(111, "refused")

    async def body(ctx: RunContext) -> Any:
        try:
            await ctx.step(charge)
        except OSError as error:
            seen.append(type(error))

    Play(running(app, body), new_state()).run()
    assert seen == [ConnectionRefusedError]


def test_unrecordable_and_absent_outcomes() -> None:
    app = App("a")
    charge = acting(app, "charge")

    async def body(ctx: RunContext) -> Any:
        seen: list[Any] = []
        for number in range(2):
            try:
                await ctx.step(charge, number)
            except ResultUnrecordable as error:
                seen.append((error.slot, error.path, error.type_name))
            except StepAbsent as error:
                seen.append(error.slot)
        return seen

    running(app, body)
    play = Play(app, new_state()).start()
    lost = Unrecordable("socket", "result.sock", "cannot be stored", 0, "<socket>")
    play.finish("charge#1", kind="unrecordable", unrecordable=lost)
    play.finish("charge#2", kind="absent")
    assert play.result == [("charge#1", "result.sock", "socket"), "charge#2"]
    assert replay(app, play.state).result == play.result


def test_run_code_gets_the_stored_value_live_too() -> None:
    app = App("a")
    shared = {"total": Decimal("1.0"), "items": (1, 2)}
    load = reading(app, "load", lambda item: shared)

    async def body(ctx: RunContext) -> Any:
        first = await ctx.step(load, 1)
        first["total"] = 0
        return await ctx.step(load, 2)

    play = Play(running(app, body), new_state()).run()
    assert play.result == shared
    assert play.result is not shared


def test_arguments_that_cannot_be_stored_are_refused_in_run_code_by_name() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        try:
            await ctx.step(load, {"price": float("nan")})
        except ValueRefused as error:
            return str(error)

    play = Play(running(app, body), new_state()).start()
    assert isinstance(play.result, str)
    assert "item.price" in play.result


def test_a_refused_call_takes_no_slot_live_or_replayed() -> None:
    """Refused for what it is or for its size: the next call gets the place, on replay too."""
    app = App("a")
    load = reading(app, "load", lambda item: 1)

    class Tally(int):
        pass

    async def body(ctx: RunContext) -> Any:
        seen: list[str] = []
        for item in (Tally(1), {"a": float("inf")}, "x" * 1_000_001, "fits"):
            try:
                await ctx.step(load, item)
            except (ValueRefused, ValueTooLarge) as error:
                seen.append(str(error).split(". Kept")[0])
        return seen

    running(app, body)
    live = Play(app, new_state()).run()
    assert list(live.state.slots) == ["load#1"]
    assert isinstance(live.result, list)
    assert len(live.result) == 3
    assert live.result[2] == (
        "run run-1: step load: argument item has 1,000,003 bytes, 1,000,000 are allowed"
    )
    assert replay(app, live.state).result == live.result


def test_revalidate_returns_the_fresh_value_or_raises_with_both() -> None:
    app = App("a")
    quotes = iter([100, 104, 150])

    @app.step(policy=Policy.RE_EXECUTABLE)
    def read_quote(order: str) -> int:
        return next(quotes)

    async def body(ctx: RunContext) -> Any:
        quote = await ctx.step(read_quote, "48211")
        close = lambda old, new: abs(old - new) < 5  # noqa: E731
        quote = await ctx.revalidate(read_quote, "48211", recorded=quote, tolerance=close)
        try:
            await ctx.revalidate(read_quote, "48211", recorded=quote)
        except Revalidation as error:
            return quote, error.recorded, error.fresh, error.slot

    running(app, body)
    play = Play(app, new_state()).run()
    assert play.result == (104, 104, 150, "read_quote#3")
    assert replay(app, play.state).result == play.result


def test_revalidate_needs_a_step_that_only_reads() -> None:
    app = App("a")
    charge = acting(app, "charge")

    async def body(ctx: RunContext) -> Any:
        await ctx.revalidate(charge, 1, recorded=1)

    play = Play(running(app, body), new_state()).start()
    assert "charge is escalate, not re_executable" in str(play.error)


# ---- loops


def loop_app(**kwargs: Any) -> tuple[App, Any]:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        loop = ctx.each(range(7), every=3, state={"sum": 0})
        async for batch, state in loop:
            for item in batch:
                state["sum"] += await ctx.step(load, item)
            batch.commit(state)
        return loop.state

    return running(app, body), load


def test_a_loop_goes_on_behind_its_recorded_cursor() -> None:
    app, _ = loop_app()
    live = Play(app, new_state()).run()
    assert live.result == {"sum": 21}
    cursors = [(a.cursor, a.total) for a in live.asked if isinstance(a, CursorAsked)]
    assert cursors == [(3, 7), (6, 7), (7, 7)]
    behind = next(s for s in live.history if s.cursors and s.cursors["each#1"].cursor == 6)
    again = replay(app, behind)
    assert list(again.open) == ["each#1[6..6]/load#1"]
    assert again.run().result == {"sum": 21}
    # What the cursor has passed need not even be kept.
    bare = behind._replace(
        slots=behind.slots.delete("each#1[0..2]/load#1").delete("each#1[3..5]/load#2")
    )
    assert replay(app, bare).run().result == {"sum": 21}


def test_time_in_a_loop_is_the_same_for_every_later_process() -> None:
    """A cursor is recorded with the time that run code was given when it went on."""
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        loop = ctx.each(range(4), every=2, state=[str(ctx.now())])
        async for batch, state in loop:
            if batch.start == 0:
                await ctx.step(load, 0)
            batch.commit([*state, str(ctx.now())])
        at_end = str(ctx.now())
        await ctx.step(load, at_end)
        return loop.state, at_end

    running(app, body)
    live = Play(app, new_state()).start()
    live.finish("each#1[0..1]/load#1")
    before_cursors = next(s for s in live.history if s.slots and not s.cursors)
    # Taken over an hour later, before a cursor was recorded: that hour is in the cursors now.
    taken = replay(app, before_cursors, now_ms=live.now_ms + 3_600_000)
    cursors = [ask for ask in taken.asked if isinstance(ask, CursorAsked)]
    assert [ask.at_ms for ask in cursors] == [live.now_ms + 3_600_000] * 2
    result = taken.run().result
    both = [s for s in taken.history if s.cursors and s.cursors["each#1"].cursor == 4]
    assert len(both) == 2
    for prefix in both:
        again = replay(app, prefix, now_ms=taken.now_ms + 7_200_000)
        assert again.run().result == result
    assert replay(app, live.state, now_ms=live.now_ms + 9_000_000).run().result != result


def test_a_carried_state_is_what_was_committed_whatever_becomes_of_the_object() -> None:
    app = App("a")

    async def body(ctx: RunContext) -> Any:
        seen: list[Any] = []
        kept: list[Any] = []
        async for batch, state in ctx.each(range(3), every=1, state={"sum": 0}):
            for old in kept:
                old["sum"] = 999
            seen.append(state["sum"])
            state["sum"] += batch[0]
            kept.append(state)
            batch.commit(state)
        return seen

    assert Play(running(app, body), new_state()).start().result == [0, 0, 1]


def test_a_loop_over_other_items_than_recorded_diverges() -> None:
    app, _ = loop_app()
    live = Play(app, new_state()).run()

    async def changed(ctx: RunContext) -> None:
        async for batch, state in ctx.each(range(8), every=3, state={"sum": 0}):
            batch.commit(state)

    assert diverges(live.state, changed, app) == (
        "loop each#1: recorded over 7 items, the code has 8"
    )


def test_a_recorded_loop_that_code_passes_by_diverges() -> None:
    app, load = loop_app()
    live = Play(app, new_state()).run()

    async def changed(ctx: RunContext) -> None:
        await ctx.step(load, 0)

    detail = diverges(live.state, changed, app)
    assert detail == "loop each#1: recorded, but the code does not come to it"


def loop_error(body: Body) -> str:
    app = App("a")
    reading(app, "load")
    play = Play(running(app, body), new_state()).run()
    assert isinstance(play.error, LoopMisused)
    return str(play.error)


def test_a_body_that_ends_without_commit_is_refused() -> None:
    async def body(ctx: RunContext) -> None:
        async for batch, _ in ctx.each(range(4), every=2):
            if batch.start:
                batch.commit(None)

    text = loop_error(body)
    assert text.startswith("each#1[0..1]: the body ended without batch.commit(state)")


def test_a_body_that_goes_on_after_commit_is_refused() -> None:
    async def body(ctx: RunContext) -> None:
        async for batch, state in ctx.each(range(4), every=2):
            batch.commit(state)
            ctx.uuid()

    assert "the body went on after batch.commit(state)" in loop_error(body)


def test_a_second_commit_is_refused() -> None:
    async def body(ctx: RunContext) -> None:
        async for batch, state in ctx.each(range(4), every=2):
            batch.commit(state)
            batch.commit(state)

    assert "committed twice" in loop_error(body)


def test_a_state_that_cannot_be_stored_is_refused_at_commit() -> None:
    async def body(ctx: RunContext) -> None:
        async for batch, _ in ctx.each(range(4), every=2):
            batch.commit(object())  # type: ignore[arg-type]

    play = Play(running(App("a"), body), new_state()).start()
    assert isinstance(play.error, ValueRefused)
    assert "state" in str(play.error)


def test_a_state_over_the_limit_is_refused_at_commit() -> None:
    async def body(ctx: RunContext) -> None:
        async for batch, _ in ctx.each(range(4), every=2):
            batch.commit("y" * 1_000_001)  # type: ignore[arg-type]

    play = Play(running(App("a"), body), new_state()).start()
    assert isinstance(play.error, ValueTooLarge)
    assert "loop each#1: its state has 1,000,003 bytes" in str(play.error)


def test_leaving_a_loop_after_commit_keeps_the_body_of_its_last_batch() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        found = 0
        async for batch, state in ctx.each(range(9), every=3, state=0):
            found = await ctx.step(load, sum(batch))
            batch.commit(state + 1)
            if found > 5:
                break
        return found, await ctx.step(load, found)

    running(app, body)
    live = Play(app, new_state()).run()
    assert live.result == (12, 12)
    assert "load#1" in live.state.slots, "what follows the loop is in the loop's own scope"
    for prefix in live.history:
        assert replay(app, prefix).run().result == live.result


# ---- foreign awaits and foreign callers


def test_awaiting_something_foreign_is_refused_named_and_with_the_repair() -> None:
    app = App("a")
    running(app, lambda ctx: foreign_body(ctx))

    async def drive() -> Play:
        return Play(app, new_state()).start()

    error = asyncio.run(drive()).error
    assert isinstance(error, ForeignAwait)
    assert error.awaited == "asyncio.sleep"
    assert "foreign_body (line" in error.where
    assert "ctx.sleep(timedelta(" in error.repair


async def foreign_body(ctx: RunContext) -> None:
    await asyncio.sleep(10)


class Knock:
    """Awaitable, but of no engine."""

    def __await__(self) -> Any:
        yield self


@pytest.mark.parametrize(
    ("awaited", "name"),
    [
        (lambda: asyncio.get_running_loop().create_future(), "asyncio.Future"),
        (lambda: Knock(), "Knock"),
        (lambda: asyncio.ensure_future(asyncio.sleep(5)), "asyncio.Task of sleep"),
        (lambda: asyncio.wait_for(asyncio.sleep(5), 1), "asyncio.wait_for"),
        (lambda: asyncio.sleep(0), "asyncio.sleep"),
    ],
)
def test_futures_and_other_awaitables_are_named(awaited: Callable[[], Any], name: str) -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        try:
            await ctx.gather(ctx.step(load, 1), awaited())
        except ForeignAwait as error:
            return error.awaited

    running(app, body)

    async def drive() -> Any:
        play = Play(app, new_state()).run()
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return play.result

    assert str(asyncio.run(drive())).endswith(name)


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda ctx, load: asyncio.gather(ctx.step(load, 1), ctx.step(load, 2)), ForeignAwait),
        (lambda ctx, load: asyncio.create_task(ctx.step(load, 1)), ForeignAwait),
        (lambda ctx, load: asyncio.create_task(ctx.step(load, 1)) and ctx.step(load, 2), None),
    ],
)
def test_what_asyncio_was_given_is_not_complained_of_later(
    use: Callable[..., Any], kind: type[BaseException] | None
) -> None:
    app = App("a")
    load = reading(app, "load")
    complaints: list[Any] = []

    async def body(ctx: RunContext) -> None:
        await use(ctx, load)

    running(app, body)

    async def drive() -> BaseException:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        error = Play(app, new_state()).run().error
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        return error

    error = asyncio.run(drive())
    assert complaints == []
    if kind is None:
        assert str(error).startswith("ctx.step(step, …): made in test_session.py:")
    else:
        assert isinstance(error, ForeignAwait)
        assert error.awaited.startswith(("asyncio.gather", "asyncio.Task of ctx.step"))


@pytest.mark.parametrize("call", ["step", "sleep", "map"])
def test_no_slot_is_longer_than_a_command_may_name(call: str) -> None:
    app = App("a")
    load = reading(app, "load")

    async def deep(ctx: RunContext) -> None:
        if call == "step":
            await ctx.step(load, 1)
        elif call == "sleep":
            await ctx.sleep(timedelta(days=1))
        else:
            await ctx.map(load, [1, 2])

    async def body(ctx: RunContext) -> str:
        try:
            await ctx.gather(**{"a" * SLOT_CHARS_MAX: deep(ctx)})
        except CallRefused as refused:
            return str(refused)
        return "asked"

    play = Play(running(app, body), new_state()).start()
    assert re.search(r"its slot.* has 10,0\d\d characters, 10,000 are allowed", str(play.result))
    assert play.asked == [play.end]


def test_run_code_that_catches_foreign_awaits_for_ever_is_given_up() -> None:
    app = App("a")

    async def body(ctx: RunContext) -> None:
        while True:
            try:
                await Knock()
            except GeneratorExit:  # Python ends, and the module may have no ForeignAwait any more
                raise
            except ForeignAwait:
                continue

    play = Play(running(app, body), new_state()).start()
    assert isinstance(play.error, ForeignAwait)
    assert play.session.swallowed_teardown


def test_steps_from_another_task_or_thread_or_after_the_end_are_refused() -> None:
    app = App("a")
    load = reading(app, "load")
    kept: list[RunContext] = []
    errors: list[BaseException] = []

    async def use(ctx: RunContext) -> None:
        try:
            await ctx.step(load, 1)
        except StepOutsideRun as error:
            errors.append(error)

    async def body(ctx: RunContext) -> None:
        kept.append(ctx)
        tasks.append(asyncio.get_running_loop().create_task(use(ctx)))
        thread = threading.Thread(target=lambda: asyncio.run(use(ctx)))
        thread.start()
        thread.join()

    tasks: list[asyncio.Task[None]] = []
    running(app, body)

    async def drive() -> None:
        play = Play(app, new_state()).start()
        assert play.end == Returned(None)
        await asyncio.gather(*tasks)
        await use(kept[0])

    asyncio.run(drive())
    assert len(errors) == 3
    assert "ctx.step of run run-1 was used outside its run code" in str(errors[0])
    with pytest.raises(StepOutsideRun):
        kept[0].now()


def test_a_context_of_one_run_is_of_no_use_in_another() -> None:
    app = App("a")
    load = reading(app, "load")
    kept: list[RunContext] = []

    async def body(ctx: RunContext) -> None:
        kept.append(ctx)
        await kept[0].step(load, 1)

    running(app, body)
    first = Play(app, new_state()).start()
    second = Play(app, new_state(run_id="run-2")).start()
    assert first.end is None
    assert isinstance(second.error, StepOutsideRun)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda ctx, load: ctx.step(len, []), "len is not a registered step"),
        (lambda ctx, load: ctx.step(len, []), "write a function that does it, with @app.step(…)"),
        (lambda ctx, load: ctx.step("load", 1), "not its name: ctx.step(load, …)"),
        (lambda ctx, load: ctx.map("load", [1]), "not its name: ctx.map(load, …)"),
        (lambda ctx, load: ctx.step("load it", 1), "not its name: ctx.step(step, …)"),
        (lambda ctx, load: ctx.step(lambda: 1), "a lambda is not a registered step"),
        (lambda ctx, load: ctx.step(3, 1), "an object of type int is not a registered step"),
        (lambda ctx, load: ctx.step(reading, 1), "write @app.step(…) above reading"),
        (lambda ctx, load: ctx.step(asyncio.sleep(0)), "arguments: ctx.step(sleep, …)"),
        (lambda ctx, load: ctx.step(load), "was not given item"),
        (lambda ctx, load: ctx.step(load, 1, 2), "takes 1 argument by position, was given 2"),
        (lambda ctx, load: ctx.step(load, 1, other=2), "has no argument 'other'"),
        (lambda ctx, load: ctx.step(load, 1, item=2), "was given 'item' twice"),
        (lambda ctx, load: ctx.sleep(3), "3 is no duration"),
        (lambda ctx, load: ctx.sleep(timedelta(seconds=-1)), "is no duration"),
        (lambda ctx, load: ctx.gather(1), "int at 0 cannot be awaited"),
        (lambda ctx, load: ctx.gather(ctx.step(load, 1), b=ctx.step(load, 1)), "some calls are na"),
        (lambda ctx, load: ctx.gather(**{"a/b": ctx.step(load, 1)}), "'a/b' cannot name a branch"),
        (lambda ctx, load: ctx.gather(*[ctx.step(load, 1)] * 2), "one call was given twice"),
        (lambda ctx, load: ctx.map(load, [1], every=0), "every=0"),
        (lambda ctx, load: ctx.map(load, [1], concurrency=True), "concurrency=True"),
        (lambda ctx, load: ctx.each([1], every=0).__anext__(), "every=0"),
    ],
)
def test_calls_that_cannot_work_say_so(call: Callable[..., Any], problem: str) -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> None:
        await call(ctx, load)

    play = Play(running(app, body), new_state()).start()
    assert isinstance(play.error, CallRefused)
    assert problem in str(play.error)
    assert not play.state.slots


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_called_directly_in_run_code_is_refused_live_and_on_replay(is_async: bool) -> None:
    app = App("a")
    load = reading(app, "load")
    sent: list[str] = []

    async def mail_async(text: str) -> None:
        sent.append(text)

    def mail_sync(text: str) -> None:
        sent.append(text)

    mail: Any = app.step(name="mail")(mail_async if is_async else mail_sync)

    async def branch(ctx: RunContext) -> None:
        await ctx.step(load, 1)
        called = mail("hello")
        await called

    async def body(ctx: RunContext) -> None:
        await ctx.gather(branch(ctx))

    live = Play(running(app, body), new_state()).run()
    for play in (live, *(replay(app, prefix).run() for prefix in live.history)):
        assert isinstance(play.error, CallRefused)
        name = mail.__name__
        assert f"{name} is a step: " in str(play.error)
        assert f"write await ctx.step({name}, …)" in str(play.error)
    assert not sent
    # The same function once the session is not driving, also as a helper in a step's body.
    called = mail("hello")
    if is_async:
        asyncio.run(called)
    assert sent == ["hello"]


FORGETTING: list[tuple[Callable[..., Any], str]] = [
    (lambda ctx, load: ctx.step(load, 1), "ctx.step(step, …)"),
    (lambda ctx, load: ctx.sleep(timedelta(1)), "ctx.sleep(…)"),
    (lambda ctx, load: ctx.map(load, [1]), "ctx.map(step, …)"),
    (lambda ctx, load: ctx.gather(ctx.step(load, 1), ctx.step(load, 2)), "ctx.gather(…)"),
    (lambda ctx, load: ctx.revalidate(load, 1, recorded=1), "ctx.revalidate(step, …)"),
]


@pytest.mark.parametrize(("forget", "named"), FORGETTING)
@pytest.mark.parametrize("in_branch", [False, True])
def test_a_forgotten_await_fails_the_run_and_names_the_call_and_its_line(
    forget: Callable[..., Any], named: str, in_branch: bool
) -> None:
    app = App("a")
    load = reading(app, "load")

    async def part(ctx: RunContext) -> str:
        await ctx.step(load, 0)
        forget(ctx, load)
        await ctx.step(load, 2)
        return "done"

    async def body(ctx: RunContext) -> Any:
        return await (ctx.gather(part(ctx)) if in_branch else part(ctx))

    live = Play(running(app, body), new_state()).run()
    line = forget.__code__.co_firstlineno
    for play in (live, *(replay(app, prefix).run() for prefix in live.history)):
        assert isinstance(play.error, CallRefused)
        assert str(play.error).startswith(f"{named}: made in test_session.py:{line}, <lambda>, and")
        assert f"write await {named}" in str(play.error)
    assert len(live.state.slots) == 2


def test_the_error_of_a_run_stands_before_what_it_left_unawaited() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> None:
        ctx.step(load, 1)  # type: ignore[unused-coroutine]
        raise ValueError("mine")

    assert str(Play(running(app, body), new_state()).start().error) == "mine"


def test_a_call_that_is_returned_or_made_by_a_helper_is_awaited_where_it_is_awaited() -> None:
    app = App("a")
    load = reading(app, "load")

    def helper(ctx: RunContext) -> Any:
        return ctx.step(load, 1)

    async def body(ctx: RunContext) -> Any:
        calls = [helper(ctx) for _ in range(3)]
        first = await calls.pop()
        unused = helper(ctx)
        unused.close()  # said on purpose
        return first, await ctx.gather(*calls)

    assert Play(running(app, body), new_state()).run().result == (1, (1, 1))


def test_a_step_of_another_app_is_refused() -> None:
    load = reading(App("other"), "load")

    async def body(ctx: RunContext) -> None:
        await ctx.step(load, 1)

    play = Play(running(App("a"), body), new_state()).start()
    assert "step is a step of another App" in str(play.error)


def test_whatever_run_code_raises_is_its_end_but_an_interrupt_is_the_process() -> None:
    app = App("a")

    async def body(ctx: RunContext) -> None:
        raise errors.pop()

    errors: list[BaseException] = [KeyboardInterrupt(), SystemExit(3), ValueError("x")]
    running(app, body)
    assert isinstance(Play(app, new_state()).start().error, ValueError)
    assert isinstance(Play(app, new_state()).start().error, SystemExit)
    with pytest.raises(KeyboardInterrupt):
        Play(app, new_state()).start()


def test_an_interrupt_that_no_signal_raised_is_the_end_of_its_run() -> None:
    app = App("a")

    async def body(ctx: RunContext) -> None:
        if by_signal:
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt("of the run")

    def raising(number: int, frame: object) -> None:
        raise KeyboardInterrupt("of the operator")

    running(app, body)
    before = signal.signal(signal.SIGINT, raising)
    try:
        by_signal = False
        assert str(Play(app, new_state()).start().error) == "of the run"
        by_signal = True
        with pytest.raises(KeyboardInterrupt, match="of the operator"):
            Play(app, new_state()).start()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_may_be_the_operators_is_the_end_of_no_run() -> None:
    """Its handler raises by way of another function, or is none whose frames can be seen."""
    app = App("a")

    async def body(ctx: RunContext) -> None:
        signal.raise_signal(signal.SIGINT)

    class Handler:
        def __call__(self, number: int, frame: object) -> None:
            self.end()

        def end(self) -> None:
            raise KeyboardInterrupt

    running(app, body)
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (Handler(), Handler().__call__):
            signal.signal(signal.SIGINT, handler)
            with pytest.raises(KeyboardInterrupt):
                Play(app, new_state()).start()
    finally:
        signal.signal(signal.SIGINT, before)


# ---- teardown


def test_teardown_closes_once_and_refuses_steps() -> None:
    app = App("a")
    load = reading(app, "load")
    seen: list[Any] = []

    async def child(ctx: RunContext, name: str) -> None:
        try:
            await ctx.step(load, name)
        finally:
            seen.append(name)
            try:
                await ctx.step(load, "in teardown")
            except RunTornDown as error:
                seen.append(type(error).__name__)
                raise

    async def body(ctx: RunContext) -> None:
        try:
            await ctx.gather(child(ctx, "a"), child(ctx, "b"))
        except Exception:
            seen.append("teardown is no failure")
        finally:
            ctx.log.info("silent")
            seen.append("root")

    play = Play(running(app, body), new_state()).start()
    play.session.close()
    play.session.close()
    assert seen == ["b", "RunTornDown", "a", "RunTornDown", "root"]
    assert not play.session.swallowed_teardown
    assert play.session.deliver("gather#1[0]/load#1", Outcome("ok", 0, 0)) == []
    assert play.session.waiting_slots == ()


def test_run_code_that_swallows_teardown_is_abandoned_and_reported() -> None:
    app = App("a")
    load = reading(app, "load")
    tries: list[int] = []
    over: list[bool] = []

    async def stubborn(ctx: RunContext) -> None:
        while not over:
            try:
                await ctx.step(load, len(tries))
            except GeneratorExit:  # not the engine's: Python ends, and takes it away
                raise
            except BaseException:
                tries.append(1)

    async def mild(ctx: RunContext) -> None:
        try:
            await ctx.step(load, 0)
        except BaseException:
            return

    for body in (stubborn, mild):
        play = Play(running(app, body), new_state()).start()
        play.session.close()
        assert play.session.swallowed_teardown
    assert 1 < len(tries) < 1000
    over.append(True)  # what is abandoned ends with the process


def test_a_diverged_session_asks_nothing_more_and_can_be_closed() -> None:
    app, load, _, live = five_steps()
    closed: list[str] = []

    async def changed(ctx: RunContext) -> None:
        try:
            await ctx.step(load, 99)
        finally:
            closed.append("closed")

    running(app, changed)
    play = replay(app, live.state)
    assert play.session.deliver("load#1", Outcome("ok", 9, 9)) == []
    play.session.close()
    assert closed == ["closed"]


def test_calls_that_were_never_begun_are_closed_without_a_warning() -> None:
    app = App("a")
    load = reading(app, "load")

    async def body(ctx: RunContext) -> None:
        try:
            await ctx.step(load, 1)
        finally:
            await ctx.gather(ctx.step(load, 2), ctx.step(load, 3))

    play = Play(running(app, body), new_state()).start()
    play.session.close()
    assert not play.session.swallowed_teardown


# ---- replay of what is not settled


def test_recorded_slots_without_outcome_are_unsettled_not_asked_again() -> None:
    app = App("a")
    charge = acting(app, "charge")

    async def body(ctx: RunContext) -> Any:
        return await ctx.gather(ctx.step(charge, 1), ctx.sleep(timedelta(days=9)))

    running(app, body)
    live = Play(app, new_state()).start()
    live.intend("gather#1[0]/charge#1")
    live.intend("gather#1[1]/sleep#1")
    again = replay(app, live.state)
    unsettled = again.asked[0]
    assert isinstance(unsettled, Unsettled)
    assert unsettled == (unsettled.slot, app.steps["charge"], False, live.asked[0])
    assert again.asked[1] == Unsettled("gather#1[1]/sleep#1", None, False)
    assert again.run().result == (1, None)


# ---- acquisitions


def locks(valid_for: timedelta | None = None) -> tuple[App, list[str]]:
    app = App("a")
    done: list[str] = []
    serial = iter(range(100))

    def release_lock(fx: Any, handle: dict[str, Any]) -> None:
        done.append(f"release {handle['name']}")

    @app.step(release=release_lock, valid_for=valid_for)
    def lock(fx: Any, name: str) -> dict[str, Any]:
        return {"name": name, "serial": next(serial)}

    @app.step
    def write(fx: Any, handle: dict[str, Any], what: str) -> str:
        done.append(f"write {what} under {handle['serial']}")
        return what

    @app.run("test")
    async def test(ctx: RunContext, fails: bool = False) -> str:
        one = await ctx.step(lock, "a")
        await ctx.step(lock, "b")
        now = ctx.now().isoformat()
        await ctx.step(write, one, f"x at {now}")
        if fails:
            raise ValueError("after writing")
        await ctx.step(write, {"nested": [one]} and one, "y")
        return "done"

    return app, done


@pytest.mark.parametrize(("generation", "stale"), [(0, False), (1, True)])
def test_a_release_that_seems_older_is_stale_only_if_there_is_another_handle(
    generation: int, stale: bool
) -> None:
    """Between the two the log's clock was set back, or the handle was acquired anew."""
    app, _ = locks()
    attempt = Attempt(1, b"c" * 16, 0, 0, "done", 2_000, 0, generation)
    handle, given_back = Outcome("ok", 0, 3_600_000), Outcome("ok", 1, 1_000)
    slots = immutables.Map(
        {
            "lock#1": Slot(
                "lock#1", "lock", 0, generation=generation, attempts=(attempt,), outcome=handle
            ),
            "lock#1/release_lock#1": Slot(
                "lock#1/release_lock#1", "release_lock", 1, outcome=given_back
            ),
        }
    )
    acquisitions = Acquisitions(new_state()._replace(slots=slots), app.steps)
    assert acquisitions.is_stale("lock#1/release_lock#1") is stale
    assert acquisitions.is_release("lock#1/release_lock#1") is not stale


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_acquired_is_released_last_first_before_the_run_ends(fails: bool) -> None:
    app, done = locks()
    live = Play(app, new_state(input=fails)).run()
    assert [entry for entry in done if entry.startswith("release")] == ["release b", "release a"]
    assert {"lock#2/release_lock#1", "lock#1/release_lock#1"} < set(live.state.slots)
    if fails:
        assert isinstance(live.end, Raised)
    else:
        assert live.result == "done"
    for prefix in live.history:
        again = replay(app, prefix).run()
        assert type(again.end) is type(live.end)


def test_a_handle_that_ran_out_is_acquired_anew_and_stands_for_the_old_one() -> None:
    app, done = locks(valid_for=timedelta(minutes=1))
    live = Play(app, new_state(input=False)).start()
    for slot in ("lock#1", "lock#2", "write#1"):
        live.finish(slot)
    later = live.now_ms + 50_000
    fresh = replay(app, live.state, now_ms=later)
    assert list(fresh.open) == ["write#2"], "both live for a minute"
    late = replay(app, live.state, now_ms=later + 10_000)
    assert late.asked == [Unsettled("lock#1", app.steps["lock"], True, asked_first(live, 0))]
    assert late.session.replaying
    late.finish("lock#1")
    assert late.asked[1:] == [Unsettled("lock#2", app.steps["lock"], True, asked_first(live, 1))]
    late.finish("lock#2")
    asked = late.asked[-1]
    assert isinstance(asked, StepAsked)
    assert (asked.slot, asked.arguments["handle"]) == ("write#2", {"name": "a", "serial": 2})
    done.clear()
    assert late.run().result == "done"
    assert done == ["write y under 2", "release b", "release a"]
    # The record now has the new handle with the first write's old argument: still no divergence.
    assert replay(app, late.state, now_ms=late.now_ms).result == "done"


@pytest.mark.parametrize(("age_ms", "has_run_out"), [(59_999, False), (60_000, True)])
def test_a_handle_runs_out_to_the_millisecond(age_ms: int, has_run_out: bool) -> None:
    app, _ = locks(valid_for=timedelta(minutes=1))
    live = Play(app, new_state(input=False)).start()
    live.finish("lock#1")
    again = replay(app, live.state, now_ms=live.now_ms + age_ms)
    assert list(again.open) == (["lock#1"] if has_run_out else ["lock#2"])


def test_a_run_that_is_being_released_acquires_nothing_anew() -> None:
    app, _ = locks(valid_for=timedelta(minutes=1))
    live = Play(app, new_state(input=False)).start()
    while "lock#1/release_lock#1" not in live.open:
        live.finish(next(iter(live.open)))
    again = replay(app, live.state, now_ms=live.now_ms + 3_600_000)
    assert list(again.open) == ["lock#1/release_lock#1"]
    assert again.run().result == "done"


def test_a_release_that_fails_leaves_the_result_and_the_other_releases() -> None:
    app, _ = locks()
    live = Play(app, new_state(input=False)).start()
    while "lock#2/release_lock#1" not in live.open:
        live.finish(next(iter(live.open)))
    live.finish("lock#2/release_lock#1", kind="absent")
    assert list(live.open) == ["lock#1/release_lock#1"]
    assert live.run().result == "done"
    assert replay(app, live.state).result == "done"


def test_outcomes_that_come_while_replay_waits_for_a_handle_are_fed_after_the_record() -> None:
    app = App("a")

    @app.step(valid_for=timedelta(minutes=1))
    def url(fx: Any) -> str:
        return "https://upload.example/1"

    charge, load = acting(app, "charge"), reading(app, "load")

    async def body(ctx: RunContext) -> Any:
        order: list[str] = []

        async def other() -> None:
            order.append(await ctx.step(charge, "other"))

        async def main() -> None:
            await ctx.step(url)
            order.append(await ctx.step(load, "first"))
            order.append(await ctx.step(load, "second"))

        await ctx.gather(other(), main())
        return order

    running(app, body)
    live = Play(app, new_state()).start()
    live.intend("gather#1[0]/charge#1")
    live.finish("gather#1[1]/url#1")
    live.finish("gather#1[1]/load#1")
    late = replay(app, live.state, now_ms=live.now_ms + 600_000)
    assert list(late.open) == ["gather#1[1]/url#1"]
    late.open["gather#1[0]/charge#1"] = Unsettled(
        "gather#1[0]/charge#1", app.steps["charge"], False
    )
    late.finish("gather#1[0]/charge#1")
    assert late.end is None
    late.finish("gather#1[1]/url#1")
    late.open.pop("gather#1[0]/charge#1", None)
    late.finish("gather#1[1]/load#2")
    assert late.result == ["first", "other", "second"]


def test_cleanup_runs_no_run_code_and_releases_what_is_held() -> None:
    app, done = locks()
    live = Play(app, new_state(input=False)).start()
    for slot in ("lock#1", "lock#2", "write#1"):
        live.finish(slot)
    done.clear()
    cleanup = Play(app, live.state, cleanup_only=True, now_ms=live.now_ms).run()
    assert done == ["release b", "release a"]
    assert cleanup.end == Returned(None)
    for prefix in cleanup.history:
        again = Play(app, prefix, cleanup_only=True, now_ms=live.now_ms).run()
        assert again.end == Returned(None)


def test_a_resumed_run_acquires_anew_what_its_first_end_released() -> None:
    """A failed run that a person lets go on: its releases are recorded, its code is not over."""
    app, done = locks()
    failed = Play(app, new_state(input=True)).run()
    assert isinstance(failed.end, Raised)
    repaired = failed.state._replace(input=encode_value(False))
    done.clear()
    again = replay(app, repaired, now_ms=failed.now_ms)
    assert again.asked == [Unsettled("lock#1", app.steps["lock"], True, asked_first(failed, 0))]
    again.now_ms = failed.now_ms
    again.run()
    assert again.result == "done"
    assert done == ["write y under 2", "release b", "release a"]
    assert {"lock#1/release_lock#2", "lock#2/release_lock#2"} < set(again.state.slots)
    assert replay(app, again.state, now_ms=again.now_ms).result == "done"


def test_errors_are_refold_errors_with_a_code() -> None:
    assert isinstance(StepError("ValueError", "bad"), RefoldError)
    assert "(R403)" in str(StepError("ValueError", "bad", slot="charge#1"))
    assert "(R412)" in str(RunTornDown("ctx.step", "run-1"))
    assert not isinstance(RunTornDown("ctx.step", "run-1"), Exception)
