"""Windows and what is counted in them: a cell a window, run function and step."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SECOND, MINUTE, HOUR, TOTAL = "second", "minute", "hour", "total"
WIDTHS_MS: Mapping[str, int] = {SECOND: 1_000, MINUTE: 60_000, HOUR: 3_600_000}
KEPT_MS: Mapping[str, int] = {
    SECOND: 15 * 60_000,
    MINUTE: 24 * 3_600_000,
    HOUR: 31 * 24 * 3_600_000,
}
"""How long windows of each width are kept, by the log's clock. The total is kept for ever."""
NAMES_MAX = 1_000
"""Pairs of run function and step that a partition tells apart; further ones are `OTHER`."""
OTHER = "(other)"

COUNTERS = {
    "runs_started": "runs that came to exist",
    "runs_completed": "run functions that returned",
    "runs_failed": "run functions that raised",
    "runs_cancelled": "runs that were cancelled, with nothing left open",
    "runs_diverged": "times that code and record differed",
    "runs_blocked": "times that no live worker could continue a run",
    "runs_resumed": "times that a parked or failed run went on",
    "cancels_requested": "requests to end a run",
    "commands_rejected": "commands that were rejected, with the run they name",
    "records_undecodable": "events that count and whose body cannot be read",
    "attempts_started": "intents: attempts about to act",
    "attempts_reported": "reports by a process whose claim or slot had moved on",
    "steps_done": "steps with a result, by whatever evidence",
    "steps_failed": "steps whose failure run code was told",
    "steps_retried": "attempts that certainly did not act, and are tried again",
    "steps_unrecordable": "steps done whose result could not be stored",
    "steps_in_doubt": "attempts that came to be in doubt",
    "steps_settled": "attempts in doubt that were settled",
    "evidence_conflicts": "times that evidence contradicted what was settled",
    "model_calls": "model steps with a result",
    "input_tokens": "tokens that model answers say were read",
    "output_tokens": "tokens that model answers say were written",
    "price_usd_micros": "price in force of model answers, in millionths of a US dollar",
}
"""What is counted, and what it means. Names are fixed: dashboards have them."""
HISTOGRAMS = {
    "step_ms": "duration of a step: from its intent, or from the outcome before it, to its outcome",
    "settle_ms": "from the intent of an attempt in doubt until it was settled",
    "run_ms": "duration of a run: from its start to its end",
}
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400)
BOUNDS_MS: tuple[int, ...] = tuple(round(1000 * bound_s) for bound_s in _BOUNDS_S)
"""Upper bounds of the buckets of every histogram, inclusive; one more bucket has none."""


class CellKey(NamedTuple):
    """Which cell. `start_ms` is 0 for the total; `step` is empty for what concerns whole runs."""

    width: str
    start_ms: int
    run: str
    step: str


class Cell:
    """Counts, sparse: a counter by its name, a histogram as `NAME.sum` and `NAME.BUCKET`.

    `offset` is that of the last record counted in it: that record and those before it change
    nothing any more.
    """

    __slots__ = ("counts", "offset")

    def __init__(self, offset: int = -1, counts: dict[str, int] | None = None) -> None:
        self.offset = offset
        self.counts = {} if counts is None else counts


def observe(counts: dict[str, int], histogram: str, value_ms: int) -> None:
    """Add one duration. A clock that went back makes none of less than 0.

    >>> counts = {}
    >>> observe(counts, "step_ms", 7)
    >>> counts
    {'step_ms.1': 1, 'step_ms.sum': 7}
    """
    value_ms = max(value_ms, 0)
    bucket = f"{histogram}.{bisect_left(BOUNDS_MS, value_ms)}"
    counts[bucket] = counts.get(bucket, 0) + 1
    total = f"{histogram}.sum"
    counts[total] = counts.get(total, 0) + value_ms


def merge(into: dict[str, int], counts: Mapping[str, int]) -> None:
    """Add counts: cells of several partitions or windows make one."""
    for name, amount in counts.items():
        into[name] = into.get(name, 0) + amount


class Histogram(NamedTuple):
    """Of one histogram: how many in each bucket (one more than bounds), and the sum in ms."""

    buckets: tuple[int, ...]
    sum_ms: int

    @property
    def total(self) -> int:
        """How many durations."""
        return sum(self.buckets)

    def quantile_ms(self, fraction: float) -> int | None:
        """An upper bound of the quantile: that of its bucket; None without values or bound.

        >>> Histogram((0, 3, 1, *[0] * 14), 40).quantile_ms(0.5)
        10
        """
        wanted, seen = fraction * self.total, 0
        for bound_ms, count in zip(BOUNDS_MS, self.buckets, strict=False):
            seen += count
            if seen and seen >= wanted:
                return bound_ms
        return None


def histogram(counts: Mapping[str, int], name: str) -> Histogram:
    """The histogram as a cell has it."""
    buckets = tuple(counts.get(f"{name}.{at}", 0) for at in range(len(BOUNDS_MS) + 1))
    return Histogram(buckets, counts.get(f"{name}.sum", 0))


def windows_of(at_ms: int, seen_ms: int) -> Iterable[tuple[str, int]]:
    """Width and start of each window that an event belongs to and that is still kept."""
    yield TOTAL, 0
    for width, width_ms in WIDTHS_MS.items():
        start_ms = at_ms - at_ms % width_ms
        if not is_expired(width, start_ms, seen_ms):
            yield width, start_ms


def is_expired(width: str, start_ms: int, seen_ms: int) -> bool:
    """Whether a window is over for so long that it is dropped; `seen_ms`: the log's clock."""
    if width == TOTAL:
        return False
    return start_ms + WIDTHS_MS[width] + KEPT_MS[width] <= seen_ms
