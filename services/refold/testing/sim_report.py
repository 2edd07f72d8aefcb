"""What a simulation tells: a readable trace, the first broken property, and its faults."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

TRACE_KEPT = 400
"""Lines of the trace that are kept for a failing seed."""
TRACE_SHOWN = 60


class Journal:
    """The trace and the counters of one simulation. `now_us` is true time in microseconds."""

    def __init__(self, now_us: Callable[[], int], *, keep_all: bool = False) -> None:
        self._now_us = now_us
        self.lines: deque[tuple[int, str, str]] = deque(maxlen=None if keep_all else TRACE_KEPT)
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.violation: str | None = None
        self.violation_us = 0

    def note(self, who: str, what: str) -> None:
        """One line of the trace: `who` is a process, the vendor, the log or a person."""
        self.lines.append((self._now_us(), who, what))

    def fault(self, kind: str, who: str, what: str = "") -> None:
        """A fault was injected: counted, so that a fault that never happens is seen."""
        self.faults[kind] += 1
        self.note(who, f"! {kind}{': ' + what if what else ''}")

    def violate(self, sentence: str) -> None:
        """A property does not hold. The first one is kept: the rest may follow from it."""
        if self.violation is None:
            self.violation, self.violation_us = sentence, self._now_us()
        self.note("checker", f"VIOLATED: {sentence}")

    def tail(self, count: int = TRACE_SHOWN) -> list[str]:
        """The last lines, as text."""
        return [line_of(*line) for line in list(self.lines)[-count:]]


def line_of(at_us: int, who: str, what: str) -> str:
    """One line of the trace as people read it.

    >>> line_of(1_500_000, "w0", "claims")
    '    1.500000  w0        claims'
    """
    return f"{at_us / 1e6:12.6f}  {who:<9} {what}"


@dataclass(frozen=True)
class Report:
    """How one seed went. `violation` is one sentence, None if every property holds."""

    seed: int
    profile: str
    digest: str
    violation: str | None
    trace: tuple[str, ...]
    faults: dict[str, int]
    counts: dict[str, int]
    virtual_s: float
    turns: int
    command: str = field(default="")

    @property
    def ok(self) -> bool:
        """Whether every property holds."""
        return self.violation is None

    def text(self) -> str:
        """What a failing seed prints: seed, property, the end of the trace, how to see it again."""
        if self.ok:
            return (
                f"seed {self.seed} ({self.profile}): ok, {self.virtual_s:.1f} s, "
                f"{self.counts.get('records', 0)} records, digest {self.digest[:16]}"
            )
        return "\n".join(
            [
                f"seed {self.seed} ({self.profile}): {self.violation}",
                *self.trace,
                f"to see it again: {self.command}",
            ]
        )
