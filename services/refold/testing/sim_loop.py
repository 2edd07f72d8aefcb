"""Virtual time: one clock, a seeded order of processes, and an event loop for each of them."""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

TURN_US_MAX = 40
"""A turn of a process's loop takes 1 to this many microseconds of virtual time."""


class SimStuck(Exception):
    """The simulation used up its turns: some process spins without letting time pass."""


class Planned:
    """Something the world does at a moment of virtual time; `cancel` takes it back."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback, self.cancelled = callback, False

    def cancel(self) -> None:
        """It will not happen."""
        self.cancelled = True


class Universe:
    """True time, the world's plans and the processes; `run` lets things happen in a seeded order.

    All times are integers of microseconds; nothing here reads a real clock or real randomness.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now_us = 0
        self.turns = 0
        self.processes: list[SimProcess] = []
        self.after_turn: list[Callable[[], None]] = []
        self._plans: list[tuple[int, int, Planned]] = []
        self._count = 0

    def later(self, delay_us: int, callback: Callable[[], None]) -> Planned:
        """Let the world do `callback` in `delay_us`, whichever processes live by then."""
        planned = Planned(callback)
        self._count += 1
        heapq.heappush(self._plans, (self.now_us + max(0, delay_us), self._count, planned))
        return planned

    def schedule_ms(self, delay_ms: int, callback: Callable[[], None]) -> object:
        """`later` in the shape that the memory log asks for."""
        return self.later(delay_ms * 1000, callback)

    def run(
        self, until_us: int, *, stop: Callable[[], bool] = lambda: False, turns_max: int = 5_000_000
    ) -> bool:
        """Go on until `stop()` says so (True), or time is `until_us` (False). Raises SimStuck."""
        turns_last = self.turns + turns_max
        while True:
            acted = self._do_plans()
            runnable = [process for process in self.processes if process.runnable()]
            if runnable:
                self.turns += 1
                if self.turns > turns_last:
                    raise SimStuck(f"{turns_max} turns at {self.now_us / 1e6:.3f} s")
                one = len(runnable) == 1
                (runnable[0] if one else self.rng.choice(runnable)).turn()
                self.now_us += 1 + int(self.rng.random() * TURN_US_MAX)
            elif not acted:
                at_us = self._next_us()
                if at_us is None or at_us >= until_us:
                    self.now_us = max(self.now_us, until_us)
                    return False
                self.now_us = max(self.now_us, at_us)
                continue
            for check in self.after_turn:
                check()
            if stop():
                return True
            if self.now_us >= until_us:
                return False

    def _do_plans(self) -> bool:
        acted = False
        while self._plans and self._plans[0][0] <= self.now_us:
            _, _, planned = heapq.heappop(self._plans)
            if not planned.cancelled:
                planned.callback()
                acted = True
        return acted

    def _next_us(self) -> int | None:
        while self._plans and self._plans[0][2].cancelled:
            heapq.heappop(self._plans)
        moments = [self._plans[0][0]] if self._plans else []
        for process in self.processes:
            at_us = process.wakes_us()
            if at_us is not None:
                moments.append(at_us)
        return min(moments, default=None)


