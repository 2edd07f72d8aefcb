"""Who speaks to the system: clients that start and cancel runs, a person who settles doubts."""

from typing import TYPE_CHECKING

from refold.log.port import Entry, Topic
from refold.testing.sim_app import RUNS
from refold.testing.sim_shadow import ShadowSlot
from refold.testing.sim_world import receipt
from refold_schemas.commands import CancelRun, ResolveStep, RetryRun, StartRun
from refold_schemas.values import encode_value

if TYPE_CHECKING:
    from refold.testing.simulate import Simulation

AMOUNTS = 21
PERSON_LOOKS_US = 1_000_000


class Clients:
    """Two clients that start runs, repeat themselves, cancel, and now and then send nonsense."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.rng = simulation.random("clients")
        self.run_ids: list[str] = []

    def begin(self) -> None:
        """Plan what the clients do."""
        simulation, rng = self.simulation, self.rng
        profile = simulation.profile
        span_us = int(profile.faults_s * 0.6e6)
        for number in range(profile.runs):
            run = rng.choice(RUNS)
            amount = rng.randrange(AMOUNTS)
            at_us = 100_000 if number == 0 else rng.randint(0, span_us)
            self._plan_run(f"run-{number}", run, amount, at_us)
        if rng.random() < profile.commands_p:
            simulation.universe.later(rng.randint(0, span_us), self._unknown_run)
        if rng.random() < profile.commands_p:
            simulation.universe.later(rng.randint(0, span_us), self._unreadable)

    def _plan_run(self, run_id: str, run: str, amount: int, at_us: int) -> None:
        simulation, rng = self.simulation, self.rng
        universe, odd = simulation.universe, simulation.profile.commands_p
        value = encode_value(amount)
        start = StartRun(f"start-{run_id}", run_id, run, value, None, "client-a")
        self.run_ids.append(run_id)
        repeats = 2 if rng.random() < odd else 1
        if repeats == 2:
            simulation.journal.fault("command repeated", "client-a", run_id)
        universe.later(at_us, lambda: simulation.publish(start, again=repeats))
        if rng.random() < odd:
            other = StartRun(f"again-{run_id}", run_id, run, value, None, "client-b")
            simulation.journal.fault("run started twice", "client-b", run_id)
            universe.later(at_us + rng.randint(0, 2_000_000), lambda: simulation.publish(other))
        if rng.random() < odd * 0.7:
            cancel = CancelRun(f"cancel-{run_id}", run_id, "client-b", "not needed any more")
            after_us = rng.randint(1_000, 8_000_000)
            simulation.journal.fault("cancel", "client-b", run_id)
            times = 2 if rng.random() < odd else 1
            universe.later(at_us + after_us, lambda: simulation.publish(cancel, again=times))

    def _unknown_run(self) -> None:
        self.simulation.journal.fault("command of no run", "client-b")
        self.simulation.publish(CancelRun("cancel-nobody", "nobody", "client-b", "a mistake"))

    def _unreadable(self) -> None:
        simulation = self.simulation
        simulation.journal.fault("command unreadable", "client-b")
        partition = self.rng.randrange(simulation.broker.partition_count)
        junk = bytes(self.rng.randrange(256) for _ in range(self.rng.randint(0, 40)))
        simulation.broker.put(Topic.COMMANDS, partition, [Entry(b"run-0", junk)])


class Person:
    """Looks at the far system and says truthfully whether an escalated effect happened."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.rng = simulation.random("person")
        self._asked_us: dict[tuple[str, str], int] = {}
        self._said = 0

    def begin(self) -> None:
        """Look once a second."""
        self.simulation.universe.later(PERSON_LOOKS_US, self._look)

    def _look(self) -> None:
        simulation = self.simulation
        for run_id, run in sorted(simulation.watch.runs().items()):
            if run.parked is not None and run.ended is None and self._patient(run_id, ""):
                self._said += 1
                simulation.publish(
                    RetryRun(f"retry-{self._said}", run_id, None, False, "person", "looked at it")
                )
            for slot in run.slots.values():
                asked = slot.escalated and slot.outcome is None and slot.undecided()
                if asked and self._patient(run_id, slot.name):
                    self._settle(run_id, slot)
        simulation.universe.later(PERSON_LOOKS_US, self._look)

    def _patient(self, run_id: str, slot: str) -> bool:
        """Whether it has waited long enough; a person takes some seconds to come to it."""
        now_us = self.simulation.universe.now_us
        due_us = self._asked_us.setdefault(
            (run_id, slot), now_us + self.rng.randint(500_000, 6_000_000)
        )
        if now_us < due_us:
            return False
        del self._asked_us[run_id, slot]
        return True

    def _settle(self, run_id: str, slot: ShadowSlot) -> None:
        simulation = self.simulation
        vendor = simulation.vendor
        if vendor.in_flight[run_id, slot.name] > 0:
            return
        deeds = vendor.done(run_id, slot.name)
        self._said += 1
        result = None
        if deeds:
            result = encode_value(receipt(deeds[0].service, deeds[0].amount))
        simulation.publish(
            ResolveStep(
                f"resolve-{self._said}",
                run_id,
                slot.name,
                slot.attempts[-1].number,
                bool(deeds),
                result,
                "person",
                "looked at the far system",
            )
        )
