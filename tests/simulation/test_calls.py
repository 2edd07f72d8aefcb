"""The last look belongs to the turn in which the step begins: what lies between may be long."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from refold.app import App, Effect
from refold.engine.calls import Call
from refold.testing.sim_loop import SimProcess, Universe

app = App("calls")
entered: list[str] = []


@app.step(timeout=timedelta(seconds=2))
async def act(fx: Effect) -> str:
    """Note that it began."""
    entered.append(fx.slot)
    return "done"


def play(what: str) -> list[tuple[str, Any]]:
    """Start a call; before its first turn the process freezes, or the call is cancelled."""
    entered.clear()
    universe = Universe(Random(1))
    process = SimProcess(universe, "p")
    ends: list[tuple[str, Any]] = []

    async def main() -> None:
        call = Call(
            run_id="run",
            slot="act#1",
            attempt=1,
            claim_id=bytes(16),
            n=0,
            effect_key="key",
            definition=app.steps["act"],
            arguments={},
            timeout_ms=2_000,
            clock=process,
            ended=lambda call, kind, value: ends.append((kind, value)),
        )
        call.start(process.loop, None)
        if what == "freezes":
            process.freeze(3_000_000)
        elif what == "is cancelled":
            call.cancel()

    process.start(main())
    universe.run(60_000_000)
    assert process.errors == []
    return ends


@pytest.mark.parametrize("what", ["freezes", "is cancelled"])
def test_a_call_that_never_had_its_turn_does_not_act_and_says_so(what: str) -> None:
    assert play(what) == [("expired", None)]
    assert entered == []


def test_a_call_in_time_acts() -> None:
    assert play("goes on") == [("returned", "done")]
    assert entered == ["act#1"]