class SimProcess:
    """A process: a loop, its clocks, and whether it lives, is frozen (SIGSTOP) or asleep.

    `rate_ppm` is how fast its boot clock runs beside true time, in millionths; `skew_ms` how far
    its wall clock is off. What may have effects registers with `on_kill`, so that it is dead
    before the process's coroutines are closed.
    """

    def __init__(
        self,
        universe: Universe,
        name: str,
        *,
        epoch_ms: int = 0,
        rate_ppm: int = 0,
        skew_ms: int = 0,
        boot_us: int = 0,
    ) -> None:
        self.universe, self.name = universe, name
        self.epoch_ms, self.rate_ppm, self.skew_ms = epoch_ms, rate_ppm, skew_ms
        self.alive, self.frozen = True, False
        self.on_kill: list[Callable[[], None]] = []
        self.attached: dict[str, Any] = {}
        self.errors: list[dict[str, Any]] = []
        self._born_us, self._boot_us, self._asleep_us = universe.now_us, boot_us, 0
        self._asleep_since_us: int | None = None
        self._thaw: Planned | None = None
        self._in_turn = False
        # What is not defined below does not exist in a simulation and says so when it is called.
        self.loop = SimLoop(self)  # type: ignore[abstract]
        universe.processes.append(self)

    # Clocks

    def boot_us(self) -> int:
        """CLOCK_BOOTTIME: goes on while the machine sleeps, never jumps."""
        elapsed = self.universe.now_us - self._born_us
        return self._boot_us + elapsed + elapsed * self.rate_ppm // 1_000_000

    def monotonic_us(self) -> int:
        """CLOCK_MONOTONIC: stands still while the machine sleeps; the loop's time."""
        at_us = self._asleep_since_us
        return (self.boot_us() if at_us is None else at_us) - self._asleep_us

    def wall_ms(self) -> int:
        """CLOCK_REALTIME, off by `skew_ms`."""
        return self.epoch_ms + self.universe.now_us // 1000 + self.skew_ms

    def boot_ms(self) -> int:
        """`boot_us` in milliseconds, for the engine's clock port."""
        return self.boot_us() // 1000

    # Life

    def start(self, main: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run `main` in this process from its next turn on."""
        task: asyncio.Task[Any] = self.loop.create_task(main, name=self.name)
        return task

    def freeze(self, duration_us: int, *, machine: bool = False) -> None:
        """Stop it for `duration_us`; with `machine` its monotonic clock stops too."""
        if not self.alive or self.frozen:
            return
        self.frozen = True
        if machine:
            self._asleep_since_us = self.boot_us()
        self._thaw = self.universe.later(duration_us, self.thaw)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        if not self.frozen:
            return
        if self._asleep_since_us is not None:
            self._asleep_us += self.boot_us() - self._asleep_since_us
            self._asleep_since_us = None
        self.frozen = False
        if self._thaw is not None:
            self._thaw.cancel()

    def kill(self) -> None:
        """SIGKILL. From inside a turn the rest of that turn's work is closed when the turn ends."""
        if not self.alive:
            return
        self.alive = False
        for deaden in self.on_kill:
            deaden()
        if self in self.universe.processes:
            self.universe.processes.remove(self)
        if not self._in_turn:
            self.loop.discard()

    async def kill_here(self) -> None:
        """Die at this very point: the caller never goes on."""
        self.kill()
        await self.loop.create_future()

    async def freeze_here(self, duration_us: int, *, machine: bool = False) -> None:
        """Stop at this very point, and go on after `duration_us` of true time."""
        self.freeze(duration_us, machine=machine)
        await asyncio.sleep(0)

    # What the universe asks

    def runnable(self) -> bool:
        """Whether a turn would do something now."""
        return not self.frozen and self.loop.has_work()

    def wakes_us(self) -> int | None:
        """True time of its next timer, None if it has none or is frozen."""
        when_us = None if self.frozen else self.loop.next_timer_us()
        if when_us is None:
            return None
        left = when_us - self.monotonic_us()
        return self.universe.now_us + max(0, left * 1_000_000 // (1_000_000 + self.rate_ppm)) + 1

    def turn(self) -> None:
        """One turn of its loop."""
        self._in_turn = True
        try:
            self.loop.turn()
        finally:
            self._in_turn = False
        if not self.alive:
            self.loop.discard()


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process. Threads and sockets do not exist in it."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._closed = False
        self._running = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        # Weak references are not enough: a task that nobody holds must not end by chance.
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    # One turn

    def has_work(self) -> bool:
        """Whether a callback is ready or a timer is due."""
        if self._ready:
            return True
        when_us = self.next_timer_us()
        return when_us is not None and when_us <= self.process.monotonic_us()

    def next_timer_us(self) -> int | None:
        """When the next timer is due on the process's monotonic clock."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def turn(self) -> None:
        """Run what is ready, as asyncio does; stop where the process is killed or frozen."""
        now_us = self.process.monotonic_us()
        while self._timers and self._timers[0][0] <= now_us:
            self._ready.append(heapq.heappop(self._timers)[2])
        asyncio._set_running_loop(self)
        self._running = True
        try:
            for _ in range(len(self._ready)):
                if not self.process.alive or self.process.frozen:
                    break
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def discard(self) -> None:
        """Drop everything, as the end of a process does; nothing is told to anybody."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        tasks, self._tasks = list(self._tasks.values()), {}
        asyncio._set_running_loop(self)
        try:
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro = task.get_coro()
                if not task.done() and hasattr(coro, "close"):
                    with suppress(BaseException):  # a dead process's last words
                        coro.close()
        finally:
            asyncio._set_running_loop(None)

    # What asyncio asks of a loop

    def time(self) -> float:
        """Seconds of the process's monotonic clock."""
        return self.process.monotonic_us() / 1e6

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run `callback` in the next turn; in a dead process never."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` in `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` when `time()` is `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            self._count += 1
            heapq.heappush(self._timers, (round(when * 1e6), self._count, handle))
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> Any:
        """A task of this loop, held until it is done; in a dead process it never starts."""
        if self._closed:
            coro.close()
            return self.create_future()
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._count += 1
        number = self._count
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    def set_task_factory(self, factory: Any) -> None:
        """Refused: tasks must be held by this loop."""
        raise NotImplementedError("a simulated loop makes its own tasks")

    def get_task_factory(self) -> Any:
        """None: the loop makes tasks itself."""
        return None

    def is_running(self) -> bool:
        """Whether a turn is going on."""
        return self._running

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._closed

    def close(self) -> None:
        """End it; the universe does that by killing the process."""
        self.discard()

    def stop(self) -> None:
        """Refused: a process ends when its main task does."""
        raise NotImplementedError("a simulated loop is driven by its universe")

    def run_forever(self) -> None:
        """Refused: the universe drives it."""
        raise NotImplementedError("a simulated loop is driven by its universe")

    def run_until_complete(self, future: Any) -> Any:
        """Refused: the universe drives it."""
        raise NotImplementedError("a simulated loop is driven by its universe")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Refused: a thread's order cannot be reproduced."""
        raise NotImplementedError("there are no threads in a simulation: make the step async")

    def get_debug(self) -> bool:
        """False: debug mode reads the real clock."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored, see `get_debug`."""

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators end with their process."""

    async def shutdown_default_executor(self) -> None:
        """Nothing to do: there is none."""

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Called for exceptions that nobody retrieved, after they were noted."""
        self._handler = handler

    def get_exception_handler(
        self,
    ) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """The handler that was set."""
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Note it with the process, where the checkers find it."""
        if self.process.alive:
            self.process.errors.append(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that nobody retrieved."""
        self.default_exception_handler(context)
        if self._handler is not None and self.process.alive:
            self._handler(self, context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells us; the heap drops it when it comes to the top."""


def current_process() -> SimProcess:
    """The simulated process whose code is running. Raises RuntimeError outside of one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop):
        raise RuntimeError("this code runs in a simulated process only")
    return loop.process
