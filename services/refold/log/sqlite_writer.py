"""The thread that commits for one handle: all that is queued at once, and heartbeats in between."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from refold.log.port import Ack, Entry
from refold.log.processes import boot_ms
from refold.log.rows import squeeze
from refold.log.sqlite_commits import Commits
from refold.log.sqlite_leases import Heartbeats
from refold.log.sqlite_store import Packed, Stream

GROUP_SIZE_MAX = 8 << 20
"""Bytes after which a transaction takes no further batch."""
QUICK_MS = 25
"""How long a commit on the caller's thread may take, or the next ones are left to this one for
SLOW_MS. One that copies the WAL into the file takes some milliseconds."""
SLOW_MS = 10_000


class Append(NamedTuple):
    """A batch on its way to the file."""

    stream: Stream
    entries: tuple[Entry, ...]
    frames: list[bytes]
    size: int
    answer: "asyncio.Future[Ack]"


class Job(NamedTuple):
    """Something else to be done in a transaction of its own on the writer's connection."""

    work: Callable[[sqlite3.Connection], Any]
    answer: "asyncio.Future[Any]"


class Stop(NamedTuple):
    """The end of the thread; `free` frees the leases of the handle's owners first."""

    free: bool
    answer: "asyncio.Future[None]"


Work = Append | Job | Stop
Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Ready(NamedTuple):
    """A file that is open for writing. `made`: something was made for it."""

    commits: Commits
    beats: Heartbeats
    made: bool


class Writer:
    """One thread, from `begin` to the `Stop` that is put.

    `prepare()` runs on it, and so does `wake_others(grown)`, which wakes whoever waits elsewhere in
    this process. On the loop run `settle(outcomes, grown, alone)`, and `fail(error)` where the
    thread ends by a defect.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        prepare: Callable[[], Ready],
        settle: Callable[[Sequence[Outcome], Collection[Stream], bool], None],
        wake_others: Callable[[Collection[Stream]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._loop, self._prepare = loop, prepare
        self._settle, self._wake_others, self._fail = settle, wake_others, fail
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        # Whoever commits holds `_writing`: what follows is touched under it only.
        self._writing = threading.Lock()
        self._commits: Commits | None = None
        self._slow_until_boot_ms = 0

    async def begin(self) -> bool:
        """Return once the file is open: whether anything was made. Raises what `prepare` raises."""
        opened: asyncio.Future[bool] = self._loop.create_future()
        threading.Thread(
            target=self._run, args=(opened,), name="refold-log-writer", daemon=True
        ).start()
        return await opened

    def put(self, work: Work) -> None:
        """Queue it; its answer comes on the loop."""
        self._queue.put(work)

    def here(self, append: Append) -> tuple[Ack | None, BaseException | None, bool] | None:
        """Commit on the caller's thread, if nobody else commits and the disk is quick.

        None if not done; else the acknowledgement, or the error, and whether no other process has
        committed.
        """
        if boot_ms() < self._slow_until_boot_ms or not self._writing.acquire(blocking=False):
            return None
        try:
            commits = self._commits
            if commits is None:
                return None
            began_ms = time.monotonic() * 1000
            commits.wait_for_lock(wait=False)
            [(_, ack, error)] = self._commit(commits, [append])
            if time.monotonic() * 1000 - began_ms > QUICK_MS:
                self._slow_until_boot_ms = boot_ms() + SLOW_MS
            return ack, error, commits.take_alone()
        finally:
            self._writing.release()

    def forget(self, stream: Stream) -> None:
        """A job has changed a stream: what the next commit knows of it may be wrong."""
        if self._commits is not None:
            self._commits.forget(stream)

    def _run(self, opened: "asyncio.Future[bool]") -> None:
        try:
            ready = self._prepare()
        except BaseException as error:
            self._tell([(opened, None, error)])
            return
        self._tell([(opened, ready.made, None)])
        stop: Stop | None = None
        failure: Exception | None = None
        self._commits = ready.commits
        try:
            stop = self._serve(ready.commits, ready.beats)
        except Exception as error:
            failure = error
        finally:
            with self._writing, contextlib.suppress(sqlite3.Error):
                self._commits = None
                ready.commits.connection.close()
        if stop is not None:
            self._tell([(stop.answer, None, None)])
        elif failure is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits
                self._loop.call_soon_threadsafe(self._fail, failure)

    def _serve(self, commits: Commits, beats: Heartbeats) -> Stop | None:
        """Take everything that is queued, commit it, tell it; until stopped or left alone."""
        while True:
            appends: list[Append] = []
            other: Job | Stop | None = None
            size = 0
            try:
                work: Work = self._queue.get(timeout=beats.due_in_s())
                while True:
                    if not isinstance(work, Append):
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
                commits.wait_for_lock(wait=True)
                if appends:
                    grown = {append.stream for append in appends}
                    if not self._tell(self._commit(commits, appends), grown):
                        return None
                if isinstance(other, Job):
                    done = (other.answer, *commits.perform(other.work))
                    if not self._tell([done]):
                        return None
                if beats.due_in_s() == 0:
                    if self._loop.is_closed():
                        return None  # nobody gave the log back, but nobody is there any more
                    beats.beat(commits)
                if isinstance(other, Stop):
                    if other.free:
                        beats.free_all(commits)
                    return other

    def _tell(self, outcomes: Sequence[Outcome], grown: Collection[Stream] = ()) -> bool:
        """Hand outcomes to the loop; wake whoever waits in this process for what has `grown`.

        False if there is no loop any more: its process part ended.
        """
        try:
            alone = self._commits is not None and self._commits.take_alone()
            self._loop.call_soon_threadsafe(self._settle, outcomes, grown, alone)
        except RuntimeError:
            return False
        if grown:
            self._wake_others(grown)
        return True

    def _commit(self, commits: Commits, appends: Sequence[Append]) -> list[Outcome]:
        batches = [
            Packed(append.stream, append.entries, [squeeze(payload) for payload in append.frames])
            for append in appends
        ]
        answers = zip(appends, commits.store(batches), strict=True)
        return [(append.answer, *outcome) for append, outcome in answers]
