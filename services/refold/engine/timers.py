"""The heap of armed timers: it only notices that one is due; the event says that it fired."""

import asyncio
import heapq
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from refold.engine.log_clock import LogClock
from refold_projections.fold import Armed, RunState
from refold_schemas.events import TimerScheduled

WAIT_MAX_S: Final = 30.0
"""Longest wait in one piece: the wall clock may be set while we wait."""
NO_ROOM_S: Final = 0.01
"""How soon to look again where the log does not keep up with what fires."""


class Timers:
    """Rebuilt from the fold; calls `fire(run_id, timer_id, generation)` when one is due.

    Nothing fires while `has_room()` is false: what is decided now waits behind all that is queued,
    so a crowd of timers would keep every other run of the partition waiting.
    """

    def __init__(
        self,
        clock: LogClock,
        fire: Callable[[str, str, int], None],
        *,
        at_once: int,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock, self._fire, self._at_once = clock, fire, at_once
        self._has_room = has_room
        self._heap: list[Armed] = []
        self._handle: asyncio.TimerHandle | asyncio.Handle | None = None
        self._due_ms = 0
        self._open = True

    def load(self, states: Mapping[str, RunState], armed: Iterable[Armed]) -> None:
        """Every armed timer of `states`, and `armed`. One that has fired is skipped when due."""
        self._heap = [
            Armed(t.deadline_ms, run_id, t.timer_id, t.generation)
            for run_id, state in states.items()
            for t in state.timers.values()
        ]
        self._heap += armed
        heapq.heapify(self._heap)
        self._arm()

    def add(self, run_id: str, event: TimerScheduled) -> None:
        """A timer was scheduled. One that it replaces stays in the heap and is skipped when due."""
        name = sys.intern(event.timer_id)  # runs of one function share their timers' names
        heapq.heappush(self._heap, Armed(event.deadline_ms, run_id, name, event.generation))
        if self._heap[0][0] < self._due_ms or self._handle is None:
            self._arm()

    @property
    def overdue_ms(self) -> int:
        """How late the timer is that is due first; 0 if none is late. For whoever measures."""
        first = self._heap[:1]
        return max(self._clock.wall_ms() - first[0][0], 0) if first and self._open else 0

    @property
    def held(self) -> bool:
        """Whether one would be due by our wall clock, which is held back to the log's."""
        held_ms = self._clock.held_ms
        return held_ms > 0 and bool(self._heap) and self._heap[0][0] <= self._clock.read_ms()

    def look(self) -> None:
        """What the clock shows may have changed: wait anew."""
        self._arm()

    def close(self) -> None:
        """Fire nothing any more."""
        self._open = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if not self._heap or not self._open:
            return
        self._due_ms = self._heap[0][0]
        wait_s = min(max(self._due_ms - self._clock.wall_ms(), 0) / 1000, WAIT_MAX_S)
        self._handle = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._handle = None
        now_ms = self._clock.wall_ms()
        # A batch at a time, so that a thousand timers due at once do not hold up everything else.
        for _ in range(self._at_once):
            if not self._heap or self._heap[0][0] > now_ms:
                break
            if not self._has_room():
                self._handle = asyncio.get_running_loop().call_later(NO_ROOM_S, self._wake)
                return
            _, run_id, timer_id, generation = heapq.heappop(self._heap)
            self._fire(run_id, timer_id, generation)
            if not self._open:
                return
        self._arm()
