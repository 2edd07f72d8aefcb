"""Runs calls without an intent: those that wait for nothing share a task.

A task for each call would cost as much as all that the engine does around it. A call that waits
keeps the task that it has begun in, to its end, and the calls behind it go on in another one: what
a step sees is a task and a context of its own (`asyncio.timeout` and the like hold on to them).
"""

import asyncio
import contextvars
import inspect
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any

from refold.engine.calls import Call


class SharedTasks:
    """The calls of one owner, in the order in which they are added."""

    def __init__(self) -> None:
        """Not tied to a loop before the first `add`."""
        self._queue: deque[Call] = deque()
        self._is_served = False

    def add(self, call: Call) -> None:
        """Run `call` in one of the loop's next turns; it tells its end itself."""
        self._queue.append(call)
        if not self._is_served:
            self._serve()

    def _serve(self) -> None:
        self._is_served = True
        work = self._run()
        # A context of its own: nothing of whoever adds a call is seen by it.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        task.add_done_callback(_look_at)

    async def _run(self) -> None:
        queue, is_mine = self._queue, True
        task = asyncio.current_task()
        assert task is not None
        try:
            while queue:
                for _ in range(len(queue)):
                    call = queue.popleft()
                    # The look belongs to the call's own turn: the process may stop for long before.
                    if not call.look():
                        continue
                    context = contextvars.Context()
                    try:
                        step, made = context.run(_begin, call)
                    except BaseException as error:  # exit signals too: they end the step only
                        call.end("raised", error)
                        if task.cancelling():
                            return  # the step has cancelled its task; the next one gets another
                        continue
                    if step is None:
                        call.end("returned", made)
                    else:
                        call.task, is_mine = task, False
                        self._hand_over()
                        await _go_on(call, step, context, made)
                        return
                    if task.cancelling():
                        return  # the step has cancelled its task; the next one gets another
                await asyncio.sleep(0)  # the loop's turn: what was recorded goes to the log
        finally:
            if is_mine:
                self._hand_over()

    def _hand_over(self) -> None:
        """This task takes no further call: another one does, if there are any."""
        self._is_served = False
        if self._queue:
            self._serve()


def _begin(call: Call) -> tuple[Coroutine[Any, Any, Any] | None, Any]:
    """Run a step until it waits: its coroutine and what it waits for, or None and its result."""
    step = call.enter()
    if type(step) is not types.CoroutineType:
        step = _of_any(step)
    try:
        return step, step.send(None)
    except StopIteration as stop:
        return None, stop.value


async def _of_any(made: Any) -> Any:
    """What a step gave that is no coroutine: to be awaited, or its result."""
    return await made if inspect.isawaitable(made) else made


@types.coroutine
def _go_on(
    call: Call, step: Coroutine[Any, Any, Any], context: contextvars.Context, awaited: Any
) -> Generator[Any, Any, None]:
    """Drive a step that waits for `awaited` to its end, in the task that runs this."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:  # the loop is gone
            context.run(step.close)
            raise
        except BaseException as error:
            thrown = error
        try:
            if thrown is None:
                awaited = context.run(step.send, sent)
            else:
                cause, thrown = thrown, None
                awaited = context.run(step.throw, cause)
        except StopIteration as stop:
            call.end("returned", stop.value)
            return
        except BaseException as error:
            call.end("raised", error)
            return


def _look_at(task: "asyncio.Task[None]") -> None:
    """Take the error of a task that was cancelled from outside or with its loop."""
    if not task.cancelled():
        task.exception()
