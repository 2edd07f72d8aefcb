"""Counts what a question reads of the log: what it costs, and how far a long one has come."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from refold.log import Log, Record, Topic


class Reading(NamedTuple):
    """How far the answer to one question has come.

    `fraction` (0 to 1) counts each of the `partition_count` partitions alike; `size` is how many
    bytes were read so far, keys and headers included.
    """

    partition_count: int
    fraction: float
    size: int

    @property
    def size_about(self) -> int:
        """What it will be at the end, as far as can be said now."""
        return round(self.size / self.fraction) if self.fraction else self.size


Progress = Callable[[Reading], None]
"""Told after each read of the log."""


class Meter:
    """What one client reads, question by question."""

    def __init__(self, on_progress: Progress | None) -> None:
        self._on_progress = on_progress
        self.begin(1)

    def begin(self, partition_count: int) -> None:
        """A new question about so many partitions."""
        self._partition_count = partition_count
        self._done = 0
        self._spans: dict[tuple[Topic, int], tuple[int, int, int]] = {}
        self._partition = -1
        self._size = 0
        self._fraction = 0.0

    def expect(self, topic: Topic, partition: int, start: int, end: int) -> None:
        """The records from `start` to `end` are going to be read, or to there of them."""
        if partition != self._partition:
            self._partition, self._spans = partition, {}
        first, at, _ = self._spans.get((topic, partition), (start, start, end))
        self._spans[topic, partition] = (first, at, end)

    def took(self, topic: Topic, partition: int, records: Sequence[Record]) -> None:
        """Some were read."""
        for _, key, value, header, _ in records:
            self._size += len(key or b"") + len(value or b"") + len(header or b"")
        span = self._spans.get((topic, partition))
        if span is not None and records:
            first, at, end = span
            self._spans[topic, partition] = (first, max(at, records[-1].offset + 1), end)
        self._tell()

    def done(self) -> None:
        """One of the partitions is read."""
        self._done = min(self._done + 1, self._partition_count)
        self._spans = {}
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        read = sum(at - first for first, at, _ in self._spans.values())
        known = sum(end - first for first, _, end in self._spans.values())
        part = read / known if known else 0.0
        # What is left of a partition is known only on the way: nothing goes back.
        fraction = min((self._done + part) / self._partition_count, 1.0)
        self._fraction = max(self._fraction, fraction)
        self._on_progress(Reading(self._partition_count, self._fraction, self._size))


def metered(log: Log, meter: Meter, *, whole: Topic = Topic.SNAPSHOTS) -> Log:
    """The log, with each read of it counted; of `whole` everything is going to be read."""
    return cast(Log, _Metered(log, meter, whole))


class _Metered:
    def __init__(self, log: Log, meter: Meter, whole: Topic) -> None:
        self._log, self._meter, self._whole = log, meter, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        start, end = await self._log.bounds(topic, partition)
        if topic is self._whole:
            self._meter.expect(topic, partition, start, end)
        return start, end

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        records = await self._log.read(topic, partition, offset, size_max=size_max)
        self._meter.took(topic, partition, records)
        return records
