"""What an owner knows of its appends: how long they took and how many events were in each."""

from bisect import bisect_left
from typing import Final

SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
EVENTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class AppendStats:
    """Counted once a batch, not once an event: two look-ups in a short table.

    >>> stats = AppendStats()
    >>> stats.add(3, 0.0007)
    >>> stats.events[2], stats.seconds[1], stats.events_sum
    (1, 1, 3)
    """

    __slots__ = ("events", "events_sum", "seconds", "seconds_sum")

    def __init__(self) -> None:
        self.seconds = [0] * (len(SECONDS) + 1)
        self.events = [0] * (len(EVENTS) + 1)
        self.seconds_sum = 0.0
        self.events_sum = 0

    def add(self, events: int, seconds: float) -> None:
        """A batch was acknowledged."""
        self.seconds[bisect_left(SECONDS, seconds)] += 1
        self.events[bisect_left(EVENTS, events)] += 1
        self.seconds_sum += seconds
        self.events_sum += events

    def merge(self, other: "AppendStats") -> None:
        """Take over what an owner counted whose claim is over."""
        self.seconds = [a + b for a, b in zip(self.seconds, other.seconds, strict=True)]
        self.events = [a + b for a, b in zip(self.events, other.events, strict=True)]
        self.seconds_sum += other.seconds_sum
        self.events_sum += other.events_sum
