"""One attempt in this process: the last look, the call itself, its end. It knows no log."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any, Final

from refold.app.definitions import StepDef
from refold.app.effect import Effect
from refold.engine.asks import ChunkAsked, StepAsked
from refold.engine.clock import Clock

READY, LOOKED, BARRED = "ready", "looked", "barred"
_EXPIRED: Final = object()


NO_INTENT: Final = -1
"""The n of a call without an intent."""
EXITS: Final = (SystemExit, KeyboardInterrupt)
NOBODY: Final = Effect.for_test()
"""What is handed to `invoke` for a step that takes no effect: it looks at none."""


class _Raised:
    """An exception carried as a value, where raising it would end more than the step."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Call:
    """An attempt whose intent is (or, without one, need not be) durable.

    `state` is one atomic value for both threads: `ready → looked` by the last look, or
    `ready → barred`; a barred call never starts. `ended` is called once on the engine's loop with
    `(call, kind, value)`, kind one of: returned, raised, expired (the last look came too late).
    """

    __slots__ = (
        "_lock",
        "arguments",
        "ask",
        "attempt",
        "cancelled",
        "claim_id",
        "clock",
        "deadline_boot_ms",
        "deadline_wall_ms",
        "definition",
        "effect_key",
        "ended",
        "ended_boot_ms",
        "in_thread",
        "loop",
        "n",
        "reported",
        "run_id",
        "slot",
        "state",
        "task",
        "timeout_handle",
        "timeout_ms",
    )

    def __init__(
        self,
        run_id: str,
        slot: str,
        attempt: int,
        claim_id: bytes,
        n: int,
        effect_key: str,
        definition: StepDef,
        arguments: dict[str, object],
        timeout_ms: int,
        clock: Clock,
        ended: Callable[["Call", str, Any], None],
        ask: StepAsked | ChunkAsked | None = None,
    ) -> None:
        """`ask` is what run code asked, of a call without an intent (`n` is NO_INTENT)."""
        self.run_id, self.slot, self.attempt = run_id, slot, attempt
        self.claim_id, self.n, self.effect_key = claim_id, n, effect_key
        self.definition, self.arguments = definition, arguments
        self.clock, self.ended, self.ask = clock, ended, ask
        self.timeout_ms = timeout_ms
        self.deadline_boot_ms = self.deadline_wall_ms = 0
        self.state = READY
        self.task: asyncio.Future[Any] | None = None
        self.timeout_handle: asyncio.TimerHandle | None = None
        self.ended_boot_ms: int | None = None
        self.cancelled = False
        self.reported = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.in_thread = not definition.is_async
        self._prepare()
        if n != NO_INTENT:  # else counted from the look
            self.deadline_boot_ms = clock.boot_ms() + self.timeout_ms
            self.deadline_wall_ms = clock.wall_ms() + self.timeout_ms
        self._lock = threading.Lock() if self.in_thread else None

    def _prepare(self) -> None:
        """What another kind of call has different."""

    # ---- the one atomic state

    def look(self) -> bool:
        """The last look before the effect: deadline on both clocks, and not barred.

        Without an intent nothing counts on a deadline: it is counted from here, not from when the
        call began to wait for a thread, so that it cannot be late.
        """
        if self.n == NO_INTENT:
            self.deadline_boot_ms = self.clock.boot_ms() + self.timeout_ms
            return self._move(LOOKED)
        late = (
            self.clock.boot_ms() >= self.deadline_boot_ms
            or self.clock.wall_ms() >= self.deadline_wall_ms
        )
        return self._move(BARRED if late else LOOKED) and not late

    def bar(self) -> bool:
        """Keep the call from ever starting. False if it has looked already."""
        return self._move(BARRED)

    def expire(self) -> bool:
        """End a call that has not looked: it never started. False if it has looked."""
        barred = self.bar()
        if barred:
            self.end("expired", None)
        return barred

    def _move(self, to: str) -> bool:
        if self._lock is None:
            if self.state != READY:
                return False
            self.state = to
            return True
        with self._lock:
            if self.state != READY:
                return False
            self.state = to
            return True

    @property
    def running(self) -> bool:
        """Whether the function was entered, or is about to be, and has not ended."""
        return self.state != BARRED and self.ended_boot_ms is None

    # ---- the call

    def _told(self) -> Effect:
        """The effect, for a step that takes one: nothing is made for the others."""
        return self.effect() if self.definition.wants_effect else NOBODY

    def effect(self) -> Effect:
        """What the step function is told."""
        wall_ms = self.deadline_wall_ms or self.clock.wall_ms() + self.timeout_ms
        return Effect(
            key=self.effect_key,
            attempt=self.attempt,
            run_id=self.run_id,
            slot=self.slot,
            deadline=datetime.fromtimestamp(wall_ms / 1000, UTC),
            remaining_s=lambda: (self.deadline_boot_ms - self.clock.boot_ms()) / 1000,
            barred=lambda: self.cancelled,
        )

    def start(self, loop: asyncio.AbstractEventLoop, threads: Executor | None) -> None:
        """Look, then act. The intent must be acknowledged under rule 4 before this."""
        self.loop = loop
        if not self.in_thread:
            # A context of its own: a step must not see or change the engine's variables.
            self.task = loop.create_task(self._look_and_run(), context=contextvars.Context())
            self.task.add_done_callback(self._task_done)
        else:
            self.task = asyncio.ensure_future(
                loop.run_in_executor(threads, self._run_in_thread), loop=loop
            )
            self.task.add_done_callback(self._task_done)

    async def _look_and_run(self) -> Any:
        # The look belongs to the task's own turn: the process may stop for long before it comes.
        if not self.look():
            return _EXPIRED
        try:
            result = self.enter()
            return await result if inspect.isawaitable(result) else result
        except EXITS as error:  # out of a task they would end the process, not the step
            return _Raised(error)

    def enter(self) -> Any:
        """Call the step function; of an async one, this gives what is to be awaited."""
        return self.definition.invoke(self._told(), self.arguments)

    def _run_in_thread(self) -> tuple[str, Any]:
        if not self.look():
            return "expired", None
        # The outcome is carried as a value: StopIteration and exit signals must not get lost
        # in the future of a thread.
        try:
            return "returned", self.definition.invoke(self._told(), self.arguments)
        except BaseException as error:
            return "raised", error

    def _task_done(self, task: "asyncio.Future[Any]") -> None:
        if task.cancelled():
            if self.bar():  # before it had its first turn
                self.end("expired", None)
                return
            self.end("raised", asyncio.CancelledError("the attempt was cancelled"))
            return
        error = task.exception()
        if error is not None:
            self.end("raised", error)
        elif not self.in_thread:
            result = task.result()
            if result is _EXPIRED:
                self.end("expired", None)
            elif type(result) is _Raised:
                self.end("raised", result.error)
            else:
                self.end("returned", result)
        else:
            kind, value = task.result()
            self.end(kind, value)

    def end(self, kind: str, value: Any) -> None:
        """The call has ended; told once, whoever hears of it first."""
        if self.ended_boot_ms is not None:
            return
        self.ended_boot_ms = self.clock.boot_ms()
        if self.timeout_handle is not None:
            self.timeout_handle.cancel()
            self.timeout_handle = None
        self.ended(self, kind, value)

    def cancel(self) -> None:
        """Tell the step that nobody waits any more. A thread is only told through `fx.check()`."""
        self.cancelled = True
        if self.task is None:
            self.bar()  # not begun: it tells nothing
        elif not self.in_thread and not self.task.done():
            self.task.cancel()


