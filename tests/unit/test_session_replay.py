"""Whatever order outcomes come in, a run replayed from any prefix of its record goes the same."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold import App, Policy, RunContext
from refold.engine.session import CursorAsked, Diverged, LogLine, Raised, Returned, Unsettled
from refold_projections.fold.state import RunState
from support.play import Fails, Play, new_state, replay

app = App("replayed")


class Declined(Exception):
    pass


@app.step(policy=Policy.RE_EXECUTABLE)
def read(what: str, extra: int = 0) -> str:
    return f"{what}+{extra}"


@app.step(not_done=(Declined,))
def act(fx: Any, number: int) -> int:
    return number * 10


@app.step
def fail(number: int) -> int:
    if number % 2:
        raise Declined(f"declined {number}")
    raise Fails(f"no {number}")


@app.run("test")
async def program(ctx: RunContext, plan: list[Any]) -> Any:
    """Interprets a program, so that hypothesis can write run functions."""
    return await block(ctx, plan)


async def block(ctx: RunContext, plan: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for kind, body in plan:
        try:
            seen.append(await STATEMENTS[kind](ctx, body))
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}"[:60])
    seen.append(ctx.uuid().hex[:6])
    return seen


async def do_step(ctx: RunContext, body: int) -> Any:
    ctx.log.info("step", number=body)
    return await ctx.step(read, f"r{body}", extra=body)


async def do_act(ctx: RunContext, body: int) -> Any:
    return await ctx.step(act, body), ctx.now().isoformat()


async def do_fail(ctx: RunContext, body: int) -> Any:
    return await ctx.step(fail, body)


async def do_raise(ctx: RunContext, body: int) -> Any:
    raise KeyError(body)


async def do_gather(ctx: RunContext, body: list[Any]) -> Any:
    return await ctx.gather(*(branch(ctx, part) for part in body))


async def do_named(ctx: RunContext, body: list[Any]) -> Any:
    return await ctx.gather(**{f"b{i}": block(ctx, part) for i, part in enumerate(body)})


async def branch(ctx: RunContext, part: list[Any]) -> Any:
    """A branch that fails if the last thing it saw was a failure."""
    seen = await block(ctx, part)
    if len(seen) > 1 and isinstance(seen[-2], str) and seen[-2].startswith(("Decl", "Step")):
        raise Fails(seen[-2])
    return seen


async def do_chunks(ctx: RunContext, body: int) -> Any:
    return await ctx.map(read, [f"m{i}" for i in range(body)], every=2)


async def do_items(ctx: RunContext, body: int) -> Any:
    return await ctx.map(act, range(body), concurrency=2)


async def do_failing_items(ctx: RunContext, body: int) -> Any:
    return await ctx.map(fail, range(body), concurrency=2)


async def do_each(ctx: RunContext, body: tuple[int, list[Any], bool]) -> Any:
    count, part, leave = body
    loop = ctx.each(range(count), every=2, state=[0])
    async for batch, state in loop:
        seen = await block(ctx, part)
        state.append(len(seen) + sum(batch) + ctx.random.randrange(100))
        batch.commit(state)
        if leave and batch.start >= 2:
            break
    after = await ctx.step(read, "after", extra=loop.state[-1])
    return loop.state, after, ctx.now().isoformat()


STATEMENTS: dict[str, Callable[[RunContext, Any], Any]] = {
    "step": do_step,
    "act": do_act,
    "fail": do_fail,
    "raise": do_raise,
    "gather": do_gather,
    "named": do_named,
    "chunks": do_chunks,
    "items": do_items,
    "failing": do_failing_items,
    "each": do_each,
}

small = st.integers(0, 3)
leaves = st.one_of(
    st.tuples(st.sampled_from(["step", "act", "fail", "raise"]), small),
    st.tuples(st.sampled_from(["chunks", "items", "failing"]), st.integers(0, 5)),
)
plans = st.recursive(
    st.lists(leaves, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(st.sampled_from(["gather", "named"]), st.lists(inner, max_size=3)),
            st.tuples(st.just("each"), st.tuples(st.integers(0, 5), inner, st.booleans())),
        ),
        max_size=3,
    ),
    max_leaves=8,
)


def told(asks: list[Any]) -> list[Any]:
    """Asks as far as two processes must agree on them."""
    kept: list[Any] = []
    for ask in asks:
        match ask:
            case Returned(result=result):
                kept.append(("returned", result))
            case Raised(error=error):
                kept.append(("raised", type(error), str(error)))
            case Unsettled(slot=slot):
                kept.append(slot)
            case CursorAsked(slot=slot, cursor=cursor, state=state):
                kept.append((slot, cursor, state))
            case LogLine() | Diverged():
                kept.append(ask)
            case _:
                kept.append((ask.slot, getattr(ask, "fingerprint", None)))
    return kept


@pytest.mark.untraced
@settings(max_examples=150, deadline=None)
@given(plans, st.data())
def test_every_prefix_of_the_record_leads_to_the_same_end(plan: list[Any], data: Any) -> None:
    live = Play(app, new_state(input=plan))
    intents: dict[str, None] = {}

    def choose(slots: list[str]) -> str:
        slot: str = data.draw(st.sampled_from(slots))
        if data.draw(st.booleans()):
            other = data.draw(st.sampled_from(slots))
            live.intend(other)
            intents[other] = None
        return slot

    live.run(choose)
    for prefix in live.history:
        again = replay(app, prefix, now_ms=prefix_ms(prefix))
        waiting = set(again.session.waiting_slots)
        assert again.end is None or again.session.ended
        assert waiting == set(again.open)
        # The rest of the record, in the live run's order, leads to the live run's end.
        later = [
            slot.name
            for slot in sorted(
                live.state.slots.values(), key=lambda s: s.outcome.order if s.outcome else -1
            )
            if prefix.slots.get(slot.name) is None or prefix.slots[slot.name].outcome is None
        ]
        for name in later:
            outcome = live.state.slots[name].outcome
            assert outcome is not None
            again.finish(
                name,
                kind=outcome.kind,
                value=outcome.value,
                error=outcome.error,
                at_ms=outcome.at_ms,
            )
        assert told([again.end]) == told([live.end])
        assert not again.session.waiting_slots


def prefix_ms(state: RunState) -> int:
    """The time of the last outcome: a new process cannot be earlier."""
    orders = [slot.outcome for slot in state.slots.values() if slot.outcome]
    return max((outcome.at_ms for outcome in orders), default=state.started_ms)


@settings(max_examples=100, deadline=None)
@given(plans, st.data())
def test_the_whole_record_is_read_without_asking_again(plan: list[Any], data: Any) -> None:
    live = Play(app, new_state(input=plan))
    live.run(lambda slots: data.draw(st.sampled_from(slots)))
    again = replay(app, live.state, now_ms=live.now_ms)
    assert told([a for a in again.asked if not isinstance(a, LogLine)]) == told([live.end])


@settings(max_examples=50, deadline=None)
@given(plans, st.data())
def test_asks_of_a_prefix_are_those_of_the_live_run(plan: list[Any], data: Any) -> None:
    live = Play(app, new_state(input=plan))
    open_at: dict[int, set[str]] = {}

    def choose(slots: list[str]) -> str:
        open_at[len(live.history) - 1] = set(slots)
        slot: str = data.draw(st.sampled_from(slots))
        return slot

    live.run(choose)
    for index, slots in open_at.items():
        again = replay(app, live.history[index], now_ms=live.now_ms)
        assert set(again.open) == slots


@pytest.mark.parametrize("leave", [False, True])
def test_a_loop_replayed_behind_its_cursor_computes_the_same(leave: bool) -> None:
    plan = [("each", (5, [("step", 1), ("act", 2)], leave))]
    live = Play(app, new_state(input=plan)).run()
    assert isinstance(live.result, list)
    for prefix in live.history:
        again = replay(app, prefix, now_ms=live.now_ms)
        while again.end is None:
            again.finish(next(iter(again.open)))
        assert isinstance(again.result, list)
        assert again.result[0][0] == live.result[0][0]
