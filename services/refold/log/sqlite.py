"""The log in an SQLite file: one machine, any number of processes, no server.

A writer thread commits, so that an fsync blocks no loop, and commits everything that is queued at
once. Where the caller has nothing else to do and the disk answers at once, a small batch is
committed on the caller's thread: two threads that wake each other take as long as the fsync.
Reads run on the caller's loop on a connection of their own: in WAL mode they wait for nobody.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from refold.log.port import Ack, Entry, LogFacts, Record, Suggestion, Topic, Upgrade
from refold.log.processes import boot_ms
from refold.log.rows import frame, squeeze
from refold.log.sizes import BATCH_SIZE_MAX, check_batch
from refold.log.sqlite_file import (
    NONSENSE,
    Place,
    check_path,
    connect,
    error_of,
    parse_url,
    prepare,
)
from refold.log.sqlite_leases import Leases
from refold.log.sqlite_store import (
    Extent,
    Packed,
    Stream,
    extent_of,
    prepare_to_store,
    read_records,
    store,
    store_one,
    trim,
)
from refold.log.sqlite_watch import FileWatch
from refold_schemas.errors import RefoldError
from refold_schemas.errors.log import (
    AppendUnknown,
    LogClosed,
    LogCorrupted,
    LogLocked,
    LogMissing,
    LogUnavailable,
    LogUrlInvalid,
    PartitionMissing,
)

LEASE_MS = 5_000
"""How long an owner whose process has stopped keeps its partitions."""
LOCK_TIMEOUT_MS = 5_000
"""How long a commit waits for another process that has the file locked."""
POLL_MS_MIN, POLL_MS_MAX, POLL_MS_LATER = 2.0, 10.0, 25.0
"""How often a waiter looks whether another process has committed: soon, then less and less."""
QUIET_S = 5.0
"""So long after a commit a waiter looks at least every POLL_MS_MAX, later every POLL_MS_LATER."""
GROUP_SIZE_MAX = 8 << 20
"""Bytes after which a transaction takes no further batch."""
HERE_SIZE_MAX = 16 << 10
"""A batch up to this size may be committed on the caller's own thread."""
QUICK_MS = 25
"""How long such a commit may take, or the next ones are left to the writer thread for SLOW_MS. One
that copies the WAL into the file takes some milliseconds."""
SLOW_MS = 10_000
QUEUE_COUNT_MAX = 10_000
"""Appends under way on one handle; more is a caller that doesn't wait for its answers."""

# What is appended most lies last in the file, where SQLite fills its pages best.
_STREAM_ORDER = (Topic.DEAD_LETTERS, Topic.SNAPSHOTS, Topic.COMMANDS, Topic.EVENTS)


class _Append(NamedTuple):
    """A batch on its way to the writer thread."""

    stream: Stream
    entries: tuple[Entry, ...]
    frames: list[bytes]
    size: int
    answer: "asyncio.Future[Ack]"


class _Job(NamedTuple):
    """Something else to be done in a transaction of its own on the writer's connection."""

    work: Callable[[sqlite3.Connection], Any]
    answer: "asyncio.Future[Any]"


class _Stop(NamedTuple):
    """The end of the writer thread; `free` frees the leases of this handle's owners first."""

    free: bool
    answer: "asyncio.Future[None]"


