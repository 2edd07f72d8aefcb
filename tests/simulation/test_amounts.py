"""Declared amounts: on record before the first intent of their step, once a run, free elsewhere."""

from datetime import timedelta
from decimal import Decimal

import pytest

from refold import App, Effect, Policy, Retry, RunContext
from refold.testing.sim_loop import SimProcess
from refold_projections.fold import LedgerEntry, ledger
from refold_schemas.errors.run import RegistrationRefused
from refold_schemas.events import AmountsDeclared, StepIntended
from support.lab import Lab


class Declined(Exception):
    """The bank refused."""


def shop(amounts: tuple[str, ...], *, declines: int = 0) -> App:
    app = App("shop")
    left = [declines]

    @app.step(
        policy=Policy.KEYED,
        key_ttl=None,
        amounts=amounts,
        not_done=(Declined,),
        retry=Retry(max_attempts=3, fresh_key_on=(Declined,)),
    )
    async def pay(fx: Effect, order: str, pence: int, fee: Decimal) -> str:
        if left[0]:
            left[0] -= 1
            raise Declined("no")
        return f"paid {order}"

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def read(order: str) -> str:
        return order

    @app.run("order")
    async def order(ctx: RunContext, given: str) -> str:
        await ctx.step(read, given)
        await ctx.step(pay, given, 4160, Decimal("0.50"))
        await ctx.sleep(timedelta(seconds=30))
        return str(await ctx.step(pay, given, 100, Decimal("0.25")))

    return app


def entries(lab: Lab) -> list[LedgerEntry]:
    fold = lab.fold()
    return list(ledger(fold.runs["run-1"], fold.claim_id))


def kinds(lab: Lab) -> list[str]:
    return [type(event).__name__ for event in lab.events()]


def begun(app: App) -> tuple[Lab, SimProcess]:
    lab = Lab()
    process = lab.worker(app)
    lab.start("order", "48211")
    assert lab.run(10, until=lambda: lab.status() == "waiting")
    return lab, process


def test_amounts_stand_before_the_first_intent_and_are_declared_once() -> None:
    lab, process = begun(shop(("pence", "fee")))
    process.kill()
    lab.worker(shop(("pence", "fee")))
    assert lab.run(60, until=lab.ended)
    told = kinds(lab)
    assert told.count("AmountsDeclared") == 1
    assert told.index("AmountsDeclared") + 1 == told.index("StepIntended")
    assert [e.amounts for e in entries(lab)] == [
        {"pence": 4160, "fee": Decimal("0.50")},
        {"pence": 100, "fee": Decimal("0.25")},
    ]


def test_an_effect_without_amounts_leaves_nothing_in_the_log() -> None:
    lab, _ = begun(shop(()))
    assert lab.run(60, until=lab.ended)
    assert "AmountsDeclared" not in kinds(lab)
    assert [e.amounts for e in entries(lab)] == [{}, {}]


def test_other_code_declares_other_amounts() -> None:
    lab, process = begun(shop(("pence", "fee")))
    process.kill()
    lab.worker(shop(("pence",)))
    assert lab.run(60, until=lab.ended)
    declared = lab.events(AmountsDeclared)
    assert declared == [
        AmountsDeclared("pay", ("pence", "fee")),
        AmountsDeclared("pay", ("pence",)),
    ]
    assert [e.amounts for e in entries(lab)] == [{"pence": 4160}, {"pence": 100}]


def test_each_key_that_was_used_is_in_the_ledger() -> None:
    lab, _ = begun(shop(("pence",), declines=2))
    assert lab.run(20, until=lambda: "TimerScheduled" in kinds(lab)[-1:] and len(entries(lab)) == 3)
    intents = [e for e in lab.events() if isinstance(e, StepIntended)]
    assert [(e.effect_key, e.outcome) for e in entries(lab)] == [
        (intents[0].effect_key, "failed"),
        (intents[1].effect_key, "failed"),
        (intents[2].effect_key, "done"),
    ]
    assert {e.amounts["pence"] for e in entries(lab)} == {4160}


def test_amounts_that_cannot_be_are_refused() -> None:
    app = App("shop")
    with pytest.raises(RegistrationRefused, match="no parameter of it"):

        @app.step(amounts=("cents",))
        async def pay(pence: int) -> None: ...

    with pytest.raises(RegistrationRefused, match="RE_EXECUTABLE says that it has none"):

        @app.step(policy=Policy.RE_EXECUTABLE, amounts=("pence",))
        async def read(pence: int) -> None: ...

    with pytest.raises(RegistrationRefused, match="no tuple of names"):

        @app.step(amounts="pence")  # type: ignore[call-overload, untyped-decorator]
        async def charge(pence: int) -> None: ...
