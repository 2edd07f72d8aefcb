"""Commits to the file on one connection, and what is known of the file from one to the next."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from refold.log.port import Ack, Topic
from refold.log.processes import boot_ms
from refold.log.sqlite_file import NONSENSE, Place, data_version, error_of
from refold.log.sqlite_store import Extent, Packed, Stream, prepare_to_store, store, store_one
from refold.log.sqlite_transactions import transaction, undo
from refold.log.sqlite_waiting import POLL_MS_MIN
from refold.log.sqlite_watch import FileWatch
from refold_schemas.errors import RefoldError
from refold_schemas.errors.log import LogCorrupted, LogUnavailable


class Commits:
    """The connection that a handle writes on. Whoever uses it holds the handle's lock.

    An error is returned, not raised: it is to be told to whoever waits for the commit. In `stored`
    it says whether what was to be committed is known not to be stored.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        place: Place,
        *,
        lock_timeout_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        """The connection waits for locks. Raises sqlite3.Error."""
        self.connection, self._place = connection, place
        self._lock_timeout_ms, self._now_ms = lock_timeout_ms, now_ms
        self._waits_for_lock = True
        self._watch = FileWatch(place.path)
        self._extents: dict[Stream, Extent] = {}
        self._version = -1
        self._looked_boot_ms = 0
        self._alone = False
        prepare_to_store(connection)

    def wait_for_lock(self, *, wait: bool) -> None:
        """Whether the connection waits where another process has the file locked."""
        if wait is not self._waits_for_lock:
            timeout_ms = self._lock_timeout_ms if wait else 0
            self.connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")
            self._waits_for_lock = wait

    def perform(self, work: Callable[[sqlite3.Connection], Any]) -> tuple[Any, Exception | None]:
        """Do something else in a transaction of its own."""
        if lost := self.lost(stored=False):
            return None, lost
        try:
            return transaction(self.connection, work), None
        except RefoldError as error:
            return None, error
        except (sqlite3.Error, *NONSENSE) as error:
            return None, self._error_of(error)

    def store(self, batches: Sequence[Packed]) -> list[tuple[Ack | None, Exception | None]]:
        """Store the batches in one transaction: one fsync for all."""
        connection = self.connection
        committing = False
        if self._watch.lost is not None and (lost := self.lost(stored=False)):
            return [(None, lost) for _ in batches]
        stream = batches[0].stream
        known = self._extents.get(stream)
        if len(batches) == 1 and known is not None and stream.topic is not Topic.SNAPSHOTS:
            try:
                after = store_one(connection, batches[0], known, self._now_ms())
                if after is not None:
                    self._look_for_others()
            except (sqlite3.Error, *NONSENSE) as error:
                undo(connection)
                self._extents = {}
                return [(None, self._error_of(error, committing=True))]
            if after is not None:
                self._extents[stream] = after
                if lost := self.lost():
                    return [(None, lost)]
                return [(Ack(known.end, after.append_ms), None)]
        try:
            connection.execute("BEGIN IMMEDIATE")
            extents = self._known_extents()
            acks = store(connection, self._place, batches, extents, self._now_ms())
            committing = True
            connection.execute("COMMIT")
        except (sqlite3.Error, LogCorrupted, *NONSENSE) as error:
            undo(connection)
            self._extents = {}
            return [(None, self._error_of(error, committing=committing)) for _ in batches]
        self._extents = extents
        if lost := self.lost():
            return [(None, lost) for _ in batches]
        return [(ack, None) for ack in acks]

    def forget(self, stream: Stream) -> None:
        """What is known of a stream may be wrong: our own commits change no `data_version`."""
        self._extents.pop(stream, None)

    def take_alone(self) -> bool:
        """Whether the last look has seen that no other process commits; said once for each look."""
        alone, self._alone = self._alone, False
        return alone

    def lost(self, *, stored: bool | None = None) -> LogUnavailable | None:
        """What to say if a file was removed or replaced under us: what we write is then lost."""
        lost = self._watch.look(self.connection)
        if lost is None:
            return None
        return LogUnavailable(
            self._place.url, lost.reason, kept=lost.kept, next=lost.next, stored=stored
        )

    def _known_extents(self) -> dict[Stream, Extent]:
        """Extents as far as they are known here: none if another one has committed."""
        self._looked_boot_ms = 0
        self._look_for_others()
        return dict(self._extents)

    def _look_for_others(self) -> None:
        """Whether another process has committed, so that the loop need not ask; now and then."""
        now_ms = boot_ms()
        if now_ms - self._looked_boot_ms < POLL_MS_MIN:
            return
        self._looked_boot_ms = now_ms
        version = data_version(self.connection)
        self._alone = version == self._version
        if not self._alone:
            self._version = version
            self._extents = {}

    def _error_of(self, error: Exception, *, committing: bool = False) -> LogUnavailable:
        return error_of(error, self._place, waited_ms=self._lock_timeout_ms, committing=committing)
