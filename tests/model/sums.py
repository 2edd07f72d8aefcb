"""Small sums beside the model: how long "absent" must wait, what a snapshot's label must count.

The model lets an owner believe "absent" from the moment at which the far system can act no more.
These sums show that the waits of section 6 never end before that moment, with clocks that differ in
speed, and that the labels of 3.3 never hide a report.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Final, NamedTuple

# The shortest a boot clock's second may be against a true one: half a percent fast.
CLOCK_RATE: Final = 0.995


@dataclass(frozen=True, slots=True)
class Waits:
    """How the two kinds of owner wait; every field is the rule kept. Any unit of time."""

    timeout: int = 4
    settle: int = 3
    margin: float = 1.01  # of the next owner
    margin_covers_settle: bool = True
    living_counts_from_end: bool = True
    next_counts_from_claim: bool = True  # else from a wall-clock time in the log
    all_attempts: bool = True


def waits_too_short(waits: Waits) -> str | None:
    """The first schedule in which "absent" is believed while the far system may still act."""
    timeout, settle = waits.timeout, waits.settle
    for decided, delay, act in product(range(3), range(4), range(8)):
        started = decided + delay + act
        if started > decided + timeout:
            continue  # the last look stops it
        for runs in (0, 1, timeout):
            ended = min(started + runs, decided + timeout)
            acts_until = ended + settle
            claimed = decided - 5
            counted_from = ended if waits.living_counts_from_end else claimed + timeout
            if counted_from + settle < acts_until:
                return (
                    f"living owner: decided at {decided}, call ends at {ended}, asks at "
                    f"{counted_from + settle}, the far system may act until {acts_until}"
                )
        acts_until = decided + timeout + settle
        for claimed in range(decided + delay, decided + delay + 6):
            asks = _next_owner_asks(waits, decided=decided, claimed=claimed)
            if asks < acts_until:
                return (
                    f"next owner: decided at {decided}, its claim at {claimed}, asks at "
                    f"{asks:.2f}, the far system may act until {acts_until}"
                )
    return None


def _next_owner_asks(waits: Waits, *, decided: int, claimed: int) -> float:
    """True time at which the owner by a later claim asks; its clock runs fast."""
    if not waits.next_counts_from_claim:
        skew = 3  # its wall clock is ahead of the one that wrote the intent
        return decided - skew + waits.timeout + waits.settle
    if waits.margin_covers_settle:
        wait = (waits.timeout + waits.settle) * waits.margin
    else:
        wait = waits.timeout * waits.margin + waits.settle
    return claimed + wait * CLOCK_RATE


def repeats_too_short(waits: Waits) -> str | None:
    """Two attempts with recorded timeouts of their own: the wait must cover the longer one."""
    for timeouts in product((2, 9), repeat=2):
        decided = (0, 1)
        acts_until = max(d + t for d, t in zip(decided, timeouts, strict=True)) + waits.settle
        counted = max(timeouts) if waits.all_attempts else timeouts[-1]
        claimed = 1
        asks = claimed + (counted + waits.settle) * waits.margin * CLOCK_RATE
        if asks < acts_until:
            return (
                f"attempts with timeouts {timeouts}: asks at {asks:.2f}, "
                f"the far system may act until {acts_until}"
            )
    return None


class Snapshot(NamedTuple):
    """A snapshot: the last offset it has folded, and the one that its label names."""

    folded: int
    label: int


def report_lost(*, label_counts_reports: bool) -> str | None:
    """Two snapshots of a run, by two claims, a report between them: which one does a reader take?

    The run's last event is at 3, the report at 4. The older snapshot was taken before the report,
    the newer one after it. A reader takes the highest label; between equal ones, either.
    """
    last_event, report = 3, 4
    older = Snapshot(folded=last_event, label=last_event)
    newer = Snapshot(folded=report, label=report if label_counts_reports else last_event)
    redo_from = newer.folded + 1
    best = max(older.label, newer.label)
    for snapshot in (older, newer):
        if snapshot.label == best and snapshot.folded < report < redo_from:
            return (
                f"both labels say {best}; the reader takes the older snapshot, goes on at "
                f"{redo_from}, and never sees the report at {report}"
            )
    return None


class Sum(NamedTuple):
    """One sum: `found` is the schedule that breaks it, `must_hold` that there may be none."""

    name: str
    rule: str
    must_hold: bool
    found: str | None


def sums() -> tuple[Sum, ...]:
    """Every sum, as written and with its rule broken."""
    written = Waits()
    long_settle = replace(written, settle=60)
    absent = "6, when absent may be believed"
    return (
        Sum("the waits as written", absent, True, waits_too_short(written)),
        Sum("the waits as written, settle 60", absent, True, waits_too_short(long_settle)),
        Sum("the wait over all attempts", absent, True, repeats_too_short(written)),
        Sum("the label of a snapshot", "3.3", True, report_lost(label_counts_reports=True)),
        Sum(
            "the living owner counts from its claim, in time",
            absent,
            False,
            waits_too_short(replace(written, living_counts_from_end=False)),
        ),
        Sum(
            "the next owner believes a wall-clock time in the log",
            absent,
            False,
            waits_too_short(replace(written, next_counts_from_claim=False)),
        ),
        Sum(
            "no margin for the speed of clocks",
            absent,
            False,
            waits_too_short(replace(written, margin=1.0)),
        ),
        Sum(
            "the margin covers the timeout and not settle",
            absent,
            False,
            waits_too_short(replace(long_settle, margin_covers_settle=False)),
        ),
        Sum(
            "the wait covers the last attempt's timeout only",
            absent,
            False,
            repeats_too_short(replace(written, all_attempts=False)),
        ),
        Sum(
            "a snapshot is labelled with the run's last event",
            "3.3",
            False,
            report_lost(label_counts_reports=False),
        ),
    )
