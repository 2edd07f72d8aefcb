"""An "absent" that was a slot's last word is looked up once more a day later, whatever happens."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from refold import Absent, App, Effect, Found, NotDone, Policy, RunContext
from refold.testing.sim_loop import current_process
from refold.worker import WorkerSettings
from refold_schemas.events import EvidenceConflict, TimerCancelled, TimerFired, TimerScheduled
from support.lab import Lab

THEN_S = 600
"""A day is as long as ten minutes here: an idle hour costs a second of real time."""
AN_HOUR_S = 3600
WITHIN_S = 60
Timed = TimerScheduled | TimerFired | TimerCancelled


@pytest.fixture(autouse=True)
def _end_of_labs() -> Iterator[None]:
    yield
    while Lab.made:
        Lab.made.pop().end()


class Bank:
    """A far system that charged a card, and does not find it for a while."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.found = False
        self.looks = 0
        self.hangs = self.kills = False

    async def look(self, key: str) -> Found[str] | Absent:
        self.looks += 1
        if self.hangs:
            await current_process().loop.create_future()
        if self.kills:
            current_process().kill()
            await asyncio.sleep(0)
        return Found("charged") if self.found else Absent()

    def app(self, *, with_charge: bool = True) -> App:
        app = App("shop")

        @app.run("pay")
        async def pay(ctx: RunContext, pence: int) -> str:
            return await ctx.step(charge, pence)

        async def charge(fx: Effect, pence: int) -> str:
            self.keys.append(fx.key)
            await current_process().loop.create_future()
            return ""

        if with_charge:
            charge = app.step(
                policy=Policy.RESOLVABLE,
                key_ttl=None,
                timeout=timedelta(seconds=5),
                settle=timedelta(seconds=1),
                lookup=self.look,
            )(charge)
        return app


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def lab(bank: Bank) -> Lab:
    """A run that was cancelled while its charge was in doubt, which was looked up and not found."""
    lab = Lab(settings=WorkerSettings(proof_after_ms=THEN_S * 1000))
    lab.start("pay", 4160)
    lab.worker(bank.app())
    assert lab.run(WITHIN_S, until=lambda: bool(bank.keys))
    lab.cancel()
    assert lab.run(WITHIN_S, until=lab.ended)
    assert lab.state().slots["charge#1"].absent_until_proven
    bank.looks, bank.found = 0, True
    return lab


def told(lab: Lab) -> list[str]:
    """What the log says of proofs, in order."""
    return [
        type(one).__name__
        for one in lab.events()
        if isinstance(one, EvidenceConflict)
        or (isinstance(one, Timed) and one.timer_id.startswith("proof:"))
    ]


def conflicts(lab: Lab) -> tuple[str, ...]:
    return lab.boundary().conflicts


def test_what_is_found_then_is_a_conflict_and_nothing_is_owed_any_more(
    lab: Lab, bank: Bank
) -> None:
    assert not lab.run(THEN_S - WITHIN_S, until=lambda: bool(bank.looks))
    assert lab.run(2 * WITHIN_S, until=lambda: conflicts(lab) == ("charge#1",))
    assert not lab.state().timers
    assert not lab.run(2 * AN_HOUR_S, until=lambda: bank.looks > 1)
    assert told(lab).count("EvidenceConflict") == 1


def test_what_is_absent_then_too_is_not_asked_for_again(lab: Lab, bank: Bank) -> None:
    bank.found = False
    assert lab.run(THEN_S + WITHIN_S, until=lambda: bool(bank.looks) and not lab.state().timers)
    assert told(lab) == ["TimerScheduled", "TimerFired", "TimerScheduled", "TimerCancelled"]
    assert not lab.run(2 * AN_HOUR_S, until=lambda: bank.looks > 1)
    assert conflicts(lab) == ()


def test_a_worker_that_dies_while_it_looks_leaves_the_look_to_the_next_one(
    lab: Lab, bank: Bank
) -> None:
    bank.hangs = True
    assert lab.run(THEN_S + WITHIN_S, until=lambda: bool(bank.looks))
    for process in lab.universe.processes:
        process.kill()
    bank.hangs = False
    lab.worker(bank.app(), name="next")
    assert lab.run(AN_HOUR_S + 2 * WITHIN_S, until=lambda: conflicts(lab) == ("charge#1",))


def test_a_lookup_that_kills_its_process_does_so_once_an_hour(lab: Lab, bank: Bank) -> None:
    bank.kills = True
    assert lab.run(THEN_S + WITHIN_S, until=lambda: bool(bank.looks))
    lab.worker(bank.app(), name="second")
    assert not lab.run(AN_HOUR_S - 2 * WITHIN_S, until=lambda: bank.looks > 1)
    assert lab.run(4 * WITHIN_S, until=lambda: bank.looks > 1)
    bank.kills = False
    lab.worker(bank.app(), name="third")
    assert lab.run(AN_HOUR_S + 2 * WITHIN_S, until=lambda: conflicts(lab) == ("charge#1",))


def test_a_lookup_without_an_answer_is_made_again_an_hour_later(lab: Lab, bank: Bank) -> None:
    bank.hangs = True
    assert lab.run(THEN_S + WITHIN_S, until=lambda: bool(bank.looks))
    lab.run(WITHIN_S)
    bank.hangs = False
    assert not lab.run(AN_HOUR_S - 4 * WITHIN_S, until=lambda: bank.looks > 1)
    assert lab.run(6 * WITHIN_S, until=lambda: conflicts(lab) == ("charge#1",))


def test_a_step_that_the_code_of_that_day_lacks_is_looked_up_by_code_that_has_it(
    lab: Lab, bank: Bank
) -> None:
    for process in lab.universe.processes:
        process.kill()
    lab.worker(bank.app(with_charge=False), name="without")
    lab.run(THEN_S + WITHIN_S)
    assert told(lab) == ["TimerScheduled"]
    for process in lab.universe.processes:
        process.kill()
    lab.worker(bank.app(), name="with")
    assert lab.run(2 * WITHIN_S, until=lambda: conflicts(lab) == ("charge#1",))


def test_a_run_whose_result_is_too_large_owes_its_proofs_too(bank: Bank) -> None:
    lab, app = Lab(settings=WorkerSettings(proof_after_ms=THEN_S * 1000)), App("shop")

    @app.step(
        policy=Policy.RESOLVABLE,
        timeout=timedelta(seconds=5),
        settle=timedelta(seconds=1),
        lookup=bank.look,
    )
    async def charge(fx: Effect) -> str:
        bank.keys.append(fx.key)
        if len(bank.keys) > 1:
            raise NotDone("declined")
        await current_process().loop.create_future()
        return ""

    @app.run("pay")
    async def pay(ctx: RunContext) -> str:
        with suppress(NotDone):
            await ctx.step(charge)
        return "x" * 5_000_000

    lab.start("pay")
    lab.worker(app)
    assert lab.run(WITHIN_S, until=lab.ended)
    assert [one.kind for one in lab.state().timers.values()] == ["proof"]
    bank.looks, bank.found = 0, True
    assert lab.run(THEN_S + WITHIN_S, until=lambda: conflicts(lab) == ("charge#1",))
