"""What run code is given is what it is given on replay, whoever still holds the original."""

import asyncio
import json
from typing import Any

import pytest

from refold import App, Policy, RunContext
from refold.engine.attempts import storable_copy
from support.lab import Lab


def lived(app: App) -> Lab:
    """A lab in which the run has ended."""
    lab = Lab()
    lab.start("main")
    lab.worker(app)
    assert lab.run(30, until=lambda: lab.ended())
    return lab


def result(lab: Lab) -> Any:
    """What the run returned."""
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None, ended.error
    return json.loads(ended.result.body or b"")


@pytest.mark.parametrize("policy", [Policy.RE_EXECUTABLE, Policy.ESCALATE])
@pytest.mark.parametrize("durable", ["each", None])
def test_who_returned_a_value_may_go_on_changing_it(policy: Policy, durable: Any) -> None:
    app = App("changing")
    held: dict[str, Any] = {"lines": [1], "open": True}

    async def go_on(given: dict[str, Any]) -> None:
        for number in range(50):
            given["lines"].append(number)
            await asyncio.sleep(0)

    going: list[asyncio.Task[None]] = []

    @app.step(policy=policy)
    async def work() -> dict[str, Any]:
        going.append(asyncio.get_running_loop().create_task(go_on(held)))
        return held

    @app.run("main", durable=durable)
    async def main(ctx: RunContext) -> list[Any]:
        first = await ctx.step(work)
        first["lines"].append("run code's own")
        first["open"] = None
        return [first, held is first]

    lab = lived(app)
    given, is_theirs = result(lab)
    recorded = json.loads(lab.state().slots["work#1"].outcome.value.body)  # type: ignore[union-attr, arg-type]
    assert recorded["open"] is True, "run code changed what is recorded"
    assert given == {"lines": [*recorded["lines"], "run code's own"], "open": None}
    assert not is_theirs


def test_only_plain_data_is_copied() -> None:
    class Odd(dict[str, int]):
        """Not a dict when it is stored."""

    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    for value in ((1, 2), {1: 2}, {"a": (1,)}, [b"x"], Odd(a=1), deep, endless, float("nan")):
        stored, unrecordable, fresh = storable_copy(value, 1 << 20)
        assert (stored is None) is (unrecordable is not None)
        assert fresh is None or stored is None


def test_what_is_too_large_is_not_given_either() -> None:
    stored, unrecordable, fresh = storable_copy(["x" * 100], 50)
    assert stored is None
    assert fresh is None
    assert unrecordable is not None