_Work = _Append | _Job | _Stop
_Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]

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
        self._leases: Leases | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False
        self._failure = ""
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._reader: sqlite3.Connection | None = None
        self._under_way: dict[asyncio.Future[Any], Stream | None] = {}
        # Waiters and polling: touched on the loop only.
        self._waiters: dict[asyncio.Future[bool], tuple[Stream, int]] = {}
        self._poll_timer: asyncio.TimerHandle | None = None
        self._poll_ms = POLL_MS_MIN
        self._data_version = -1
        self._alone_until = self._quiet_from = 0.0
        self._is_idle: Callable[[], bool] = lambda: False
        # Whoever commits holds `_writing`: what follows is touched under it only.
        self._writing = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._waits_for_lock = True
        self._slow_until_boot_ms = 0
        self._extents: dict[Stream, Extent] = {}
        self._writer_version = -1
        self._looked_boot_ms = 0
        self._alone = False
        self._watch: FileWatch | None = None
        self._owners: dict[str, int] = {}

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
        if self._thread is not None:
            raise LogClosed(self.url)
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[bool] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(create, opened), name="refold-log-writer", daemon=True
        )
        self._thread.start()
        try:
            made = await opened
        except asyncio.CancelledError:
            self._queue.put(_Stop(False, self._loop.create_future()))
            raise
        except RefoldError:
            self._thread = None  # it has ended; the caller may try again
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
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        if self._reader is not None:
            # Before the writer's connection, so that the last one to close folds the WAL back in.
            self._reader.close()
            self._reader = None
        if not was_open:
            return
        stopped: asyncio.Future[None] = self._loop_of().create_future()
        self._queue.put(_Stop(free, stopped))
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
        for waiter in self._waiters:
            _end_wait(waiter)

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
        append = _Append(stream, batch, frames, size, self._loop_of().create_future())
        if size <= HERE_SIZE_MAX and not self._under_way and self._is_idle():
            ack = self._append_here(append)
            if ack is not None:
                await asyncio.sleep(0)  # an append is a turn of the loop, always
                return ack
        answer = append.answer
        self._under_way[answer] = stream
        try:
            self._queue.put(append)
            return await answer
        finally:
            del self._under_way[answer]

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """Appends of a caller that has nothing else to do are made on its own thread."""
        self._is_idle = is_idle

    def _append_here(self, append: _Append) -> Ack | None:
        """Commit on this thread, if nobody else commits and the disk is quick; None if not done.

        Raises what `append` raises.
        """
        if boot_ms() < self._slow_until_boot_ms or not self._writing.acquire(blocking=False):
            return None
        try:
            connection = self._connection
            if connection is None:
                return None
            began_ms = time.monotonic() * 1000
            self._wait_for_lock(connection, wait=False)
            [(_, ack, error)] = self._commit(connection, [append])
            if time.monotonic() * 1000 - began_ms > QUICK_MS:
                self._slow_until_boot_ms = boot_ms() + SLOW_MS
            alone, self._alone = self._alone, False
        except Exception as defect:
            self._give_out(defect)
            raise AppendUnknown(
                topic=append.stream.topic.value,
                partition=append.stream.partition,
                reason=self._failure,
            ) from defect
        finally:
            self._writing.release()
        if isinstance(error, LogLocked):
            return None  # another process is writing: the writer thread waits for it
        if error is not None:
            raise error
        self._settle((), {append.stream}, alone)
        self._wake_siblings({append.stream})
        return ack  # type: ignore[no-any-return]

    def _wait_for_lock(self, connection: sqlite3.Connection, *, wait: bool) -> None:
        """Whether the connection waits where another process has the file locked."""
        if wait is not self._waits_for_lock:
            timeout_ms = self._lock_timeout_ms if wait else 0
            connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")
            self._waits_for_lock = wait

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
                _undo(reader)

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
        loop = self._loop_of()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters[waiter] = (stream, offset)
        timer = loop.call_later(timeout_ms / 1000, _end_wait, waiter)
        if self._poll_timer is None:
            self._poll_ms = POLL_MS_MIN
            self._poll_timer = loop.call_later(POLL_MS_MIN / 1000, self._poll)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    async def suggest(self, owner: str) -> Suggestion:
        """One heartbeat of `owner`, and the partitions that the leases give to it now.

        From now on the writer thread keeps the heartbeat going, until `give_up` or `close`.
        """

        def work(connection: sqlite3.Connection) -> frozenset[int]:
            self._owners[owner] = boot_ms()
            return self._leases_of().suggest(connection, owner)

        return Suggestion(await self._do(work))

    async def give_up(self, owner: str) -> None:
        """Free the leases of `owner`."""

        def work(connection: sqlite3.Connection) -> None:
            self._owners.pop(owner, None)
            self._leases_of().free(connection, owner)

        await self._do(work)

    async def owner_lives(self, partition: int) -> bool | None:
        """Whether the partition's owner lives: False if there is none or it is surely dead.

        None where nothing can be said: its heartbeat has stopped, but its process may be frozen.
        """
        self._stream(Topic.EVENTS, partition)
        with self._reading() as reader:
            return self._leases_of().owner_lives(reader, partition)

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Delete the records before `before_offset`; the file's pages are used again.

        A row of a batch that reaches over the new start stays; reads leave out its beginning.
        """
        stream = self._stream(topic, partition)

        def work(connection: sqlite3.Connection) -> int:
            # Our own commit changes no data_version of our own: forget what we know.
            self._extents.pop(stream, None)
            return trim(connection, self._place, stream, before_offset)

        return int(await self._do(work))

    async def _do(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        self._check_open()
        answer: asyncio.Future[Any] = self._loop_of().create_future()
        self._under_way[answer] = None
        try:
            self._queue.put(_Job(work, answer))
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

    def _leases_of(self) -> Leases:
        assert self._leases is not None, "there are leases from open() on"
        return self._leases

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

    def _error_of(self, error: Exception, *, committing: bool = False) -> LogUnavailable:
        return error_of(error, self._place, waited_ms=self._lock_timeout_ms, committing=committing)

    def _extent(self, stream: Stream) -> Extent:
        with self._reading() as reader:
            return extent_of(reader, self._place, stream)

    def _is_there(self, stream: Stream, offset: int) -> bool:
        # Below the start there is nothing to wait for: the read will say that it is gone.
        extent = self._extent(stream)
        return offset < max(extent.readable, extent.start)

    # Waking waiters, on the loop

    def _poll(self) -> None:
        """Look whether another connection has committed; poll less and less while none has."""
        self._poll_timer = None
        if not self._waiters or self._reader is None:
            return
        loop = self._loop_of()
        if loop.time() < self._alone_until:  # our writer has looked, at no price
            self._poll_timer = loop.call_later(POLL_MS_MIN / 1000, self._poll)
            return
        try:
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
            changed = version != self._data_version
            self._data_version = version
            if changed:
                self._wake()
        except (sqlite3.Error, LogUnavailable):
            # A look that fails says nothing. The waiters' next read meets the same error and says
            # it to somebody who can act.
            self._wake_all()
            return
        if changed:
            self._poll_ms, self._quiet_from = POLL_MS_MIN, loop.time() + QUIET_S
        else:
            most_ms = POLL_MS_MAX if loop.time() < self._quiet_from else POLL_MS_LATER
            self._poll_ms = min(most_ms, self._poll_ms * 1.5)
        if self._waiters:
            self._poll_timer = loop.call_later(self._poll_ms / 1000, self._poll)

    def _wake(self, streams: Container[Stream] | None = None) -> None:
        """Wake those whose record is there, of `streams` only where it is known which grew."""
        for waiter, (stream, offset) in list(self._waiters.items()):
            if streams is not None and stream not in streams:
                continue
            if not waiter.done() and self._is_there(stream, offset):
                waiter.set_result(True)

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)

    def _wake_soon(self, streams: Container[Stream]) -> None:
        """A commit of this process, into `streams`: look at once."""
        if self._waiters and self._reader is not None:
            try:
                self._wake(streams)
            except LogUnavailable:
                self._wake_all()

    def _settle(
        self, outcomes: Sequence[_Outcome], streams: Container[Stream], alone: bool
    ) -> None:
        if alone:
            self._alone_until = self._loop_of().time() + 2 * POLL_MS_MIN / 1000
        for answer, result, error in outcomes:
            if answer.done():
                continue
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
        self._wake_soon(streams)

    # The writer thread

    def _run(self, create: bool, opened: "asyncio.Future[bool]") -> None:
        try:
            connection, made = self._prepare(create)
        except BaseException as error:
            self._tell([(opened, None, error)])
            return
        self._tell([(opened, made, None)])
        stop: _Stop | None = None
        failure: Exception | None = None
        self._connection = connection
        try:
            stop = self._serve(connection)
        except Exception as error:
            failure = error
        finally:
            with self._writing, contextlib.suppress(sqlite3.Error):
                self._connection = None
                connection.close()
        if stop is not None:
            self._tell([(stop.answer, None, None)])
        elif failure is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits
                self._loop_of().call_soon_threadsafe(self._give_out, failure)

    def _give_out(self, failure: Exception) -> None:
        """Nobody is left to commit: say so to all who wait, and refuse what would come."""
        reason = f"what writes has failed with {failure!r}"
        self._failure, self._open = reason, False
        self._end_all(reason)
        self._loop_of().call_exception_handler({"message": reason, "exception": failure})

    def _serve(self, connection: sqlite3.Connection) -> _Stop | None:
        """Take everything that is queued, commit it, tell it; until stopped or left alone."""
        while True:
            appends: list[_Append] = []
            other: _Job | _Stop | None = None
            size = 0
            try:
                work: _Work = self._queue.get(timeout=self._heartbeat_in())
                while True:
                    if not isinstance(work, _Append):
                        other = work
                        break
                    if not work.answer.done():  # given up before it was begun
                        appends.append(work)
                        size += work.size
                    if size >= GROUP_SIZE_MAX:
                        break
                    work = self._queue.get_nowait()
            except queue.Empty:
                pass
            with self._writing:
                self._wait_for_lock(connection, wait=True)
                if appends:
                    grown = {append.stream for append in appends}
                    if not self._tell(self._commit(connection, appends), grown):
                        return None
                if isinstance(other, _Job) and not self._tell([self._perform(connection, other)]):
                    return None
                if self._heartbeat_in() == 0:
                    if self._loop_of().is_closed():
                        return None  # nobody gave the log back, but nobody is there any more
                    self._beat_once(connection)
                if isinstance(other, _Stop):
                    if other.free and self._lost(connection) is None:
                        self._free_all(connection)
                    return other

    def _beat_once(self, connection: sqlite3.Connection) -> None:
        # A heartbeat that fails is none, and the lease may run out: no more than that, as a lease
        # only suggests. The next one is tried when it is due.
        with contextlib.suppress(sqlite3.Error):
            if self._lost(connection) is None:
                self._transaction(connection, self._beat)
        self._owners = dict.fromkeys(self._owners, boot_ms())

    def _free_all(self, connection: sqlite3.Connection) -> None:
        for owner in list(self._owners):
            # As above: what is not freed now is free when the lease has run out.
            with contextlib.suppress(sqlite3.Error):
                self._transaction(connection, partial(self._leases_of().free, owner=owner))

    def _tell(self, outcomes: Sequence[_Outcome], grown: Collection[Stream] = ()) -> bool:
        """Hand outcomes to the loop; wake whoever waits in this process for what has `grown`.

        False if there is no loop any more: its process part ended.
        """
        try:
            alone, self._alone = self._alone, False
            self._loop_of().call_soon_threadsafe(self._settle, outcomes, grown, alone)
        except RuntimeError:
            return False
        if grown:
            self._wake_siblings(grown)
        return True

    def _wake_siblings(self, grown: Collection[Stream]) -> None:
        """Wake whoever waits on another handle of this process."""
        with _siblings_lock:
            others = [s for s in _siblings.get(str(self._place.path), ()) if s is not self]
        for other in others:
            if other._waiters and other._loop is not None:
                # Its loop may have ended meanwhile; then nobody waits there.
                with contextlib.suppress(RuntimeError):
                    other._loop.call_soon_threadsafe(other._wake_soon, grown)

    def _prepare(self, create: bool) -> tuple[sqlite3.Connection, bool]:
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
            made = self._load(connection, create=create) or made
            reader = connect(place, create=False, lock_timeout_ms=self._lock_timeout_ms)
            reader.execute("PRAGMA query_only = ON")
            (self._data_version,) = reader.execute("PRAGMA data_version").fetchone()
            self._watch = FileWatch(place.path)
            prepare_to_store(connection)
        except BaseException as error:
            for opened in (reader, connection):
                if opened is not None:
                    opened.close()
            if isinstance(error, (sqlite3.Error, *NONSENSE)):
                raise self._error_of(error) from error
            raise
        self._reader = reader
        return connection, made

    def _load(self, connection: sqlite3.Connection, *, create: bool) -> bool:
        """Read what the namespace is, or make it; True if made."""
        place = self._place
        made = False
        row = _namespace(connection, place.namespace)
        if row is None and create:
            made = self._transaction(connection, self._make_namespace)
            row = _namespace(connection, place.namespace)
        if row is None:
            names = [name for (name,) in connection.execute("SELECT name FROM namespaces")]
            raise LogMissing(
                place.url,
                f"{place.path} has no namespace {place.namespace!r}"
                f" (it has: {', '.join(sorted(names)) or 'none'})",
            )
        namespace, partition_count, batch_size_max = row
        if place.partition_count not in (None, partition_count):
            raise LogUrlInvalid(
                place.url,
                f"it asks for {place.partition_count} partitions, the namespace"
                f" {place.namespace!r} was made with {partition_count}",
            )
        ids = dict(
            connection.execute(
                "SELECT topic, topic_id FROM topics WHERE namespace = ?", (namespace,)
            ).fetchall()
        )
        self._streams = {
            (Topic(topic), partition): Stream(number, Topic(topic), partition)
            for topic, partition, number in connection.execute(
                "SELECT topic, partition, stream FROM streams WHERE namespace = ?", (namespace,)
            )
        }
        if set(self._streams) != {(t, p) for t in Topic for p in range(partition_count)}:
            raise LogCorrupted(place.url, "the table of streams is damaged")
        self._leases = Leases(namespace, partition_count, self._lease_ms)
        self._facts = LogFacts(
            place.namespace,
            partition_count,
            tuple(ids[topic.value] for topic in Topic),
            batch_size_max,
        )
        return made

    def _make_namespace(self, connection: sqlite3.Connection) -> bool:
        if _namespace(connection, self._place.namespace) is not None:
            return False  # another process was first
        count = self._place.partition_count or 1
        namespace = connection.execute(
            "INSERT INTO namespaces (name, partition_count, batch_size_max, made_ms)"
            " VALUES (?, ?, ?, ?)",
            (self._place.namespace, count, self._batch_size_max, self._now_ms()),
        ).lastrowid
        for topic in _STREAM_ORDER:
            connection.execute(
                "INSERT INTO topics VALUES (?, ?, ?)", (namespace, topic.value, str(uuid.uuid4()))
            )
            connection.executemany(
                "INSERT INTO streams (namespace, topic, partition) VALUES (?, ?, ?)",
                [(namespace, topic.value, partition) for partition in range(count)],
            )
        return True

    def _transaction(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], Any]
    ) -> Any:
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            _undo(connection)
            raise
        return result

    def _perform(self, connection: sqlite3.Connection, job: _Job) -> _Outcome:
        if lost := self._lost(connection, stored=False):
            return job.answer, None, lost
        try:
            return job.answer, self._transaction(connection, job.work), None
        except RefoldError as error:
            return job.answer, None, error
        except (sqlite3.Error, *NONSENSE) as error:
            return job.answer, None, self._error_of(error)

    def _commit(self, connection: sqlite3.Connection, appends: Sequence[_Append]) -> list[_Outcome]:
        """Store the batches in one transaction: one fsync for all."""
        batches = [
            Packed(append.stream, append.entries, [squeeze(payload) for payload in append.frames])
            for append in appends
        ]
        answers = zip(appends, self._commit_packed(connection, batches), strict=True)
        return [(append.answer, *outcome) for append, outcome in answers]

    def _commit_packed(
        self, connection: sqlite3.Connection, batches: Sequence[Packed]
    ) -> list[tuple[Ack | None, Exception | None]]:
        committing = False
        if self._lost_before and (lost := self._lost(connection, stored=False)):
            return [(None, lost) for _ in batches]
        stream = batches[0].stream
        known = self._extents.get(stream)
        if len(batches) == 1 and known is not None and stream.topic is not Topic.SNAPSHOTS:
            try:
                after = store_one(connection, batches[0], known, self._now_ms())
                if after is not None:
                    self._look_for_others(connection)
            except (sqlite3.Error, *NONSENSE) as error:
                _undo(connection)
                self._extents = {}
                return [(None, self._error_of(error, committing=True))]
            if after is not None:
                self._extents[stream] = after
                if lost := self._lost(connection):
                    return [(None, lost)]
                return [(Ack(known.end, after.append_ms), None)]
        try:
            connection.execute("BEGIN IMMEDIATE")
            extents = self._known_extents(connection)
            acks = store(connection, self._place, batches, extents, self._now_ms())
            committing = True
            connection.execute("COMMIT")
        except (sqlite3.Error, LogCorrupted, *NONSENSE) as error:
            _undo(connection)
            self._extents = {}
            return [(None, self._error_of(error, committing=committing)) for _ in batches]
        self._extents = extents
        if lost := self._lost(connection):
            return [(None, lost) for _ in batches]
        return [(ack, None) for ack in acks]

    def _known_extents(self, connection: sqlite3.Connection) -> dict[Stream, Extent]:
        """Extents as far as this thread knows them: none if another one has committed."""
        self._looked_boot_ms = 0
        self._look_for_others(connection)
        return dict(self._extents)

    def _look_for_others(self, connection: sqlite3.Connection) -> None:
        """Whether another process has committed, which spares the loop to ask; not at each append.

        A connection's own commits do not change its `data_version`, those of all others do.
        """
        now_ms = boot_ms()
        if now_ms - self._looked_boot_ms < POLL_MS_MIN:
            return
        self._looked_boot_ms = now_ms
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        self._alone = version == self._writer_version
        if not self._alone:
            self._writer_version = version
            self._extents = {}

    @property
    def _lost_before(self) -> bool:
        return self._watch is not None and self._watch.lost is not None

    def _lost(
        self, connection: sqlite3.Connection, *, stored: bool | None = None
    ) -> LogUnavailable | None:
        """What to say if a file was removed or replaced under us: what we write is then lost."""
        lost = self._watch.look(connection) if self._watch is not None else None
        if lost is None:
            return None
        return LogUnavailable(self.url, lost.reason, kept=lost.kept, next=lost.next, stored=stored)

    def _heartbeat_in(self) -> float | None:
        """Seconds until a heartbeat is due; None if nobody needs one."""
        if not self._owners:
            return None
        return max(0.0, (min(self._owners.values()) + self._lease_ms // 5 - boot_ms()) / 1000)

    def _beat(self, connection: sqlite3.Connection) -> None:
        self._leases_of().beat(connection, self._owners)


def _end_wait(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
        waiter.set_result(False)


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        # Undoing can fail only if SQLite has undone it already, or when the file is lost; the
        # error that brought us here says it.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _namespace(connection: sqlite3.Connection, name: str) -> tuple[int, int, int] | None:
    row: tuple[int, int, int] | None = connection.execute(
        "SELECT namespace, partition_count, batch_size_max FROM namespaces WHERE name = ?", (name,)
    ).fetchone()
    return row