class ChunkCall(Call):
    """One chunk of a `map` over a re-executable step: all its items, at most `concurrency` at once.

    Returns the results in item order; the first exception cancels the others and is the chunk's.
    """

    __slots__ = ("threads",)
    threads: Executor | None
    """For the items of a function that is not async."""

    def _prepare(self) -> None:
        waves = max(1, -(-len(self._items) // self._concurrency))  # the timeout is that of one item
        self.timeout_ms *= waves
        self.in_thread = False

    @property
    def _items(self) -> Any:
        return self.arguments["items"]

    @property
    def _concurrency(self) -> int:
        return self.ask.concurrency if isinstance(self.ask, ChunkAsked) else 1

    async def enter(self) -> Any:
        """Call it for each item."""
        gate = asyncio.Semaphore(self._concurrency)
        loop = asyncio.get_running_loop()

        item_s = self.definition.timeout_ms / 1000

        def in_thread(item: dict[str, object]) -> Any:
            try:
                return self.definition.invoke(self._told(), item)
            except BaseException as error:  # a thread's future loses some of them
                return _Raised(error)

        async def one(item: dict[str, object]) -> Any:
            async with gate:
                if not self.definition.is_async:
                    return await loop.run_in_executor(self.threads, in_thread, item)
                try:
                    async with asyncio.timeout(item_s):
                        result = self.definition.invoke(self._told(), item)
                        return await result if inspect.isawaitable(result) else result
                except EXITS as error:
                    return _Raised(error)

        tasks = [loop.create_task(one(item)) for item in self._items]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        raised = next((result for result in results if type(result) is _Raised), None)
        return results if raised is None else raised
