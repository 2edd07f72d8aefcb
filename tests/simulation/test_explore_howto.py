"""The crash explorer as the how-to shows it: a fresh world, its effects counted, a person asked."""

import inspect

from refold import Absent, App, Effect, Found, RunContext
from refold.testing.explore import CrashExplorer, Moment, explore_crashes

refunds: dict[str, str] = {}
app = App("bank")


@app.step
async def issue_refund(fx: Effect, order_id: str) -> str:
    return refunds.setdefault(fx.key, f"refund-{order_id}")


@app.run("refund-agent")
async def agent(ctx: RunContext, order_id: str) -> str:
    return await ctx.step(issue_refund, order_id)


def person(slot: str, effect_key: str) -> Found[str] | Absent:
    return Found(refunds[effect_key]) if effect_key in refunds else Absent()


def test_one_refund_whatever_moment_the_process_dies_at() -> None:
    found = explore_crashes(
        app,
        "refund-agent",
        "48211",
        moments=(Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT),
        reset=refunds.clear,
        effects=lambda: len(refunds),
        person=person,
        days_max=10,
    )
    assert found.calm.effects == 1
    assert [crash.point.slot for crash in found.crashes] == ["issue_refund#1", "issue_refund#1"]
    assert [crash.effects_before for crash in found.crashes] == [0, 1]
    for crash in found.crashes:
        assert crash.status == "completed", (crash.point.slot, crash.sentence)
        assert crash.effects == 1, f"{crash.effects} refunds after {crash.point}"


def test_the_short_way_takes_every_keyword_of_the_explorer() -> None:
    whole = inspect.signature(CrashExplorer).parameters
    short = inspect.signature(explore_crashes).parameters
    assert {name: whole[name].default for name in whole} == {
        name: short[name].default for name in short if name not in ("points", "moments")
    }
