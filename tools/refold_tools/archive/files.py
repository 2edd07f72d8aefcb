"""The format of an archive file: gzipped JSON lines, the records as they were stored.

The first line is the header, the last one says how many records lie between and their SHA-256; each
of the others is one record: `[offset, append_ms, key, value, header]`, bytes in base64, null for
none. docs/howto/archive.md has it for other programs.
"""

import base64
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from refold.log.port import Record
from refold_tools.archive.errors import ArchiveDamaged, ArchiveUnwritable

FORMAT = 1
HASH_BYTES = 1 << 20


class Header(NamedTuple):
    """What the first line says. `base` is a framed Checkpoint of a reader before the first record.

    Offset 0 has the base of a reader that has read nothing.
    """

    namespace: str
    partition: int
    partition_count: int
    topic_ids: tuple[str, ...]
    offset_from: int
    base: bytes


class ArchiveFile(NamedTuple):
    """A file that was written and read back."""

    path: Path
    offset_next: int
    record_count: int
    size: int
    sha256: bytes


class Writer:
    """Writes one file beside its final name; `finish` gives it that, once it has read back."""

    def __init__(self, folder: Path, header: Header) -> None:
        self._folder, self.header = folder, header
        name = f"{header.namespace}.events.{header.partition:05}.{header.offset_from:020}"
        self._part = folder / f".{name}.{os.getpid()}.part"
        self._name = name
        self._digest = hashlib.sha256()
        self.record_count = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._raw = self._part.open("wb")
        except OSError as error:
            raise ArchiveUnwritable(folder, error.strerror or str(error)) from error
        # No time of day in it: the same records are the same file.
        self._file = gzip.GzipFile("", "wb", 6, self._raw, mtime=0)
        self._line(
            {
                "refold_archive": FORMAT,
                "namespace": header.namespace,
                "topic": "events",
                "partition": header.partition,
                "partition_count": header.partition_count,
                "topic_ids": list(header.topic_ids),
                "offset_from": header.offset_from,
                "base": _text(header.base),
            }
        )

    def add(self, record: Record) -> None:
        """Append a record. Raises ArchiveUnwritable."""
        line = [record.offset, record.append_ms, *map(_text, record[1:4])]
        self._digest.update(self._line(line))
        self.record_count += 1

    def finish(self, offset_next: int) -> ArchiveFile:
        """Flush it to the disk, read it back, and give it its name. Raises ArchiveUnwritable."""
        digest = self._digest.hexdigest()
        self._line({"offset_next": offset_next, "records": self.record_count, "sha256": digest})
        path = self._folder / f"{self._name}-{offset_next:020}.jsonl.gz"
        try:
            self._file.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            sha256 = _sha256_of(self._part)
            found = _Read(self._part)
            for _ in found:
                pass
            if (found.digest, found.offset_next) != (digest, offset_next):
                raise ArchiveUnwritable(path, "it does not read back as it was written")
            if path.exists():
                if _sha256_of(path) != sha256:
                    reason = "there is another file of that name, perhaps of another log"
                    raise ArchiveUnwritable(path, reason)
                self._part.unlink()
            else:
                self._part.rename(path)
            _sync_folder(self._folder)
            size = path.stat().st_size
        except ArchiveDamaged as error:
            raise ArchiveUnwritable(path, error.reason) from error
        except OSError as error:
            raise ArchiveUnwritable(path, error.strerror or str(error)) from error
        return ArchiveFile(path, offset_next, self.record_count, size, sha256)

    def drop(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._raw.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _line(self, content: object) -> bytes:
        line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            raise ArchiveUnwritable(self._part, error.strerror or str(error)) from error
        return line


def read_archive(path: Path) -> tuple[Header, Iterator[Record]]:
    """The header, and the records one by one.

    Raises ArchiveDamaged: at once for no archive, and while or after the last record for one that
    is cut short or changed. Only who has come to the end knows that all of it is as written.
    """
    found = _Read(path)
    return found.header, iter(found)


class _Read:
    """A pass over a file; `digest` and `offset_next` are there when it is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = self._read_lines()
        self.digest, self.offset_next = "", -1
        first = next(self._lines, b"")
        try:
            told: Any = json.loads(first)
            if told["refold_archive"] != FORMAT:
                raise ArchiveDamaged(path, f"its format {told['refold_archive']!r} is not known")
            self.header = Header(
                told["namespace"],
                told["partition"],
                told["partition_count"],
                tuple(told["topic_ids"]),
                told["offset_from"],
                _bytes(told["base"]) or b"",
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveDamaged(path, "its first line is not that of an archive") from error

    def __iter__(self) -> Iterator[Record]:
        digest = hashlib.sha256()
        count, offset = 0, self.header.offset_from
        for line in self._lines:
            try:
                told: Any = json.loads(line)
                if isinstance(told, dict):
                    self._check_end(told, count, digest.hexdigest(), offset)
                    return
                at, append_ms, *rest = told
                key, value, header = map(_bytes, rest)
                record = Record(at, key, value, header, append_ms)
            except (ValueError, KeyError, TypeError) as error:
                reason = f"line {count + 2} is no record"
                raise ArchiveDamaged(self._path, reason) from error
            if record.offset < offset:
                raise ArchiveDamaged(self._path, f"line {count + 2} is not in the log's order")
            digest.update(line)
            count, offset = count + 1, record.offset + 1
            yield record
        raise ArchiveDamaged(self._path, "it is cut short: its last line is missing")

    def _check_end(self, told: dict[str, Any], count: int, digest: str, offset: int) -> None:
        if (told["records"], told["sha256"]) != (count, digest) or told["offset_next"] < offset:
            raise ArchiveDamaged(self._path, "its records are not those that its last line names")
        if next(self._lines, None) is not None:
            raise ArchiveDamaged(self._path, "something follows its last line")
        self.digest, self.offset_next = digest, told["offset_next"]

    def _read_lines(self) -> Iterator[bytes]:
        try:
            with gzip.open(self._path, "rb") as file:
                yield from file
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ArchiveDamaged(self._path, reason) from error


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _sha256_of(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
    return digest.digest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


__all__ = ["ArchiveFile", "Header", "Writer", "read_archive"]
