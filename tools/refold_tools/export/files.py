"""Files of rows: written beside their names, flushed to the disk, and named once they are whole."""

import fcntl
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from refold_tools.export.columns import BOOL, INT, TIME, Column, Row
from refold_tools.export.errors import ExportExtraMissing, ExportFolderTaken, ExportUnwritable

FORMATS = {"parquet": ".parquet", "jsonl": ".jsonl.gz"}
ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 16 << 20
"""Rows are handed on after so many, or so many bytes of text, whichever comes first."""
HASH_BYTES = 1 << 20
TIME_MAX_MS = 253_402_300_800_000
"""The year 10000: later times have no common text."""


class Written(NamedTuple):
    """A file that stands on the disk under its name."""

    path: Path
    rows: int
    size: int
    sha256: str


class Sink(Protocol):
    """Takes rows and makes bytes of them."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Write some rows."""

    def end(self) -> None:
        """Write what follows the last row."""


class RowFile:
    """One file of a table. `put` rows, then `finish`; `drop` leaves nothing behind.

    Raises ExportUnwritable, and ExportExtraMissing where Parquet is not at hand.
    """

    def __init__(self, path: Path, columns: Sequence[Column], format: str) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self.count = 0
        self._sink: Sink | None = None
        self._held: list[Row] = []
        self._held_bytes = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = self._part.open("wb")
        except OSError as error:
            raise ExportUnwritable(path, error.strerror or str(error)) from error
        try:
            kind = ParquetSink if format == "parquet" else JsonSink
            self._sink = kind(self._raw, columns)
        except BaseException:
            self.drop()
            raise

    def put(self, row: Row) -> None:
        """Add a row."""
        self._held.append(row)
        self.count += 1
        self._held_bytes += len(row.get("body") or row.get("input") or "")
        if len(self._held) >= ROWS_AT_ONCE or self._held_bytes >= BYTES_AT_ONCE:
            self._flush()

    def finish(self) -> Written:
        """Give the file its name. A file of that name is replaced: it is of a try that was cut."""
        self._flush()
        assert self._sink is not None
        try:
            self._sink.end()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            size = self._raw.tell()
            self._raw.close()
            digest = sha256_of(self._part)
            self._part.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise ExportUnwritable(self._path, error.strerror or str(error)) from error
        return Written(self._path, self.count, size, digest)

    def drop(self) -> None:
        """Leave nothing behind; harmless once it is finished."""
        with suppress(OSError, ValueError):
            if self._sink is not None:
                self._sink.end()  # a writer of Parquet that is not closed closes itself, later
        with suppress(OSError):
            self._raw.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if not held or self._sink is None:
            return
        try:
            self._sink.rows(held)
        except OSError as error:
            raise ExportUnwritable(self._path, error.strerror or str(error)) from error


class JsonSink:
    """Gzipped JSON lines: an object a row, with what is not null, times as ISO text."""

    def __init__(self, raw: Any, columns: Sequence[Column]) -> None:
        # No time of day and no name in it: the same rows are the same file.
        self._file = gzip.GzipFile("", "wb", 1, raw, mtime=0)
        self._columns = [(one.name, one.kind == TIME) for one in columns]

    def rows(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        lines = []
        for row in rows:
            shown = {}
            for name, is_time in self._columns:
                item = row.get(name)
                if item is not None:
                    shown[name] = iso(item) if is_time else item
            lines.append(json.dumps(shown, ensure_ascii=False, separators=(",", ":")))
        self._file.write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))

    def end(self) -> None:
        """Close the stream; the file stays open."""
        self._file.close()


class ParquetSink:
    """Parquet with zstd; a row group for each piece of rows."""

    def __init__(self, raw: Any, columns: Sequence[Column]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError as error:
            raise ExportExtraMissing(error.name or "pyarrow") from error
        kinds = {
            INT: pyarrow.int64(),
            BOOL: pyarrow.bool_(),
            TIME: pyarrow.timestamp("ms", tz="UTC"),
        }
        self._names = [one.name for one in columns]
        described = [
            pyarrow.field(
                one.name, kinds.get(one.kind, pyarrow.string()), metadata={"doc": one.doc}
            )
            for one in columns
        ]
        self._schema = pyarrow.schema(described)
        self._batch = pyarrow.RecordBatch
        self._array = pyarrow.array
        # The file's own handle is kept open by us, so that it can be flushed to the disk.
        self._writer = parquet.ParquetWriter(raw, self._schema, compression="zstd")

    def rows(self, rows: Sequence[Row]) -> None:
        """Write some rows."""
        arrays = [
            self._array([_parquet(row.get(field.name)) for row in rows], type=field.type)
            for field in self._schema
        ]
        self._writer.write_batch(self._batch.from_arrays(arrays, schema=self._schema))

    def end(self) -> None:
        """Write the footer."""
        self._writer.close()


def _parquet(item: Any) -> Any:
    # A text with half a surrogate pair cannot be UTF-8; no record of refold's has one.
    if type(item) is str and not item.isascii():
        return item.encode("utf-8", "backslashreplace").decode()
    return item


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if need be: two exports in one would be a mixture of both.

    Raises ExportFolderTaken where another process has it, and ExportUnwritable. Whoever dies holds
    nothing any more.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ExportUnwritable(folder, error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportFolderTaken(folder, "another export writes to it now") from None
        except OSError as error:
            raise ExportUnwritable(folder, error.strerror or str(error)) from error
        yield
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Take away what a process that is no more has left unfinished in the folder."""
    for path in folder.rglob(".*.part"):
        _, _, number = path.name.removesuffix(".part").rpartition(".")
        if number.isdigit() and not _lives(int(number)):
            with suppress(OSError):
                path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # somebody else's
    return True


def iso(at_ms: int) -> str | None:
    """A time as text, to the millisecond; None for one that no calendar has.

    >>> iso(1_785_585_600_123), iso(2**62)
    ('2026-08-01T12:00:00.123Z', None)
    """
    if not 0 <= at_ms < TIME_MAX_MS:
        return None
    at = datetime.fromtimestamp(at_ms // 1_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03}Z"


def sha256_of(path: Path) -> str:
    """The digest of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


__all__ = ["FORMATS", "RowFile", "Written", "alone_in", "iso", "sha256_of", "sweep", "sync_folder"]
