"""How values are spread over buckets: what a histogram is read from."""

from bisect import bisect_left

from refold.telemetry.catalogue import Buckets

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds for what takes from a millisecond to half a minute."""


class Spread:
    """Counts values; one writer, and readers in any thread.

    >>> spread = Spread((0.5, 1.0))
    >>> for seconds in (0.1, 1.0, 7.0):
    ...     spread.add(seconds)
    >>> spread.buckets()
    Buckets(bounds=(0.5, 1.0), counts=(1, 1, 1), sum=8.1)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One more: a look-up in a short table."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Buckets:
        """The histogram's value now."""
        return Buckets(self.bounds, tuple(self.counts), self.sum)
