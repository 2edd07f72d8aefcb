"""Some two hundred seeded worlds: whatever goes wrong in them, what refold promises holds.

A failing seed prints the broken property and the command that shows it again; once repaired, it
is named below and stays.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from refold.testing.sim_faults import FAULT_KINDS, PROFILES
from refold.testing.sim_report import Report
from refold.testing.simulate import run_seed

pytestmark = pytest.mark.untraced

EVERY_KIND = range(50)
"""In these worlds each kind of fault occurs, the rarest twice."""
MORE = range(50, 150)
CHUNK = 10

FOUND = {
    "a short read hid a foreign claim": ("log", 11),
    "a fenced owner acted for a run that another one had": ("log", 3),
    "a call that froze before its turn acted after its deadline": ("owners", 15),
    "a run that waits for the log lost its retry": ("vendor", 12),
    "an outcome was delivered twice after a rehydration": ("clocks", 1),
    "a report moved the time of its run": ("log", 17),
    "the timers of a cancelled run stayed armed": ("log", 12),
    "a proof found the attempt that had done it": ("vendor", 10),
    "a takeover lost the runs that had no snapshot": ("log", 6),
    "a checkpoint that was not stored counted as written": ("storm", 14),
    "a sleep was scheduled twice under one generation": ("owners", 28),
    "a person's word was too early for ever": ("storm", 27),
    "a wall clock that had jumped made a key live too long": ("storm", 64),
    "a timer of run code was told to what only releases its locks": ("vendor", 13),
    "the same under several owners": ("owners", 5),
}
"""What was found, and the world that found it. Worlds change with the simulation: what each of
these shows by itself has a test of its own beside this file."""


def played(seeds: Iterable[int]) -> list[Report]:
    """The reports of these worlds, in which all promises have held."""
    reports = [run_seed(seed) for seed in seeds]
    failed = [report.text() for report in reports if not report.ok]
    assert not failed, "\n\n".join(failed)
    return reports


def test_what_is_promised_holds_in_worlds_in_which_every_kind_of_fault_occurs() -> None:
    """A fault that never happens is a test that cannot fail."""
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for report in played(EVERY_KIND):
        faults.update(report.faults)
        counts.update(report.counts)
    assert {kind for kind in FAULT_KINDS if faults[kind] == 0} == set()
    assert set(faults) <= set(FAULT_KINDS)
    for what in ("takeovers from a checkpoint", "fenced", "duplicate", "workers refused"):
        assert counts[what] > 0, what


@pytest.mark.parametrize("first", MORE[::CHUNK])
def test_what_is_promised_holds_in_these_worlds(first: int) -> None:
    played(range(first, first + CHUNK))


@pytest.mark.parametrize(("profile", "seed"), FOUND.values(), ids=FOUND.keys())
def test_what_was_found_once_stays_away(profile: str, seed: int) -> None:
    report = run_seed(seed, profile)
    assert report.ok, report.text()


def test_one_seed_reproduces_everything_byte_for_byte() -> None:
    for profile in sorted(PROFILES):
        first, second = run_seed(5, profile, keep_trace=True), run_seed(5, profile, keep_trace=True)
        assert first == second
        assert first.digest != run_seed(6, profile).digest


def test_no_order_of_hashes_and_no_state_of_the_process_matters() -> None:
    expected = [run_seed(seed).text() for seed in range(1, 5)]
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-m", "refold.testing.simulate", "--seeds", "1-4", "-v"],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        assert told.stdout.splitlines()[:-1] == expected
