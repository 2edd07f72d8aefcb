"""Drives the coroutines of one run by hand, each until it waits, whatever it waits for."""

import sys
from collections import deque
from collections.abc import Coroutine
from threading import get_ident
from typing import Any, Final

from refold.engine.branches import WAIT, Branch
from refold.engine.foreign import FOREIGN_MAX, foreign_await, keep_quiet
from refold.engine.interrupts import is_the_operators
from refold.engine.unawaited import Made, drop, unawaited
from refold_schemas.errors.run import RunTornDown, StepOutsideRun

TEARDOWN_CALLS_MAX: Final = 100
"""Run code that calls its context this often while it is torn down is abandoned."""

_abandoned: list[Coroutine[Any, Any, Any]] = []
"""Coroutines that would not close. Dropping one would throw into it again at a random moment."""


class Driving:
    """The branches of one run. `waiting` maps slots to the branches that wait for them.

    `stopped` ends the driving at once, whatever is ready. `swallowed` is True if run code would
    not let itself be closed. `unbegun` holds the calls that run code has made and not awaited yet,
    by their number in `made`, as tuples of the shape `Made`. Not thread-safe: one thread
    drives and closes.
    """

    __slots__ = (
        "_calls_closing",
        "_ready",
        "_thread_id",
        "branches",
        "closing",
        "current",
        "made",
        "run_id",
        "stopped",
        "swallowed",
        "unbegun",
        "waiting",
    )

    def __init__(self, run_id: str) -> None:
        """A run of which nothing is driven yet."""
        self.run_id = run_id
        self.branches: dict[Branch, None] = {}
        self.waiting: dict[str, Branch] = {}
        self.stopped = self.closing = self.swallowed = False
        self._ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self.current: Branch | None = None
        self._thread_id = 0
        self._calls_closing = 0
        self.made = 0
        self.unbegun: dict[int, tuple[Any, ...]] = {}

    def begin(self, branch: Branch) -> None:
        """Drive a new branch in its turn."""
        self.branches[branch] = None
        self._ready.append((branch, None, None))

    def resume(self, branch: Branch, value: Any = None, error: BaseException | None = None) -> None:
        """Drive a waiting branch in its turn, with a value or with an exception raised in it."""
        self._ready.append((branch, value, error))

    def drive(self) -> None:
        """Run every branch that can run until it waits. Raises the operator's interrupt only."""
        ready = self._ready
        if not ready:
            return
        self._thread_id = get_ident()
        hooks = sys.get_asyncgen_hooks()
        # The hooks of an event loop would run the end of an abandoned generator as its own task.
        sys.set_asyncgen_hooks(None, None)
        try:
            while ready and not self.stopped:
                branch, value, error = ready.popleft()
                self.current = branch
                coroutine = branch.coroutine
                try:
                    if error is None:
                        request = branch.context.run(coroutine.send, value)
                    else:
                        request = branch.context.run(coroutine.throw, error)
                except StopIteration as stop:
                    self._end(branch, stop.value, None)
                except BaseException as raised:
                    if is_the_operators(raised):
                        raise  # meant for the process, not for the run
                    self._end(branch, None, raised)
                else:
                    if request is WAIT:
                        branch.foreign = 0
                    else:
                        self._refuse_foreign(branch, request)
        finally:
            self.current = None
            sys.set_asyncgen_hooks(*hooks)

    def _refuse_foreign(self, branch: Branch, request: object) -> None:
        branch.foreign += 1
        error = foreign_await(branch.coroutine, request)
        keep_quiet(request)
        if branch.foreign < FOREIGN_MAX:
            self._ready.appendleft((branch, None, error))
            return
        # It catches what says that it cannot wait here, and waits again: that would never end.
        self.swallowed = True
        _abandoned.append(branch.coroutine)
        self._end(branch, None, error)

    def _end(self, branch: Branch, result: Any, error: BaseException | None) -> None:
        self.current = None
        del self.branches[branch]
        if self.unbegun:
            left = [n for n, made in self.unbegun.items() if made[1] is branch]
            forgotten = [Made(*self.unbegun.pop(n)) for n in left]
            if error is None:
                error = unawaited(forgotten)
            drop(forgotten)
        branch.ended(branch, result if error is None else None, error)

    # ---- who runs now

    def running(self, call: str) -> Branch:
        """The branch that runs now. Raises StepOutsideRun or RunTornDown."""
        branch = self.current
        if branch is None or get_ident() != self._thread_id:
            raise StepOutsideRun(call, self.run_id)
        if self.closing:
            raise RunTornDown(call, self.run_id)
        return branch

    def any_branch(self, call: str) -> Branch:
        """As `running`, for calls that do no harm while the run is torn down."""
        branch = self.current
        if branch is None or get_ident() != self._thread_id:
            raise StepOutsideRun(call, self.run_id)
        return branch

    # ---- teardown

    async def refuse_teardown(self) -> None:
        """Keep code that loops around its own teardown from hanging the process."""
        self._calls_closing += 1
        if self._calls_closing > TEARDOWN_CALLS_MAX:
            await WAIT

    def close(self) -> None:
        """Close every coroutine once, the youngest first, and abandon those that go on."""
        self.closing = True
        self._thread_id = get_ident()
        self._ready.clear()
        self.waiting.clear()
        for branch in reversed(self.branches):
            self.current = branch
            self._calls_closing = 0
            try:
                # Not close(): that would hide it if an inner coroutine went on.
                branch.context.run(branch.coroutine.throw, RunTornDown("the wait", self.run_id))
            except StopIteration:
                self.swallowed = True
            except BaseException as raised:
                if is_the_operators(raised):
                    raise
                # Else closed; the run goes on elsewhere, so nobody is to be told.
            else:
                self.swallowed = True
                _abandoned.append(branch.coroutine)
            finally:
                self.current = None
        self.branches.clear()
        drop(Made(*made) for made in self.unbegun.values())
        self.unbegun.clear()
