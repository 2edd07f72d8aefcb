"""What was archived of a partition: the files, whose records they hold, and where they end.

`refold archive` writes an `Archived` record into `ns.snapshots` before it deletes anything, so
whoever reads the log knows what it began with. Source: docs/adr/0022.
"""

from collections.abc import Iterator
from typing import Final

from refold_schemas.codec import Codec
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.snapshots import Archived

LABEL: Final = "archived."


def key_of(offset_next: int) -> bytes:
    """The key of the record about the file that ends before this offset."""
    return f"/{LABEL}{offset_next}".encode()


class Archives:
    """The `Archived` records of one partition; nothing is decoded before somebody asks."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._stored: dict[str, bytes] = {}
        self.unknown: SchemaUnavailable | None = None
        """Why, where one of them is of a schema that nobody has."""

    def add(self, label: str, value: bytes | None) -> None:
        """A record with the key `/label`; None deletes it.

        Raises SchemaUnavailable, before it is taken in: later nobody asks.
        """
        if value is None:
            self._stored.pop(label, None)
        else:
            self._codec.name_of(value, strict=True)
            self._stored[label] = value

    def cannot_read(self, label: str, why: SchemaUnavailable | None) -> None:
        """A record stands there that nobody can read."""
        self._stored[label] = b""
        self.unknown = why

    def before(self, start: int) -> list[Archived]:
        """The files that are needed now that the log begins at `start`, in the log's order."""
        found = [one for one in self._all() if one.offset_from < start]
        return sorted(found, key=lambda one: (one.offset_from, one.offset_next))

    def ending_at(self, start: int) -> Archived | None:
        """The record about the file that ends where the log begins."""
        value = self._stored.get(f"{LABEL}{start}")
        return None if value is None else self._read(value)

    def runs_before(self, start: int) -> set[str] | None:
        """Every run of which a record stood before `start`, where the log begins now.

        None where a record about a file before it cannot be read: nobody knows which they are.
        """
        for label, value in self._stored.items():
            end = label.removeprefix(LABEL)
            if end.isdecimal() and int(end) <= start and self._read(value) is None:
                return None
        return {run_id for one in self.before(start) for run_id in one.runs}

    def _all(self) -> Iterator[Archived]:
        for value in self._stored.values():
            archived = self._read(value)
            if archived is not None:
                yield archived

    def _read(self, value: bytes) -> Archived | None:
        try:
            found = self._codec.decode(value)
        except UndecodableRecord:  # of another version, or damaged
            return None
        return found if isinstance(found, Archived) else None


__all__ = ["LABEL", "Archives", "key_of"]
