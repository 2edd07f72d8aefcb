"""What a projector counts while it works: a few additions for each batch."""

from collections import Counter
from collections.abc import Iterable

from refold.telemetry.spread import Spread

DATABASE, LOG, REGISTRY = "database", "log", "registry"
AWAY = (DATABASE, LOG, REGISTRY)
"""What a projector waits for."""


class ProjectorStats:
    """Of one process since its start, whichever partitions it had. One loop writes it."""

    def __init__(self) -> None:
        self.records = 0
        self.batches = 0
        self.seconds = Spread()
        """From a batch's first statement to its commit."""
        self.rows: Counter[str] = Counter()
        """Put or taken away, by table."""
        self.refused = 0
        self.outages: Counter[str] = Counter()

    def batch(self, records: int, seconds: float, rows: Iterable[tuple[str, int]]) -> None:
        """One is committed."""
        self.records += records
        self.batches += 1
        self.seconds.add(seconds)
        for table, count in rows:
            self.rows[table] += count
