"""States of runs that nobody works on are packed, and nobody waits long for it."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from refold import App, RunContext
from refold_projections.fold.packed import RunStates
from support.lab import Lab

QUICK = [f"quick-{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def _end_of_labs() -> Iterator[None]:
    yield
    while Lab.made:
        Lab.made.pop().end()


def test_ended_runs_are_packed_one_a_turn_while_another_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab, app = Lab(), App("packing")
    packed: dict[str, int] = {}
    turns = 0
    kept = RunStates.pack

    def turn() -> None:
        nonlocal turns
        turns += 1

    def pack(self: RunStates, run_id: str, mark: Any) -> None:
        packed[run_id] = turns
        asyncio.get_running_loop().call_soon(turn)
        kept(self, run_id, mark)

    monkeypatch.setattr(RunStates, "pack", pack)

    @app.run("quick")
    async def quick(ctx: RunContext) -> None:
        pass

    @app.run("r")
    async def r(ctx: RunContext) -> None:
        for _ in range(300):
            await ctx.sleep(timedelta(milliseconds=100))

    lab.start("r")
    for run_id in QUICK:
        lab.start("quick", run_id=run_id)
    lab.worker(app)
    assert lab.run(25, until=lambda: packed.keys() >= set(QUICK))
    assert not lab.ended()
    assert len({packed[run_id] for run_id in QUICK}) == len(QUICK)
