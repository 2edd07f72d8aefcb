"""Reads what every `refold live` of a namespace keeps, so that each of them answers for all.

It shows what is stored, no more: after a kill nothing that was shown is taken back.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from refold.log.kafka_side import SideTopic
from refold_projections.figures import Cell, CellKey, Figures, Source, Standing
from refold_projections.figures.cells import is_expired
from refold_projections.figures.stored import (
    CELL,
    STANDING,
    StoredKey,
    newer,
    unpack_cell,
    unpack_standing,
)
from refold_schemas.errors.log import LogUnavailable

READ_EVERY_S = 0.5
AWAY_S = 60.0
"""How long reads may fail in a row before the process says so and ends."""
NOTHING = Standing(0, 0, 0, {}, ())


class Shelf:
    """The stored cells of one partition, by window."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int], dict[CellKey, Cell]] = {}
        self._standing = NOTHING
        self._values: dict[bytes, bytes] = {}

    def put(self, key: StoredKey, packed: bytes, value: bytes | None) -> None:
        """Take one stored value; an older one than what is known changes nothing."""
        if key.kind not in (CELL, STANDING):
            return
        if value is None:
            self._values.pop(packed, None)
            if key.cell is not None:
                place = (key.cell.width, key.cell.start_ms)
                window = self._windows.get(place, {})
                window.pop(key.cell, None)
                if not window:
                    self._windows.pop(place, None)
            return
        if not newer(self._values.get(packed), value):
            return
        self._values[packed] = value
        if key.cell is None:
            self._standing = unpack_standing(value)
        else:
            place = (key.cell.width, key.cell.start_ms)
            self._windows.setdefault(place, {})[key.cell] = unpack_cell(value)

    def starts(self, width: str) -> Iterable[int]:
        """See `refold_projections.figures.Source`."""
        seen_ms = self._standing.seen_ms
        return [s for w, s in self._windows if w == width and not is_expired(w, s, seen_ms)]

    def window(self, width: str, start_ms: int) -> Iterable[tuple[CellKey, Cell]]:
        """See `Source`."""
        return list(self._windows.get((width, start_ms), {}).items())

    def standing(self) -> Standing:
        """See `Source`."""
        return self._standing


class ChangelogView:
    """Follows all partitions of the figures' topic. `figures` is what people read.

    `failed` is told when the topic could not be read for AWAY_S.
    """

    def __init__(
        self,
        topic: SideTopic,
        partition_count: int,
        *,
        clock: Callable[[], int],
        failed: Callable[[LogUnavailable], None],
    ) -> None:
        self._topic, self._failed = topic, failed
        self._shelves = [Shelf() for _ in range(partition_count)]
        self._next = [0] * partition_count
        self._task: asyncio.Task[None] | None = None
        self.figures = Figures(self._sources, clock)
        self.read = 0
        """Records read since the process began."""

    def _sources(self) -> Mapping[int, Source]:
        return dict(enumerate(self._shelves))

    async def start(self) -> None:
        """Read what is there, and go on reading. Raises LogUnavailable."""
        await self._topic.open()
        await self._read_on()
        self._task = asyncio.create_task(self._follow(), name="live-view")

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._topic.close()

    async def _follow(self) -> None:
        away_since: float | None = None
        while True:
            await asyncio.sleep(READ_EVERY_S)
            try:
                await self._read_on()
                away_since = None
            except LogUnavailable as error:
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since >= AWAY_S:
                    self._failed(error)
                    return

    async def _read_on(self) -> None:
        for partition, shelf in enumerate(self._shelves):
            end = await self._topic.end(partition)
            if end < self._next[partition]:  # made anew
                shelf.__init__()  # type: ignore[misc]
                self._next[partition] = 0
            while self._next[partition] < end:
                records = await self._topic.read(partition, self._next[partition])
                if not records:
                    self._next[partition] = end
                for record in records:
                    self._next[partition] = record.offset + 1
                    self.read += 1
                    try:
                        key = StoredKey.unpack(record.key or b"")
                    except (ValueError, TypeError):
                        continue
                    if key.partition == partition:
                        shelf.put(key, record.key or b"", record.value)
                await asyncio.sleep(0)
