"""The log in an SQLite file: one machine, any number of processes, no server.

A writer thread commits, so that an fsync blocks no loop, and commits everything that is queued at
once. Where the caller has nothing else to do and the disk answers at once, a small batch is
committed on the caller's thread: two threads that wake each other take as long as the fsync.
Reads run on the caller's loop on a connection of their own: in WAL mode they wait for nobody.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from refold.log.port import Ack, Entry, LogFacts, Record, Suggestion, Topic, Upgrade
from refold.log.rows import frame
from refold.log.sizes import BATCH_SIZE_MAX, check_batch
from refold.log.sqlite_commits import Commits
from refold.log.sqlite_file import (
    NONSENSE,
    Place,
    check_path,
    connect,
    data_version,
    error_of,
    parse_url,
    prepare,
)
from refold.log.sqlite_leases import Heartbeats, Leases
from refold.log.sqlite_namespace import load_namespace
from refold.log.sqlite_store import Extent, Stream, extent_of, read_records, trim
from refold.log.sqlite_transactions import undo
from refold.log.sqlite_waiting import Waiters
from refold.log.sqlite_writer import Append, Job, Outcome, Ready, Stop, Writer
from refold_schemas.errors import RefoldError
from refold_schemas.errors.log import (
    AppendUnknown,
    LogClosed,
    LogLocked,
    LogUnavailable,
    PartitionMissing,
)

LEASE_MS = 5_000
"""How long an owner whose process has stopped keeps its partitions."""
LOCK_TIMEOUT_MS = 5_000
"""How long a commit waits for another process that has the file locked."""
HERE_SIZE_MAX = 16 << 10
"""A batch up to this size may be committed on the caller's own thread."""
QUEUE_COUNT_MAX = 10_000
"""Appends under way on one handle; more is a caller that doesn't wait for its answers."""


# Handles of this process by file: a commit wakes the waiters of the others without their polling.
_siblings: dict[str, "WeakSet[SqliteLog]"] = {}
_siblings_lock = threading.Lock()


