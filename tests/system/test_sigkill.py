"""Real SIGKILLs on an SQLite log: the refund agent dies at named moments and finishes once.

Each chain is one run with several lives. A life is a worker process that kills itself at one
moment of one step; then, with nobody alive, the record must already say what is done and what is
in doubt, and the next life goes on. The world keeps its ledger in a file of its own.
"""

import asyncio
import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from refold.client import Client
from refold.client.questions import BoundaryAt
from refold.testing.explore import Moment
from refund_agent.values import Case, Outcome

CHILD = Path(__file__).parents[1] / "support" / "dying_worker.py"
WRITES = ("open_ticket#1", "send_email#1", "issue_refund#1", "put_note#1")
MIXED = (
    "decide#3",
    "open_ticket#1",
    "read_policy#1",
    "send_email#1",
    "issue_refund#1",
    "decide#31",
)
DEATHS = {
    Moment.INTENT_LOST: WRITES,
    Moment.INTENT_STORED: WRITES,
    Moment.BEFORE_EFFECT: MIXED,
    Moment.AFTER_EFFECT: MIXED,
    Moment.AFTER_OUTCOME: MIXED,
}
DOUBTFUL = (Moment.INTENT_STORED, Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT)
KINDS = {
    "open_ticket#1": "ticket",
    "send_email#1": "email",
    "issue_refund#1": "refund",
    "put_note#1": "note",
}
LIFE_MAX_S = 60
EFFECTS = {"ticket": 1, "email": 1, "refund": 1, "note": 1}
ACTED = (Moment.AFTER_EFFECT, Moment.AFTER_OUTCOME)


def effects(folder: Path) -> dict[str, int]:
    """What was done in the world, counted in its own ledger; only while nobody else has it."""
    with closing(sqlite3.connect(folder / "world.db")) as ledger:
        return dict(Counter(kind for (kind,) in ledger.execute("SELECT kind FROM effects")))


def lines(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []


def in_doubt(found: BoundaryAt) -> list[str]:
    return [entry.slot for entry in found.boundary.in_doubt]


class Chain:
    """One run, its lives, and the person who looks at the ledger and says what happened."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        self.folder, self.moment = folder, moment
        self.lives = 0
        self.asked: list[str] = []
        self.ledger: dict[str, int] = {}
        self.done_after: list[set[str]] = []

    async def live(self, client: Client, slot: str = "") -> int:
        """One life, to its end; returns the exit status of the process, negative for a signal."""
        self.lives += 1
        end = (slot, self.moment.value) if slot else ()
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            CHILD,
            str(self.folder),
            str(self.lives),
            *end,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        person = asyncio.create_task(self.speak(client))
        try:
            async with asyncio.timeout(LIFE_MAX_S):
                status = await child.wait()
            self.ledger = effects(self.folder)
            return status
        finally:
            person.cancel()
            await asyncio.wait([person])
            if child.returncode is None:
                child.kill()

    async def speak(self, client: Client) -> None:
        """Settle what is handed to a person, truthfully: the sender's ledger knows."""
        handle = client.handle("run-1")
        while True:
            seen = await handle.wait()
            if seen.needs != "person":
                return
            (entry,) = seen.in_doubt
            self.asked.append(entry.slot)
            happened = self.ledger.get(KINDS[entry.slot], 0) == 1
            try:
                await client.resolve("run-1", entry.slot, happened=happened, result={"sent": True})
            except Exception as error:  # too early: a call could still act
                assert "may still reach" in str(error)  # noqa: PT017 - the loop goes on
                await asyncio.sleep(0.3)


@pytest.mark.parametrize("moment", DEATHS, ids=str)
def test_a_killed_worker_does_nothing_twice(moment: Moment, tmp_path: Path) -> None:
    asyncio.run(die_and_finish(moment, tmp_path))


async def die_and_finish(moment: Moment, tmp_path: Path) -> None:
    chain = Chain(tmp_path, moment)
    async with Client(f"sqlite:///{tmp_path}/log.db", create=True) as client:
        starting = asyncio.create_task(
            client.start("refund-agent", Case(order_id="48211"), run_id="run-1")
        )
        for number, slot in enumerate(DEATHS[moment], 1):
            status = await chain.live(client, slot)
            await starting
            # Killed, there, and nowhere else.
            assert status == -9
            assert lines(tmp_path / "deaths")[number - 1 :] == [[str(number), slot, moment.value]]
            found = await client.boundary_at("run-1")
            check_moment(chain, found, slot)
            chain.done_after.append({entry.slot for entry in found.boundary.done})
        assert await chain.live(client) == 0
        handle = client.handle("run-1")
        outcome = await handle.result(as_type=Outcome)
        check_end(chain, outcome)
        assert [e.slot for e in (await client.boundary_at("run-1")).boundary.in_doubt] == []


def check_moment(chain: Chain, found: BoundaryAt, slot: str) -> None:
    """With nobody alive: what the record and the world say is what this moment means."""
    done = [entry.slot for entry in found.boundary.done]
    doubtful = in_doubt(found)
    assert (slot in done) == (chain.moment is Moment.AFTER_OUTCOME)
    assert found.boundary.under_way == ()
    assert len(doubtful) <= 1
    if slot in KINDS:
        assert doubtful == ([slot] if chain.moment in DOUBTFUL else [])
        assert chain.ledger.get(KINDS[slot], 0) == (chain.moment in ACTED)


def check_end(chain: Chain, outcome: Any) -> None:
    """Every effect once, what was recorded never entered again, one person asked one thing."""
    assert (outcome.turns, outcome.tool_calls, outcome.refunded_pence) == (40, 10, 4160)
    assert chain.ledger == EFFECTS
    entered = [(int(life), slot) for life, slot in lines(chain.folder / "entered")]
    for life, done in enumerate(chain.done_after, 1):
        assert [slot for number, slot in entered if number > life and slot in done] == []
    asks = chain.moment in DOUBTFUL
    assert set(chain.asked) == ({"send_email#1"} if asks else set())
    times = Counter(slot for _, slot in entered)
    assert times["send_email#1"] == times["issue_refund#1"] == 1
    assert times["open_ticket#1"] == (2 if chain.moment is Moment.AFTER_EFFECT else 1)


def test_the_chains_hold_enough_deaths() -> None:
    deaths = [(slot, moment) for moment, slots in DEATHS.items() for slot in slots]
    assert len(set(deaths)) == len(deaths) == 26
    assert set(DEATHS) == set(Moment)
