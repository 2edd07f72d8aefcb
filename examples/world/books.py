"""What every vendor works with: the ledger, the clock, the settings, its counters and its dice."""

import random
from collections.abc import Callable

from world.ledger import Ledger
from world.messages import Json
from world.settings import Settings


class Books:
    """A vendor's desk. Counters and numbers are documents too, so they survive like the rest."""

    def __init__(self, ledger: Ledger, settings: Settings, now_ms: Callable[[], int]) -> None:
        """Work with this ledger, these settings and this clock."""
        self.ledger = ledger
        self.settings = settings
        self.in_progress: set[tuple[str, str]] = set()
        self._clock = now_ms
        self._at_ms: int | None = None

    def now_ms(self) -> int:
        """The time, in Unix milliseconds; for a call out of a queue the time it was due."""
        return self._clock() if self._at_ms is None else self._at_ms

    def pretend(self, at_ms: int | None) -> None:
        """Do what follows as of `at_ms`; None goes back to the clock."""
        self._at_ms = at_ms

    def record(
        self, vendor: str, kind: str, body: Json, *, key: str | None = None, quantity: int = 1
    ) -> None:
        """Write down an effect and count it."""
        self.ledger.add_effect(
            at_ms=self.now_ms(), vendor=vendor, kind=kind, key=key, quantity=quantity, body=body
        )
        self.count("effects", kind, quantity)

    def count(self, counter: str, name: str, amount: int = 1) -> int:
        """Raise a counter and return its new value."""
        value: int = (self.ledger.get(f"count.{counter}", name) or 0) + amount
        self.ledger.put(f"count.{counter}", name, value)
        return value

    def counted(self, counter: str) -> dict[str, int]:
        """All values of a counter by name."""
        return dict(self.ledger.items(f"count.{counter}"))

    def number(self, name: str) -> int:
        """The next number of a sequence: 1, 2, 3, …"""
        return self.count("numbers", name)

    def draw(self, name: str) -> random.Random:
        """Fresh dice: what they show follows from the seed and from how often `name` was drawn."""
        return random.Random(f"{self.settings.seed}/{name}/{self.number(f'draw {name}')}")
