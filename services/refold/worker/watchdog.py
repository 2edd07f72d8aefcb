"""Notices that the engine's thread makes no progress, and names the run whose code holds it."""

import asyncio
import threading
import time
from collections.abc import Callable


class Watchdog:
    """A thread that asks the loop for a sign of life; `stalled(run_id, ms)` once for each stall."""

    def __init__(self, stall_ms: int, stalled: Callable[[str | None, int], None]) -> None:
        self._stall_s, self._stalled = stall_ms / 1000, stalled
        self._run_id: str | None = None
        self._beat = 0.0
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stalls = 0

    @property
    def silent_s(self) -> float:
        """How long ago the loop gave its last sign of life."""
        return time.monotonic() - self._beat if self._loop is not None else 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to watch `loop`."""
        self._loop, self._beat = loop, time.monotonic()
        threading.Thread(target=self._watch, name="refold-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stop.set()

    def now(self, run_id: str | None) -> None:
        """The code of this run holds the thread from here on; None: nobody's."""
        self._run_id = run_id

    def _sign(self) -> None:
        self._beat = time.monotonic()

    def _watch(self) -> None:
        told = 0.0
        while not self._stop.wait(self._stall_s / 4):
            loop = self._loop
            if loop is None or loop.is_closed():
                return
            silent_s = time.monotonic() - self._beat
            if silent_s >= self._stall_s and told != self._beat:
                told = self._beat
                self.stalls += 1
                self._stalled(self._run_id, int(silent_s * 1000))
            loop.call_soon_threadsafe(self._sign)
