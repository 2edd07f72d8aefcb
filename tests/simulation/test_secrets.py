"""A secret that pydantic marks as one is in no byte of the log, whatever way it is tried."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from refold import App, Effect, Policy, RunContext
from refold.log.port import Topic
from support.lab import Lab
from support.shop import Account

SECRET = "hunter2-of-the-account"


def bytes_of(lab: Lab) -> bytes:
    return b"\n".join(
        (record.key or b"") + (record.value or b"")
        for topic in Topic
        for record in lab.broker.records(topic, 0)
    )


async def as_an_argument(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["takes"], SecretStr(SECRET))


async def as_an_argument_in_a_list(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["takes"], [{"in": Account(name="a", password=SecretStr(SECRET))}])


async def as_a_volatile_argument(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["volatile"], SecretStr(SECRET))


async def as_a_result_of_a_step(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["gives"])


async def as_a_result_of_a_reading_step(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["reads"])


async def as_the_result_of_the_run(ctx: RunContext, steps: dict[str, Any]) -> object:
    return Account(name="a", password=SecretStr(SECRET))


async def in_an_error_of_the_run(ctx: RunContext, steps: dict[str, Any]) -> object:
    return Account.model_validate({"name": {"x": SECRET}, "password": SECRET})


async def in_an_error_of_a_step(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["fails"])


async def in_a_doubt_of_a_step(ctx: RunContext, steps: dict[str, Any]) -> object:
    return await ctx.step(steps["doubts"])


async def as_a_state_of_a_loop(ctx: RunContext, steps: dict[str, Any]) -> object:
    nothing: object = None
    async for block, _ in ctx.each([1, 2], every=1, state=nothing):
        block.commit(SecretStr(SECRET))
    return None


@pytest.mark.parametrize(
    "way",
    [
        as_an_argument,
        as_an_argument_in_a_list,
        as_a_volatile_argument,
        as_a_result_of_a_step,
        as_a_result_of_a_reading_step,
        as_the_result_of_the_run,
        in_an_error_of_the_run,
        in_an_error_of_a_step,
        in_a_doubt_of_a_step,
        as_a_state_of_a_loop,
    ],
)
def test_no_byte_of_the_log_holds_a_secret(way: Callable[..., Any]) -> None:
    lab, app = Lab(), App("bank")
    steps: dict[str, Any] = {}

    @app.step(policy=Policy.ESCALATE)
    async def takes(fx: Effect, given: Any) -> int:
        return 1

    @app.step(policy=Policy.ESCALATE, volatile=("given",))
    async def volatile(fx: Effect, given: Any) -> int:
        return 1

    @app.step(policy=Policy.ESCALATE)
    async def gives(fx: Effect) -> Any:
        return {"a": [Account(name="a", password=SecretStr(SECRET))]}

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def reads() -> Any:
        return SecretStr(SECRET)

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def fails() -> Any:
        return Account.model_validate({"name": [SECRET]})

    @app.step(policy=Policy.ESCALATE)
    async def doubts(fx: Effect) -> Any:
        return Account.model_validate({"name": [SECRET]})

    for made in (takes, volatile, gives, reads, fails, doubts):
        steps[made.__name__] = made

    @app.run("r")
    async def r(ctx: RunContext) -> Any:
        await ctx.step(takes, "said openly")
        return await way(ctx, steps)

    lab.start("r")
    lab.worker(app)
    lab.run(5)
    stored = bytes_of(lab)
    assert b"said openly" in stored  # what is looked through is what a value is stored as
    assert SECRET.encode() not in stored
