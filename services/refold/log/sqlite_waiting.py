"""Who waits on a handle for a record, and the looks at the file for those whom nobody wakes."""

import asyncio
import sqlite3
from collections.abc import Callable, Container

from refold.log.sqlite_store import Stream
from refold_schemas.errors.log import LogUnavailable

POLL_MS_MIN, POLL_MS_MAX, POLL_MS_LATER = 2.0, 10.0, 25.0
"""How often a waiter looks whether another process has committed: soon, then less and less."""
QUIET_S = 5.0
"""So long after a commit a waiter looks at least every POLL_MS_MAX, later every POLL_MS_LATER."""


class Waiters:
    """The waiters of one handle. Touched on its loop only, once it is open.

    `is_there(stream, offset)` says whether there is anything to wait for; `version()` is the
    file's `data_version`.
    """

    def __init__(self, is_there: Callable[[Stream, int], bool], version: Callable[[], int]) -> None:
        self._is_there, self._version = is_there, version
        self._waiting: dict[asyncio.Future[bool], tuple[Stream, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._poll_ms = POLL_MS_MIN
        self._version_seen = -1
        self._alone_until = self._quiet_from = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def begin(self, version: int) -> None:
        """Before the handle is open: what is committed from that version on is new."""
        self._version_seen = version

    def end(self) -> None:
        """No more looks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_waits(self) -> None:
        """Each wait is over, with nothing there."""
        for waiter in self._waiting:
            _end(waiter)

    async def wait(self, stream: Stream, offset: int, timeout_ms: int) -> bool:
        """Wait until a record at or after `offset` is there; False when the time is over."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = (stream, offset)
        timer = loop.call_later(timeout_ms / 1000, _end, waiter)
        if self._timer is None:
            self._poll_ms = POLL_MS_MIN
            self._timer = loop.call_later(POLL_MS_MIN / 1000, self._poll)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)

    def wake_soon(self, streams: Container[Stream], *, alone: bool = False) -> None:
        """A commit of this process, into `streams`: look at once.

        `alone`: whoever committed has seen that no other process has, so a poll may be spared.
        """
        if alone:
            now_s = asyncio.get_running_loop().time()
            self._alone_until = now_s + 2 * POLL_MS_MIN / 1000
        if self._waiting:
            try:
                self._wake(streams)
            except LogUnavailable:
                self._wake_all()

    def _poll(self) -> None:
        """Look whether another connection has committed; poll less and less while none has."""
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._alone_until:  # our writer has looked, at no price
            self._timer = loop.call_later(POLL_MS_MIN / 1000, self._poll)
            return
        try:
            version = self._version()
            changed = version != self._version_seen
            self._version_seen = version
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
        if self._waiting:
            self._timer = loop.call_later(self._poll_ms / 1000, self._poll)

    def _wake(self, streams: Container[Stream] | None = None) -> None:
        """Wake those whose record is there, of `streams` only where it is known which grew."""
        for waiter, (stream, offset) in list(self._waiting.items()):
            if streams is not None and stream not in streams:
                continue
            if not waiter.done() and self._is_there(stream, offset):
                waiter.set_result(True)

    def _wake_all(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(True)


def _end(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
        waiter.set_result(False)