class SqliteLog:
    """A handle on the log in a file. One for each process is enough; several do no harm.

    `place` is a URL (`sqlite:///relative.db?ns=name&partitions=4`) or a path. `partitions` counts
    only when the namespace is made. `file_size_max` (bytes) bounds the file, as a full disk does.
    `make_directory` makes the file's directory with it.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        batch_size_max: int = BATCH_SIZE_MAX,
        lease_ms: int = LEASE_MS,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        file_size_max: int | None = None,
        make_directory: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        url = f"sqlite:///{place}" if isinstance(place, Path) else place
        self._place: Place = parse_url(url)
        self._batch_size_max, self._lease_ms = batch_size_max, lease_ms
        self._lock_timeout_ms, self._file_size_max = lock_timeout_ms, file_size_max
        self._make_directory, self._now_ms = make_directory, now_ms
        self._facts: LogFacts | None = None
        self._streams: dict[tuple[Topic, int], Stream] = {}
        self._beats: Heartbeats | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False
        self._failure = ""
        self._writer: Writer | None = None
        self._reader: sqlite3.Connection | None = None
        self._under_way: dict[asyncio.Future[Any], Stream | None] = {}
        self._waiters = Waiters(self._is_there, self._data_version)
        self._is_idle: Callable[[], bool] = lambda: False

    @property
    def url(self) -> str:
        """The URL it was opened with."""
        return self._place.url

    @property
    def facts(self) -> LogFacts:
        """Facts as they are in the file; raises LogClosed before `open`."""
        if self._facts is None:
            raise LogClosed(self.url)
        return self._facts

    # Opening and closing

    async def open(self, *, create: bool) -> bool:
        """Open the file; with `create` make file, tables and namespace where missing, and say so.

        Raises LogUnavailable, or one of its kinds that says more (LogLocked, LogReadOnly, LogFull,
        LogCorrupted, LogForeign, LogMissing), and LogUrlInvalid if the URL asks for another
        partition count than the namespace has.
        """
        if self._writer is not None:
            raise LogClosed(self.url)
        self._loop = asyncio.get_running_loop()
        writer = self._writer = Writer(
            self._loop,
            prepare=partial(self._prepare, create),
            settle=self._settle,
            wake_others=self._wake_siblings,
            fail=self._give_out,
        )
        try:
            made = await writer.begin()
        except asyncio.CancelledError:
            writer.put(Stop(False, self._loop.create_future()))
            raise
        except RefoldError:
            self._writer = None  # its thread has ended; the caller may try again
            raise
        self._open = True
        with _siblings_lock:
            _siblings.setdefault(str(self._place.path), WeakSet()).add(self)
        return made

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """Nothing: a file of another version is not opened in the first place."""
        return Upgrade()

    async def close(self) -> None:
        """Close the file and free the leases. Appends under way end as unknown."""
        await self._stop(free=True)

    async def kill(self) -> None:
        """End the handle as SIGKILL ends its process: its leases stay until they expire."""
        await self._stop(free=False)

    async def _stop(self, *, free: bool) -> None:
        was_open, self._open = self._open, False
        self._end_all("the handle was closed")
        self._waiters.end()
        if self._reader is not None:
            # Before the writer's connection, so that the last one to close folds the WAL back in.
            self._reader.close()
            self._reader = None
        if not was_open:
            return
        stopped: asyncio.Future[None] = self._loop_of().create_future()
        self._writer_of().put(Stop(free, stopped))
        await stopped

    def _end_all(self, reason: str) -> None:
        """Appends under way end as unknown, everything else as closed, waits as over."""
        for answer, stream in self._under_way.items():
            if answer.done():
                continue
            if stream is None:
                answer.set_exception(LogClosed(self.url))
            else:
                answer.set_exception(
                    AppendUnknown(
                        topic=stream.topic.value, partition=stream.partition, reason=reason
                    )
                )
        self._waiters.end_waits()

    # What the port asks for, on the loop

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append one batch, on the disk when this returns; see the port.

        A LogUnavailable raised here says in `stored` whether the batch is known not to be stored
        (False: the transaction was undone) or not known at all (None).
        """
        stream = self._stream(topic, partition)
        batch = tuple(entries)
        size = check_batch(topic, partition, batch, self.facts.batch_size_max)
        if len(self._under_way) >= QUEUE_COUNT_MAX:
            raise LogUnavailable(
                self.url,
                f"{QUEUE_COUNT_MAX} appends are under way already",
                next="wait for their answers before appending more",
                stored=False,
            )
        # Made here, not on the writer's thread: the two would take the interpreter from each other.
        one_by_one = topic is Topic.SNAPSHOTS
        frames = [frame([entry]) for entry in batch] if one_by_one else [frame(batch)]
        append = Append(stream, batch, frames, size, self._loop_of().create_future())
        if size <= HERE_SIZE_MAX and not self._under_way and self._is_idle():
            ack = self._append_here(append)
            if ack is not None:
                await asyncio.sleep(0)  # an append is a turn of the loop, always
                return ack
        answer = append.answer
        self._under_way[answer] = stream
        try:
            self._writer_of().put(append)
            return await answer
        finally:
            del self._under_way[answer]

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """Appends of a caller that has nothing else to do are made on its own thread."""
        self._is_idle = is_idle

    def _append_here(self, append: Append) -> Ack | None:
        """Commit on this thread; None if not done. Raises what `append` raises."""
        try:
            done = self._writer_of().here(append)
        except Exception as defect:
            self._give_out(defect)
            raise AppendUnknown(
                topic=append.stream.topic.value,
                partition=append.stream.partition,
                reason=self._failure,
            ) from defect
        if done is None:
            return None
        ack, error, alone = done
        if isinstance(error, LogLocked):
            return None  # another process is writing: the writer thread waits for it
        if error is not None:
            raise error
        self._settle((), {append.stream}, alone)
        self._wake_siblings({append.stream})
        return ack

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """Read stored records from `offset` on: whole batches until `size_max` is reached.

        Raises OffsetOutOfRange, and LogCorrupted with the offset of a row that is not as written
        or is missing, once everything before it has been read.
        """
        stream = self._stream(topic, partition)
        with self._reading() as reader:
            reader.execute("BEGIN")
            try:
                return read_records(reader, self._place, stream, offset, size_max)
            finally:
                undo(reader)

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """`(start, end)` of the partition."""
        return self._extent(self._stream(topic, partition))[:2]

    async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
        """Wait until a record at or after `offset` is there (or `offset` is not kept any more).

        Appends of this process wake at once, those of others are seen within 2 to 10 ms, after
        a while without any within 25 ms.
        """
        stream = self._stream(topic, partition)
        if self._is_there(stream, offset):
            return True
        if timeout_ms <= 0:
            return False
        return await self._waiters.wait(stream, offset, timeout_ms)

    async def suggest(self, owner: str) -> Suggestion:
        """One heartbeat of `owner`, and the partitions that the leases give to it now.

        From now on the writer thread keeps the heartbeat going, until `give_up` or `close`.
        """
        work = partial(self._beats_of().suggest, owner=owner)
        return Suggestion(await self._do(work))

    async def give_up(self, owner: str) -> None:
        """Free the leases of `owner`."""
        await self._do(partial(self._beats_of().give_up, owner=owner))

    async def owner_lives(self, partition: int) -> bool | None:
        """Whether the partition's owner lives: False if there is none or it is surely dead.

        None where nothing can be said: its heartbeat has stopped, but its process may be frozen.
        """
        self._stream(Topic.EVENTS, partition)
        with self._reading() as reader:
            return self._beats_of().leases.owner_lives(reader, partition)

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Delete the records before `before_offset`; the file's pages are used again.

        A row of a batch that reaches over the new start stays; reads leave out its beginning.
        """
        stream = self._stream(topic, partition)

        def work(connection: sqlite3.Connection) -> int:
            self._writer_of().forget(stream)
            return trim(connection, self._place, stream, before_offset)

        return int(await self._do(work))

    async def _do(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        self._check_open()
        answer: asyncio.Future[Any] = self._loop_of().create_future()
        self._under_way[answer] = None
        try:
            self._writer_of().put(Job(work, answer))
            return await answer
        finally:
            del self._under_way[answer]

    def _check_open(self) -> None:
        if self._failure:
            raise LogUnavailable(
                self.url, self._failure, next="report it, and start this process again"
            )
        if not self._open:
            raise LogClosed(self.url)

    def _loop_of(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "there is a loop from open() on"
        return self._loop

    def _beats_of(self) -> Heartbeats:
        self._check_open()
        assert self._beats is not None, "there are heartbeats from open() on"
        return self._beats

    def _writer_of(self) -> Writer:
        assert self._writer is not None, "there is a writer from open() on"
        return self._writer

    def _stream(self, topic: Topic, partition: int) -> Stream:
        self._check_open()
        stream = self._streams.get((topic, partition))
        if stream is None:
            raise PartitionMissing(
                self.url,
                topic=topic.value,
                partition=partition,
                partition_count=self.facts.partition_count,
            )
        return stream

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        assert self._reader is not None, "there is a reader while the handle is open"
        try:
            yield self._reader
        except (sqlite3.Error, *NONSENSE) as error:
            raise self._error_of(error) from error

    def _error_of(self, error: Exception) -> LogUnavailable:
        return error_of(error, self._place, waited_ms=self._lock_timeout_ms)

    def _extent(self, stream: Stream) -> Extent:
        with self._reading() as reader:
            return extent_of(reader, self._place, stream)

    def _is_there(self, stream: Stream, offset: int) -> bool:
        # Below the start there is nothing to wait for: the read will say that it is gone.
        extent = self._extent(stream)
        return offset < max(extent.readable, extent.start)

    def _data_version(self) -> int:
        assert self._reader is not None, "there is a reader while the handle is open"
        return data_version(self._reader)

    def _settle(
        self, outcomes: Sequence[Outcome], streams: Collection[Stream], alone: bool
    ) -> None:
        for answer, result, error in outcomes:
            if answer.done():
                continue
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
        self._waiters.wake_soon(streams, alone=alone)

    def _give_out(self, failure: Exception) -> None:
        """Nobody is left to commit: say so to all who wait, and refuse what would come."""
        reason = f"what writes has failed with {failure!r}"
        self._failure, self._open = reason, False
        self._end_all(reason)
        self._loop_of().call_exception_handler({"message": reason, "exception": failure})

    def _wake_siblings(self, grown: Collection[Stream]) -> None:
        """Wake whoever waits on another handle of this process."""
        with _siblings_lock:
            others = [s for s in _siblings.get(str(self._place.path), ()) if s is not self]
        for other in others:
            if other._waiters and other._loop is not None:
                # Its loop may have ended meanwhile; then nobody waits there.
                with contextlib.suppress(RuntimeError):
                    other._loop.call_soon_threadsafe(other._waiters.wake_soon, grown)

    def _prepare(self, create: bool) -> Ready:
        place = self._place
        check_path(place, create=create, make_directory=self._make_directory)
        connection = reader = None
        try:
            connection = connect(place, create=create, lock_timeout_ms=self._lock_timeout_ms)
            if self._file_size_max is not None:
                (page_size,) = connection.execute("PRAGMA page_size").fetchone()
                pages = max(1, self._file_size_max // page_size)
                connection.execute(f"PRAGMA max_page_count = {pages}")
            made = prepare(connection, place, create=create, wait_ms=self._lock_timeout_ms)
            namespace = load_namespace(
                connection,
                place,
                create=create,
                batch_size_max=self._batch_size_max,
                now_ms=self._now_ms(),
            )
            self._facts, self._streams = namespace.facts, namespace.streams
            leases = Leases(namespace.number, namespace.facts.partition_count, self._lease_ms)
            reader = connect(place, create=False, lock_timeout_ms=self._lock_timeout_ms)
            reader.execute("PRAGMA query_only = ON")
            self._waiters.begin(data_version(reader))
            commits = Commits(
                connection, place, lock_timeout_ms=self._lock_timeout_ms, now_ms=self._now_ms
            )
        except BaseException as error:
            for opened in (reader, connection):
                if opened is not None:
                    opened.close()
            if isinstance(error, (sqlite3.Error, *NONSENSE)):
                raise self._error_of(error) from error
            raise
        self._reader, self._beats = reader, Heartbeats(leases)
        return Ready(commits, self._beats, namespace.made or made)
