"""Field reports on identity: a retry that is a new purchase, and keys that a model invented.

F01: the task was run again after its tool timed out, and paid twice. F02: the key was minted by the
model, or derived from fields that differ at every try.
"""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from refold import App, Effect, Policy, RunContext
from refold_schemas.events import StepFailed, StepInDoubt, StepIntended
from refold_schemas.values import decode_value, effect_key
from support.lab import Lab
from support.vendor import After, Vendor, die, drop, hang

TIMEOUT = timedelta(seconds=2)


def payments(vendor: Vendor, policy: Policy) -> App:
    app = App("payments")
    options: dict[str, Any] = {"policy": policy, "timeout": TIMEOUT}
    if policy is Policy.RESOLVABLE:
        options |= {"lookup": vendor.find, "settle": timedelta(seconds=1)}
    if policy is Policy.KEYED:
        options |= {"key_ttl": timedelta(hours=24)}

    @app.step(**options)
    async def charge(fx: Effect, pence: int) -> str:
        return await vendor.act(fx, pence=pence)

    @app.run("task", plan=["charge"])
    async def task(ctx: RunContext, pence: int) -> str:
        return await ctx.step(charge, pence)

    return app


def play(lab: Lab, app: App, after: After) -> None:
    """The run, with a second worker where the first one died of it."""
    lab.start("task", 4160)
    first = lab.worker(app)
    if after is die:
        assert lab.run(10, until=lambda: not first.alive)
        lab.worker(app)


@pytest.mark.parametrize("after", [drop, hang, die])
@pytest.mark.parametrize("policy", [Policy.RESOLVABLE, Policy.KEYED])
def test_a_lost_answer_is_no_second_purchase_f01(policy: Policy, after: After) -> None:
    lab, vendor = Lab(), Vendor()
    vendor.after = [after]
    play(lab, payments(vendor, policy), after)
    # Between the two it is neither failed nor missing: the record says that nobody knows.
    if after is die:
        assert lab.run(10, until=lambda: lab.status() == "in_doubt")
        assert [entry.slot for entry in lab.boundary().in_doubt] == ["charge#1"]
    assert lab.run(60, until=lab.ended)
    told = [event.slot for event in lab.events(StepInDoubt) if isinstance(event, StepInDoubt)]
    assert told == ([] if after is die else ["charge#1"])
    assert lab.events(StepFailed) == []
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    assert decode_value(ended.result) == "receipt-1"
    assert list(vendor.done.values()) == ["receipt-1"]
    assert len(vendor.per_key) == 1
    if policy is Policy.RESOLVABLE:
        assert (len(vendor.calls), vendor.lookups) == (1, 1)


@pytest.mark.parametrize("after", [drop, hang, die])
def test_a_lost_answer_that_nobody_can_look_up_waits_for_a_person_f01(after: After) -> None:
    lab, vendor = Lab(), Vendor()
    vendor.after = [after]
    play(lab, payments(vendor, Policy.ESCALATE), after)
    assert lab.run(60, until=lambda: lab.needs("person"))
    lab.run(3600)
    assert len(vendor.calls) == 1
    assert lab.status() == "in_doubt"
    said = [event.text for event in lab.told if event.kind == "in_doubt"]
    assert len(said) == 1
    assert said[0].startswith("charge#1: ")
    (entry,) = lab.boundary().in_doubt
    (intent,) = lab.events(StepIntended)
    assert isinstance(intent, StepIntended)
    assert (entry.step, entry.effect_key) == ("charge", intent.effect_key)


def shopping(vendor: Vendor, told: list[dict[str, Any]]) -> App:
    """A model invents keys, and run code stamps each call with a clock that no replay repeats."""
    app = App("shopping")
    ticks = count(1)

    @app.model()
    async def decide() -> dict[str, Any]:
        return {"sku": "KETTLE-17", "pence": 4160, "idempotency_key": f"model-{next(ticks)}"}

    @app.step(
        policy=Policy.KEYED,
        key_ttl=timedelta(hours=24),
        timeout=TIMEOUT,
        volatile=("created_at", "request_id"),
    )
    async def buy(
        fx: Effect, sku: str, pence: int, idempotency_key: str, created_at: int, request_id: str
    ) -> str:
        return await vendor.act(
            fx,
            sku=sku,
            pence=pence,
            idempotency_key=idempotency_key,
            created_at=created_at,
            request_id=request_id,
        )

    @app.run("shop")
    async def shop(ctx: RunContext) -> str:
        wanted = await ctx.step(decide)
        stamped = {**wanted, "created_at": next(ticks), "request_id": f"request-{next(ticks)}"}
        told.append(stamped)
        return await ctx.step(buy, **stamped)

    return app


def test_one_intent_has_one_key_and_one_set_of_arguments_f02() -> None:
    """Attempt 1 hangs, 2 dies with its process, 3 and 4 are made after takeovers."""
    lab, vendor = Lab(), Vendor()
    vendor.after = [hang, die, die]
    told: list[dict[str, Any]] = []
    app = shopping(vendor, told)
    lab.start("shop")
    for _ in range(3):
        process = lab.worker(app)
        lab.run(60, until=lambda process=process: lab.ended() or not process.alive)  # type: ignore[misc]
    assert lab.ended()
    assert [call.attempt for call in vendor.calls] == [1, 2, 3, 4]
    assert len({call.process for call in vendor.calls}) == 3
    # What differed at each replay is sent as it was first recorded.
    assert len({(t["created_at"], t["request_id"]) for t in told}) == len(told) == 3
    assert all(call.arguments == told[0] for call in vendor.calls)
    # The key is refold's own, and neither the model nor a clock has a part in it.
    lasting = {name: told[0][name] for name in ("sku", "pence", "idempotency_key")}
    expected = effect_key("lab", "run-1", 0, "buy#1", 0, "buy", lasting)
    assert {call.key for call in vendor.calls} == {expected}
    assert expected != told[0]["idempotency_key"]
    assert len(vendor.done) == 1


@pytest.mark.parametrize("created_at", [0, 1_764_460_800])
def test_what_is_volatile_has_no_part_in_the_key_f02(created_at: int) -> None:
    """The same purchase, stamped otherwise from its first try on, has the same key."""
    lab, vendor = Lab(), Vendor()
    app = App("stamps")

    @app.step(policy=Policy.KEYED, key_ttl=None, volatile=("created_at",))
    async def buy(fx: Effect, pence: int, created_at: int) -> str:
        return await vendor.act(fx, pence=pence, created_at=created_at)

    @app.run("shop")
    async def shop(ctx: RunContext) -> str:
        return await ctx.step(buy, 4160, created_at)

    lab.start("shop")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    (call,) = vendor.calls
    assert call.arguments == {"pence": 4160, "created_at": created_at}
    assert call.key == effect_key("lab", "run-1", 0, "buy#1", 0, "buy", {"pence": 4160})
