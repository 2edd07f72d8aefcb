"""Keeps the figures of one partition as keys and values, so that no kill leaves them half-written.

The order is what makes them right: cells, then what is remembered of runs, then the position; each
step only when the one before is acknowledged (`refold_projections.figures.partition`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

from refold_projections.figures import Cell, CellKey, PartitionFigures, Span
from refold_projections.figures.memory import OpenRun
from refold_projections.figures.stored import (
    CELL,
    PLACE,
    RUN,
    STANDING,
    StoredKey,
    pack_cell,
    pack_place,
    pack_run,
    pack_standing,
    unpack_cell,
    unpack_place,
    unpack_run,
)
from refold_schemas.codec import Codec

Store = Callable[[int, bytes, bytes | None], Awaitable[object]]
"""Stores a value (None: deletes) under a key of a partition; done when it is acknowledged."""


class Keeper:
    """The figures of one partition and where they are kept."""

    def __init__(
        self,
        partition: int,
        figures: PartitionFigures,
        store: Store,
        sent: Callable[[list[Span]], Awaitable[None]] | None = None,
    ) -> None:
        """`sent` is given the spans of what is about to be stored, and awaited before it is."""
        self.partition, self.figures = partition, figures
        self._store, self._sent = store, sent
        self._writing = asyncio.Lock()
        self.given_up = False
        """Whether the partition is another process's: nothing more is written."""

    async def write(self) -> None:
        """Store what has changed. Raises what the store raises: then nothing may follow."""
        async with self._writing:
            if self.given_up or not self.figures.unwritten:
                return
            partition, changes = self.partition, self.figures.changes()
            spans, self.figures.spans = self.figures.spans, []
            # All values as they are now: the figures go on while the answers are awaited.
            cells = [
                (StoredKey(CELL, partition, key), None if cell is None else pack_cell(cell))
                for key, cell in changes.cells.items()
            ]
            runs: list[tuple[StoredKey, bytes | None]] = [
                (
                    StoredKey(RUN, partition, None, run_id),
                    None if run is None else pack_run(run),
                )
                for run_id, run in changes.runs.items()
            ]
            standing = changes.standing
            # Not behind the place: nothing would be read again, and so it never be told.
            runs.append((StoredKey(STANDING, partition), pack_standing(standing)))
            place = pack_place(standing.offset_next, changes.place)
            places: list[tuple[StoredKey, bytes | None]] = [(StoredKey(PLACE, partition), place)]
            if spans and self._sent is not None:
                await self._sent(spans)
            for step in (cells, runs, places):
                if self.given_up:
                    return
                stored = [self._store(partition, key.pack(), value) for key, value in step]
                await asyncio.gather(*stored)


def restored(
    codec: Codec, partition: int, table: Mapping[bytes, bytes], *, traces: bool = False
) -> PartitionFigures:
    """The figures of a partition as they were kept; empty ones where nothing was."""
    place = None
    cells: dict[CellKey, Cell] = {}
    runs: dict[str, OpenRun] = {}
    for key, value in keys_of(partition, table):
        if key.cell is not None:
            cells[key.cell] = unpack_cell(value)
        elif key.run_id is not None:
            runs[key.run_id] = unpack_run(value)
        elif key.kind == PLACE:
            place = unpack_place(value)
    start = PartitionFigures(codec).place() if place is None else place
    return PartitionFigures.restored(codec, start, runs, cells, traces=traces)


def partition_of(packed: bytes) -> int:
    """Whose key this is; -1 for somebody else's record in the topic."""
    try:
        return StoredKey.unpack(packed).partition
    except (ValueError, TypeError):
        return -1


def keys_of(partition: int, table: Mapping[bytes, bytes]) -> Iterator[tuple[StoredKey, bytes]]:
    """Those keys of a table that are a partition's."""
    for packed, value in list(table.items()):
        try:
            key = StoredKey.unpack(packed)
        except (ValueError, TypeError):  # somebody else's record in the topic
            continue
        if key.partition == partition:
            yield key, value
