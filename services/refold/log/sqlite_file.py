"""The file behind the SQLite log: its URL, its tables, its checks, and what its errors mean."""

import os
import re
import sqlite3
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from refold_schemas.errors.log import (
    LogCorrupted,
    LogForeign,
    LogFull,
    LogLocked,
    LogMissing,
    LogReadOnly,
    LogUnavailable,
    LogUrlInvalid,
)

APPLICATION_ID = 0x52464C47
"""`RFLG` in the header of the file, which `file(1)` and SQLite's own tools show."""
FORMAT = 1
"""The format of the tables (`user_version`); a file with a higher one is not opened."""
NAMESPACE_DEFAULT = "default"
OFFSET_BITS = 44
"""A row's place is `stream << 44 | offset`: one integer key, so that a stream lies together."""

# `batches` holds one row per batch. `latest` holds the compacted topic, one row per key. `streams`
# says for each partition of a topic where it begins (`start_offset`) and ends (`next_offset`), and
# is written with each batch: so the rows can be checked against it, and it against the rows.
_TABLES = """
CREATE TABLE namespaces (
    namespace INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partition_count INTEGER NOT NULL,
    batch_size_max INTEGER NOT NULL,
    made_ms INTEGER NOT NULL
);
CREATE TABLE topics (
    namespace INTEGER NOT NULL REFERENCES namespaces,
    topic TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    PRIMARY KEY (namespace, topic)
) WITHOUT ROWID;
CREATE TABLE streams (
    stream INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL REFERENCES namespaces,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    start_offset INTEGER NOT NULL DEFAULT 0,
    next_offset INTEGER NOT NULL DEFAULT 0,
    readable_offset INTEGER NOT NULL DEFAULT 0,
    append_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (namespace, topic, partition)
);
CREATE TABLE batches (
    position INTEGER PRIMARY KEY,
    record_count INTEGER NOT NULL,
    append_ms INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE latest (
    position INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    append_ms INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX latest_key ON latest (position >> 44, key);
CREATE INDEX latest_deleted ON latest (append_ms) WHERE deleted;
CREATE TABLE owners (
    namespace INTEGER NOT NULL REFERENCES namespaces,
    owner TEXT NOT NULL,
    joined INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    heartbeat_boot_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, owner)
) WITHOUT ROWID;
CREATE TABLE leases (
    namespace INTEGER NOT NULL REFERENCES namespaces,
    partition INTEGER NOT NULL,
    owner TEXT NOT NULL,
    leaving INTEGER NOT NULL,
    PRIMARY KEY (namespace, partition)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Place:
    """What a URL says. `partition_count` is None where the URL says nothing of it."""

    url: str
    path: Path
    namespace: str
    partition_count: int | None


def parse_url(url: str) -> Place:
    """Read `sqlite:///relative.db` or `sqlite:////absolute.db`, with `?ns=` and `?partitions=`.

    Raises LogUrlInvalid. A relative path counts from the present working directory.

    >>> parse_url("sqlite:////var/lib/refold/log.db?ns=refunds&partitions=4").namespace
    'refunds'
    """
    head, _, query = url.partition("?")
    if not head.startswith("sqlite://"):
        raise LogUrlInvalid(url, "it does not begin with sqlite://")
    if not head.startswith("sqlite:///"):
        raise LogUrlInvalid(url, "there are two slashes before the path, three are needed")
    path = unquote(head.removeprefix("sqlite:///"))
    if not path or path == ":memory:":
        raise LogUrlInvalid(url, "it names no file; a log in memory is memory://NAME")
    if path.endswith("/"):
        raise LogUrlInvalid(url, "it names a directory, not a file")
    if "\0" in path:
        raise LogUrlInvalid(url, "its path holds a NUL character")
    namespace, partition_count = NAMESPACE_DEFAULT, None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "ns":
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
                raise LogUrlInvalid(
                    url, f"the namespace {value!r} is not 1 to 200 of A-Z a-z 0-9 . _ -"
                )
            namespace = value
        elif name == "partitions":
            if not re.fullmatch(r"[1-9][0-9]{0,3}", value):
                raise LogUrlInvalid(url, f"partitions={value} is not a number from 1 to 9999")
            partition_count = int(value)
        else:
            raise LogUrlInvalid(url, f"it has an unknown setting {name!r} (known: ns, partitions)")
    return Place(url, Path(os.path.abspath(path)), namespace, partition_count)


NONSENSE = (UnicodeDecodeError, TypeError, ValueError, KeyError, OverflowError)
"""What reading a damaged row ends with where SQLite itself finds nothing wrong."""


def error_of(
    error: Exception, place: Place, *, waited_ms: int, committing: bool = False
) -> LogUnavailable:
    """What an error of SQLite means for the log, and for the append that met it.

    Everything before COMMIT is undone, so it is known not to be stored. A COMMIT that fails for
    want of room or of a lock is undone too; one whose write or fsync fails is not known: the frame
    may be in the file and be found by the recovery after a crash.
    """
    if isinstance(error, LogUnavailable):
        return error
    meaning = _meaning(error, place, waited_ms, committing)
    meaning.__cause__ = error
    return meaning


def _meaning(error: Exception, place: Place, waited_ms: int, committing: bool) -> LogUnavailable:
    url = place.url
    if not isinstance(error, sqlite3.Error):
        return LogCorrupted(url, f"what {place.path} holds makes no sense ({error!r})")
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LogLocked(url, waited_ms)
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return LogReadOnly(url, f"the file {place.path} may not be written ({name})")
    if primary == sqlite3.SQLITE_FULL:
        return LogFull(url)
    if primary == sqlite3.SQLITE_NOTADB:
        return LogCorrupted(url, f"{place.path} is not a database of SQLite")
    if primary == sqlite3.SQLITE_CORRUPT or (primary is None and "decode" in str(error)):
        return LogCorrupted(url, f"a page of {place.path} is damaged ({error})")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return LogUnavailable(
            url,
            f"the file {place.path} cannot be opened ({name})",
            next="check that its directory exists and that this user may write there",
        )
    if primary == sqlite3.SQLITE_IOERR:
        return LogUnavailable(
            url,
            f"reading or writing {place.path} failed ({name})"
            + ("; it is not known whether the last batches are stored" if committing else ""),
            next="check the disk; refold goes on from the log",
            stored=None if committing else False,
        )
    return LogUnavailable(url, f"{error} ({name})", stored=None if committing else False)


def check_path(place: Place, *, create: bool, make_directory: bool) -> None:
    """Refuse what cannot be a log before SQLite sees it. Raises LogUnavailable and its kinds."""
    path, url = place.path, place.url
    if create and make_directory and not path.parent.exists():
        try:
            path.parent.mkdir()
            _sync_directory(path.parent.parent)
        except OSError as error:
            raise LogUnavailable(
                url, f"the directory {path.parent} cannot be made ({error.strerror})"
            ) from error
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not create:
            raise LogMissing(url, f"there is no file {path}") from None
        if not path.parent.is_dir():
            raise LogUnavailable(
                url,
                f"the directory {path.parent} does not exist",
                kept="nothing was made",
                next="make the directory, or name another file",
            ) from None
        if not _may(path.parent, os.W_OK | os.X_OK):
            raise LogReadOnly(url, f"nothing may be written in {path.parent}") from None
        return
    except OSError as error:
        raise LogUnavailable(url, f"{path} cannot be reached ({error.strerror})") from error
    if stat.S_ISDIR(mode):
        raise LogUnavailable(url, f"{path} is a directory", next="name a file in it")
    if not stat.S_ISREG(mode):
        raise LogUnavailable(url, f"{path} is not a regular file", next="name another file")
    if not _may(path, os.R_OK | os.W_OK):
        raise LogReadOnly(url, f"the file {path} may not be written")
    if not _may(path.parent, os.W_OK | os.X_OK):
        raise LogReadOnly(url, f"nothing may be written in {path.parent}")
    # The file is not looked into here: closing a descriptor of it would drop the locks that other
    # connections of this process hold (SQLite, "How To Corrupt An SQLite Database File", 2.2).


def free_bytes(place: Place) -> int | None:
    """Bytes that the file may still grow by on its disk; None if that cannot be found out."""
    try:
        found = os.statvfs(place.path.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def connect(place: Place, *, create: bool, lock_timeout_ms: int) -> sqlite3.Connection:
    """A connection that commits only when it is told to, and waits `lock_timeout_ms` for a lock."""
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(
        f"file:{quote(str(place.path))}?mode={mode}",
        uri=True,
        timeout=lock_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def data_version(connection: sqlite3.Connection) -> int:
    """What each commit of another connection changes, and those of this one do not."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def prepare(connection: sqlite3.Connection, place: Place, *, create: bool, wait_ms: int) -> bool:
    """Check whose file it is, make the tables if there are none, switch on WAL; True if made."""
    made = False
    if not _is_ours(connection, place):
        if not create:
            raise LogMissing(place.url, f"the file {place.path} is empty")
        # Whoever comes second finds the tables made: hence the second look under the lock.
        _use_wal(connection, place, wait_ms)
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not _is_ours(connection, place):
                for statement in _TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                made = True
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    _use_wal(connection, place, wait_ms)
    # FULL: each commit is on the disk before it is acknowledged. fullfsync: on macOS a plain fsync
    # leaves the data in the drive's cache.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    return made


def _is_ours(connection: sqlite3.Connection, place: Place) -> bool:
    """True for a file with our tables, False for an empty one. Raises LogForeign."""
    # In one transaction: another process may be making the tables at this moment.
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    try:
        (table_count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        if alone and connection.in_transaction:
            connection.execute("ROLLBACK")
    if application_id == 0 and version == 0 and table_count == 0:
        return False
    if application_id != APPLICATION_ID:
        raise LogForeign(place.url, f"{place.path} is the database of another application")
    if version > FORMAT:
        raise LogForeign(
            place.url,
            f"{place.path} has format {version}, this version reads up to format {FORMAT}",
            next=f"use a version of refold that reads format {version}",
        )
    return True


def _use_wal(connection: sqlite3.Connection, place: Place, wait_ms: int) -> None:
    # The switch to WAL needs the file alone for a moment and does not wait for it by itself.
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise LogUnavailable(
            place.url,
            f"the file system of {place.path} cannot share a file among processes (no WAL)",
            next="put the file on a local disk",
        )
