"""Whether the files that a handle has open are still those that their paths name.

SQLite goes on writing into a file that was removed or replaced under it, and says nothing: what is
acknowledged there ends with the processes that hold it open.
"""

import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from refold.log.processes import boot_ms

FILE_CHECK_MS = 20
"""How often, at most, a writer looks whether its files are still those that the paths name."""

_STOP_ALL = "stop every process that has this log open, then start them again"


class Lost(NamedTuple):
    """What a look has found: what happened, what is kept, what to do next."""

    reason: str
    kept: str
    next: str


class FileWatch:
    """The identity of the log's file and of its `-wal` and `-shm`, taken while all are open.

    No open connection ever replaces them, and SQLite removes the two only when the last one
    closes: whatever else a look finds was done from outside.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        # SQLite follows a link to the file and keeps the other two beside what it points to.
        beside = os.path.realpath(path)
        self._wal, self._shm = beside + "-wal", beside + "-shm"
        self._ids = {name: _id_of(name) for name in (self._path, self._wal, self._shm)}
        self._looked_ms = boot_ms()
        self.lost: Lost | None = None
        """What the last look has found."""

    def look(self, connection: sqlite3.Connection) -> Lost | None:
        """Look again, unless the last look was less than FILE_CHECK_MS ago and found all well.

        Where only the `-wal` was removed, `connection`, which is in no transaction, still holds it:
        what was acknowledged is copied into the main file at once, before anybody is killed.
        """
        now_ms = boot_ms()
        if self.lost is None and now_ms - self._looked_ms < FILE_CHECK_MS:
            return None
        now = {name: _id_of(name) for name in self._ids}
        changed = [name for name, was in self._ids.items() if was and now[name] != was]
        if not changed:
            self._looked_ms, self.lost = now_ms, None
        elif self.lost is None:
            copied = changed == [self._wal] and now[self._wal] is None and _copied(connection)
            self.lost = self._say(changed[0], now[changed[0]] is None, copied)
        return self.lost

    def _say(self, name: str, removed: bool, copied: bool) -> Lost:
        reason = f"the file {name} was {'removed' if removed else 'replaced'} while it was open"
        if name == self._path:
            if removed:
                return Lost(
                    reason,
                    "what copies of it hold; there is no file at that path now",
                    "stop this process and put the file back, with its -wal",
                )
            return Lost(
                reason,
                "what is in the file that is there now",
                "stop this process and put the right file back",
            )
        if name == self._shm:
            return Lost(reason, "everything that was acknowledged", _STOP_ALL)
        if copied:
            return Lost(
                reason,
                f"everything that was acknowledged: it was copied into {self._path} at once",
                _STOP_ALL,
            )
        return Lost(
            reason,
            f"what is in {self._path}; what was acknowledged last may have been in the -wal alone",
            f"put the right -wal back if there is one; {_STOP_ALL}",
        )


def _id_of(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _copied(connection: sqlite3.Connection) -> bool:
    """Copy what the removed `-wal` holds into the main file; whether all of it was."""
    # The locks are in the -shm, which is still everybody's: nobody writes meanwhile. A process that
    # had opened the log since would have made a new -wal, which the look would have seen. TRUNCATE
    # empties the removed file too: should somebody start on a new -wal before this process ends,
    # then what this one reads at that place is an error, not an old page.
    try:
        _, frames, copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return bool(frames == copied)
