"""Branches: the coroutines of one run, and the groups in which `gather` and `map` wait for them."""

import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from refold.engine.scopes import Scope
from refold_schemas.values import line_of


class Wait:
    """What a branch yields to the session when it waits; anything else is foreign."""

    __slots__ = ()

    def __await__(self) -> Generator["Wait", Any, Any]:
        """Wait until the session resumes this branch with an outcome."""
        return (yield self)


WAIT: Final = Wait()


class Branch:
    """One coroutine of a run, with contextvars of its own.

    `now_ms` is the time of the last outcome delivered to it. `waiting` is the slot it waits for,
    empty while it waits for its children. `ended` is called with its result and its error.
    """

    __slots__ = (
        "asked",
        "context",
        "coroutine",
        "definition",
        "ended",
        "foreign",
        "now_ms",
        "scope",
        "waiting",
    )

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        scope: Scope,
        context: contextvars.Context,
        now_ms: int,
        ended: Callable[["Branch", Any, BaseException | None], None],
    ) -> None:
        """A branch that has not begun."""
        self.coroutine, self.scope, self.context = coroutine, scope, context
        self.now_ms, self.ended = now_ms, ended
        self.waiting = ""
        self.definition: Any = None  # of the step that it waits for
        self.asked: Any = None  # what it would ask again, if its handle runs out
        self.foreign = 0


class Group:
    """Children of one `gather` or `map`: ends when all that were begun have ended.

    `failure` is the first in log order. `begin` starts the next child of a `map`, if there is one.
    """

    __slots__ = ("begin", "failure", "now_ms", "open", "parent", "results", "resume")

    def __init__(self, parent: Branch, size: int, resume: Callable[[Branch], None]) -> None:
        """`resume` makes the parent run on."""
        self.parent, self.resume = parent, resume
        self.results: list[Any] = [None] * size
        self.failure: BaseException | None = None
        self.open = 0
        self.now_ms = parent.now_ms
        self.begin: Callable[[], None] | None = None

    def ender(self, index: int) -> Callable[[Branch, Any, BaseException | None], None]:
        """What is to be called when child `index` ends."""

        def ended(branch: Branch, result: Any, error: BaseException | None) -> None:
            self.open -= 1
            self.now_ms = branch.now_ms
            if error is None:
                self.results[index] = result
            elif self.failure is None:
                self.failure = error
            elif error is not self.failure:
                # Only one can be raised; the others must not vanish without a trace.
                self.failure.add_note(f"also failed: {branch.scope.path}: {line_of(error)}")
            if self.failure is None and self.begin is not None:
                self.begin()
            if self.open == 0:
                self.parent.now_ms = self.now_ms
                self.resume(self.parent)

        return ended
