"""The seeded simulation: several workers, faults of every kind, checkers, one seed for all.

`python -m refold.testing.simulate --seed N` runs one world; the same seed gives the same log, byte
for byte. A failing seed prints the broken property and how to see it again.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from refold.engine.settings import WorkerSettings
from refold.log.memory import MemoryBroker
from refold.log.partitions import partition_for
from refold.log.port import Entry, Topic
from refold.testing.sim_app import SERVICES
from refold.testing.sim_checks import Sent, Watch
from refold.testing.sim_codec import shared_codec
from refold.testing.sim_faults import PROFILES, Profile, SeededFaults, profile_of
from refold.testing.sim_loop import SimStuck, Universe
from refold.testing.sim_people import Clients, Person
from refold.testing.sim_processes import Fleet
from refold.testing.sim_readers import Readers
from refold.testing.sim_report import Journal, Report
from refold.testing.sim_strangers import SimRegistry, Strangers, StrangersCodec
from refold.testing.sim_world import SimVendor, VendorRates
from refold_schemas.codec import Codec
from refold_schemas.commands import StartRun
from refold_schemas.values import Value

EPOCH_MS = 1_767_225_600_000
"""Virtual time begins on 2026-01-01 00:00 UTC."""
LEASE_MS = 3_000
QUIET_S = 600
"""Virtual seconds after the end of all faults within which everything must have ended."""
TURNS_MAX = 600_000
PROOF_WAIT_MS = 20_000
"""A proof that is due later than this is not waited for."""

SETTINGS = WorkerSettings(
    append_timeout_ms=2_000,
    idle_after_ms=700,
    drain_ms=1_500,
    repeat_first_ms=500,
    repeat_max_ms=8_000,
    lookup_first_ms=200,
    lookup_max_ms=3_000,
    lookup_timeout_ms=2_000,
    proof_after_ms=15_000,
    checkpoint_events=60,
    checkpoint_ms=4_000,
    reclaim_max_ms=400,
    schema_unknown_ms=5_000,
    schema_ask_max_ms=2_000,
    outbox_max_ms=1_000,
)


class Simulation:
    """One world from its seed to its end."""

    def __init__(self, seed: int, profile: Profile, *, keep_trace: bool = False) -> None:
        self.seed, self.profile = seed, profile
        self.universe = Universe(self.random("turns"))
        self.journal = Journal(lambda: self.universe.now_us, keep_all=keep_trace)
        self.codec = shared_codec()
        self.faults = SeededFaults(
            self.random("log"),
            profile,
            self.journal,
            append_timeout_ms=SETTINGS.append_timeout_ms,
        )
        self.broker = MemoryBroker(
            "sim",
            partition_count=profile.partitions,
            lease_ms=LEASE_MS,
            now_ms=lambda: EPOCH_MS + self.universe.now_us // 1000,
            schedule=self.universe.schedule_ms,
            faults=self.faults,
        )
        self.broker.exists = True
        self.rates = VendorRates(profile.vendor_p, profile.lookup_p, profile.hook_p)
        self.watch = Watch(self.universe, self.broker, self.codec, self.journal)
        self.vendor = SimVendor(
            self.universe, self.random("vendor"), self.journal, SERVICES, self.rates
        )
        self.watch.attach(self.vendor)
        self.universe.after_turn.append(self.watch.look)
        self.readers = Readers(self.watch)
        self.fleet = Fleet(self, EPOCH_MS, LEASE_MS, SETTINGS)
        self.clients = Clients(self)
        self.person = Person(self)
        self.registry = SimRegistry(self.universe, self.random("registry"), self.journal)
        self.strangers = Strangers(
            self.random("strangers"), profile.strangers_p, self.journal, profile.partitions
        )
        self.calm = False
        self.quiet = False

    def codec_of_a_process(self) -> Codec:
        """One that knows what its process has read."""
        if not self.profile.strangers_p:
            return self.codec
        return StrangersCodec(self.registry, self.codec)

    def random(self, name: str) -> Random:
        """A stream of chance of its own, so that one part does not shift another."""
        return Random(f"{self.seed}/{name}")

    def publish(self, command: Any, *, again: int = 1) -> None:
        """Store a command as a client does, `again` times."""
        data = self.codec.encode(command)
        partition = partition_for(command.run_id, self.broker.partition_count)
        kind = type(command).__name__
        sent = self.watch.sent.setdefault(command.command_id, Sent(kind, command.run_id))
        for _ in range(again):
            place, entry = partition, Entry(command.run_id.encode(), data)
            if self.profile.strangers_p:
                place, entry = self.strangers.dress(kind, command.run_id, data, partition)
            sent.offsets.append(self.broker.put(Topic.COMMANDS, place, [entry]))
            sent.published += 1
        self.journal.note(command.by, f"{kind} {command.run_id} {command.command_id}")

    def run(self) -> Report:
        """Play the world to its end and say how it went."""
        self.fleet.begin()
        self.clients.begin()
        self.person.begin()
        if self.profile.strangers_p:
            self.registry.begin()
            place, entry = self.strangers.nobodys()
            self.broker.put(Topic.COMMANDS, place, [entry])
        self.universe.later(int(self.profile.faults_s * 1e6), self.end_of_faults)
        self.universe.later(500_000, self._poll)
        limit_us = int((self.profile.faults_s + QUIET_S) * 1e6)
        try:
            ended = self.universe.run(limit_us, stop=self._over, turns_max=TURNS_MAX)
            if not ended and self.journal.violation is None:
                open_now = "; ".join(self._open())
                self.journal.violate(f"no end within {QUIET_S} s after the last fault: {open_now}")
            if self.journal.violation is None:
                self._close()
        except SimStuck as stuck:
            self.journal.violate(f"no progress of time: {stuck}")
        return self._report()

    def end_of_faults(self) -> None:
        """From here on nothing goes wrong any more, and everything must come to its end."""
        self.journal.note("world", "the faults stop")
        self.calm = True
        self.faults.stop()
        self.registry.end()
        self.rates.call_p = self.rates.lookup_p = self.rates.hook_p = 0.0
        self.fleet.calm()

    def _over(self) -> bool:
        return self.quiet or self.journal.violation is not None

    def _poll(self) -> None:
        self.fleet.check()
        self.readers.compare_owners(self.fleet.owners())
        if self.universe.now_us // 500_000 % 5 == 0:
            self.readers.compare_takeover()
        self.quiet = self.calm and not self._open()
        self.universe.later(500_000, self._poll)

    def _open(self) -> list[str]:
        """What has not come to its end."""
        runs = self.watch.runs()
        waiting = [
            f"{run_id} never started" for run_id in self.clients.run_ids if run_id not in runs
        ]
        for run_id, run in runs.items():
            if run.ended is None:
                slots = ", ".join(slot.name for slot in run.slots.values() if not slot.outcome)
                waiting.append(f"{run_id} has no end (open: {slots})")
            soon_ms = EPOCH_MS + self.universe.now_us // 1000 + PROOF_WAIT_MS
            timers = [t for t, (_, _, _, at_ms) in run.timers.items() if at_ms < soon_ms]
            if timers:
                waiting.append(f"{run_id} has timers {sorted(timers)}")
        for partition in self.watch.partitions:
            if partition.shadow.command_next != partition.commands_end():
                waiting.append(f"commands of partition {partition.number}")
            if partition.parked:
                waiting.append(f"parked commands {sorted(partition.parked)} of {partition.number}")
        waiting.extend(self.readers.unsent())
        return waiting

    def _close(self) -> None:
        """Stop the workers as an operator does, then balance the books."""
        self.fleet.stop()
        stopped = self.universe.run(
            self.universe.now_us + 30_000_000, stop=self.fleet.stopped, turns_max=TURNS_MAX
        )
        if not stopped:
            self.journal.violate("a worker that was asked to stop did not return within 30 s")
        self.watch.look()
        self.watch.settle_accounts()
        self.readers.compare_all()
        self._results()

    def _results(self) -> None:
        for run_id, run in self.watch.runs().items():
            if run.ended == "failed" and not run.negative:
                self.journal.violate(f"{run_id} failed though nothing in it did")
            if run.ended == "cancelled" and not run.cancelling:
                self.journal.violate(f"{run_id} was cancelled though nobody asked")
            if run.ended != "completed" or run.negative:
                continue
            if run.result != calm_result(run.run, run.input):
                self.journal.violate(
                    f"{run_id} has another result than without faults: {run.result}"
                )

    def _report(self) -> Report:
        digest = hashlib.sha256()
        records = 0
        for topic in Topic:
            for partition in range(self.broker.partition_count):
                for record in self.broker.records(topic, partition):
                    records += 1
                    digest.update(repr(record).encode())
        digest.update(repr(self.vendor.ledger).encode())
        counts = dict(self.journal.counts, records=records, runs=len(self.watch.runs()))
        return Report(
            self.seed,
            self.profile.name,
            digest.hexdigest(),
            self.journal.violation,
            tuple(self.journal.tail()),
            dict(self.journal.faults),
            counts,
            self.universe.now_us / 1e6,
            self.universe.turns,
            f"python -m refold.testing.simulate --seed {self.seed} "
            f"--profile {self.profile.name} --trace",
        )


@lru_cache(maxsize=4096)
def calm_result(run: str, given: Value) -> Value | None:
    """The result of a run of `run` with this input in a world without faults."""
    profile = replace(PROFILES["calm"], runs=0, faults_s=0.5)
    simulation = Simulation(0, profile)
    simulation.clients.run_ids.append("calm")
    simulation.publish(StartRun("calm", "calm", run, given, None, "test"))
    simulation.fleet.begin()
    simulation.calm = True
    simulation.universe.later(100_000, simulation._poll)
    simulation.universe.run(120_000_000, stop=simulation._over, turns_max=TURNS_MAX)
    result: Value | None = simulation.watch.runs()["calm"].result
    for process in list(simulation.universe.processes):
        process.kill()
    return result


def run_seed(seed: int, profile: str | None = None, *, keep_trace: bool = False) -> Report:
    """Run the world of one seed; without `profile` the seed chooses it."""
    chosen = profile_of(seed) if profile is None else PROFILES[profile]
    simulation = Simulation(seed, chosen, keep_trace=keep_trace)
    report = simulation.run()
    if keep_trace:
        report = replace(report, trace=tuple(simulation.journal.tail(1 << 30)))
    for process in list(simulation.universe.processes):
        process.kill()
    return report


def run_seeds(seeds: Iterable[int], profile: str | None = None) -> list[Report]:
    """The reports of several seeds."""
    return [run_seed(seed, profile) for seed in seeds]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: exit 0 if every property holds under every seed, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m refold.testing.simulate", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--seeds", help="run the seeds A-B")
    parser.add_argument("--profile", choices=sorted(PROFILES), help="default: the seed chooses")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each seed")
    parser.add_argument("--trace", action="store_true", help="print the whole trace")
    args = parser.parse_args(argv)
    if (args.seed is None) == (args.seeds is None):
        parser.error("give either --seed N or --seeds A-B")
    if args.seeds is not None:
        try:
            first, _, last = args.seeds.partition("-")
            seeds = range(int(first), int(last or first) + 1)
        except ValueError:
            parser.error(f"--seeds wants two numbers like 0-99, not {args.seeds!r}")
    else:
        seeds = range(args.seed, args.seed + 1)
    began, failed = time.perf_counter(), 0
    out = sys.stdout
    for seed in seeds:
        report = run_seed(seed, args.profile, keep_trace=args.trace)
        failed += not report.ok
        if args.trace and report.ok:
            out.write("\n".join(report.trace) + "\n")
        if not report.ok or args.verbose or len(seeds) == 1:
            out.write(report.text() + "\n")
            out.flush()
    if len(seeds) > 1:
        took = time.perf_counter() - began
        out.write(f"{len(seeds)} seeds, {failed} failed, {took:.1f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
