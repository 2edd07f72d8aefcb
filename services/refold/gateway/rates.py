"""Token buckets: how often each caller may ask. Pure but for the clock that is handed in."""

from collections import OrderedDict
from collections.abc import Callable


class Rates:
    """One bucket for each key: `per_s` on the average, `burst` at once, `keys_max` keys in memory.

    >>> now = 0.0
    >>> rates = Rates(2.0, 2, 10, clock=lambda: now)
    >>> [rates.take("ada") for _ in range(3)]
    [0.0, 0.0, 0.5]
    >>> now = 0.5
    >>> rates.take("ada")
    0.0
    """

    def __init__(
        self, per_s: float, burst: int, keys_max: int, *, clock: Callable[[], float]
    ) -> None:
        self.per_s, self.burst = per_s, burst
        self._keys_max, self._clock = keys_max, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Count one request; 0 if it may go on, else the seconds after which one may."""
        wait_s, left, now = self._look(key)
        if wait_s == 0.0:
            self._keep(key, left - 1.0, now)
        return wait_s

    def _look(self, key: str) -> tuple[float, float, float]:
        now = self._clock()
        left, at = self._buckets.get(key, (float(self.burst), now))
        left = min(float(self.burst), left + (now - at) * self.per_s)
        return (0.0 if left >= 1.0 else (1.0 - left) / self.per_s), left, now

    def _keep(self, key: str, left: float, now: float) -> None:
        self._buckets[key] = (left, now)
        self._buckets.move_to_end(key)
        while len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
