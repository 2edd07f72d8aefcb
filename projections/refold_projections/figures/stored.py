"""How figures are stored as keys and values: JSON, a kind and a partition at the head of each key.

A value says which record it includes, so of two values of a key the one with the higher offset is
the newer one, whatever their order: see `newer`.
"""

import json
from typing import Any, NamedTuple

from refold_projections.figures.cells import Cell, CellKey
from refold_projections.figures.memory import OpenRun
from refold_projections.figures.partition import Standing, Waiting

CELL, RUN, PLACE, STANDING = "cell", "run", "place", "standing"


class StoredKey(NamedTuple):
    """What a key names: its kind, partition, and the cell or run if it is one of those."""

    kind: str
    partition: int
    cell: CellKey | None = None
    run_id: str | None = None

    def pack(self) -> bytes:
        """The key's bytes; always the same ones for the same key."""
        named: list[Any] = [self.kind, self.partition]
        if self.cell is not None:
            named += self.cell
        elif self.run_id is not None:
            named.append(self.run_id)
        return _bytes(named)

    @classmethod
    def unpack(cls, data: bytes) -> "StoredKey":
        """The key of these bytes. Raises ValueError for what is none."""
        kind, partition, *rest = json.loads(data)
        if kind == CELL:
            return cls(kind, partition, CellKey(*rest))
        return cls(kind, partition, None, rest[0] if kind == RUN else None)


def pack_cell(cell: Cell) -> bytes:
    """A cell's value."""
    return _bytes([cell.offset, cell.counts])


def unpack_cell(data: bytes) -> Cell:
    """The cell of a value."""
    offset, counts = json.loads(data)
    return Cell(offset, counts)


def pack_run(run: OpenRun) -> bytes:
    """The value of what is remembered of a run."""
    return _bytes(run.packed())


def unpack_run(data: bytes) -> OpenRun:
    """What is remembered of a run."""
    return OpenRun.unpacked(json.loads(data))


def pack_place(offset_next: int, place: list[Any]) -> bytes:
    """The value of a reader's place."""
    return _bytes([offset_next, place])


def unpack_place(data: bytes) -> list[Any]:
    """What `PartitionFigures.place` gave."""
    found: list[Any] = json.loads(data)[1]
    return found


def pack_standing(standing: Standing) -> bytes:
    """The value of how a partition stands."""
    offset_next, seen_ms, last_ms, open_runs, waiting = standing
    named = [[*key, count] for key, count in sorted(open_runs.items())]
    return _bytes([offset_next, seen_ms, last_ms, named, waiting])


def unpack_standing(data: bytes) -> Standing:
    """How a partition stands."""
    offset_next, seen_ms, last_ms, open_runs, waiting = json.loads(data)
    return Standing(
        offset_next,
        seen_ms,
        last_ms,
        {(run, status): count for run, status, count in open_runs},
        tuple(Waiting(*one) for one in waiting),
    )


def newer(stored: bytes | None, other: bytes) -> bool:
    """Whether `other` includes at least what `stored` does: both begin with their offset.

    A process that was frozen while its partition went to another one may still write: what it
    writes is older, and takes nothing away.

    >>> newer(b"[7,{}]", b"[5,{}]"), newer(b"[7,{}]", b"[7,{}]"), newer(None, b"[5,{}]")
    (False, True, True)
    """
    return stored is None or _offset(other) >= _offset(stored)


def _offset(data: bytes) -> int:
    return int(data[1 : data.index(b",")])


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
