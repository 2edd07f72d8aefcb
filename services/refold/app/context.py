"""The run context: what run code may do, typed so that a step keeps its own signature."""

import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from refold.app.effect import Effect

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")

# Steps are typed Coroutine[None, None, R], not [Any, Any, R]: an Any in an argument makes mypy give
# up on the overloads of gather.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Batch(Sequence[T], Generic[T, S]):
    """The items of one turn of a `ctx.each` loop, `commit` takes a state of type S.

    `start` is the place of the first item among all.
    """

    __slots__ = ("_commit", "_items", "start")

    def __init__(
        self, items: Sequence[T], start: int, commit: Callable[["Batch[Any, Any]", object], None]
    ) -> None:
        """Made by the loop, which is told of the commit."""
        self._items, self.start, self._commit = items, start, commit

    def commit(self, state: S) -> None:
        """End the batch: its items are done, `state` is carried on. The last thing in the body.

        Raises ValueRefused if the state cannot be stored, LoopMisused on a second commit.
        """
        self._commit(self, state)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        """An item, or some of them, as in a list."""
        return self._items[index]

    def __len__(self) -> int:
        """How many items the batch has."""
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """The items in order."""
        return iter(self._items)


class Loop(Protocol[T, S]):
    """What `ctx.each` returns. `state` is what was committed last, or the state it began with."""

    @property
    @abstractmethod
    def state(self) -> S:
        """What the last committed batch carried on."""

    @abstractmethod
    def __aiter__(self) -> "Loop[T, S]":
        """Begin the loop at the recorded cursor."""

    @abstractmethod
    def __anext__(self) -> Coroutine[Any, Any, tuple[Batch[T, S], S]]:
        """The next batch and the state carried so far."""


class Driver(Protocol):
    """What stands behind a run context: the engine's session."""

    run_id: str

    def step(
        self, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.step."""

    def gather(
        self, calls: tuple[object, ...], named: Mapping[str, object]
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.gather."""

    def map(
        self, fn: object, items: Iterable[object], every: int, concurrency: int
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.map."""

    def each(self, items: Iterable[Any], every: int, state: object) -> Loop[Any, Any]:
        """See RunContext.each."""

    def sleep(self, duration: timedelta) -> Coroutine[Any, Any, None]:
        """See RunContext.sleep."""

    def revalidate(
        self,
        fn: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        recorded: object,
        tolerance: Callable[[Any, Any], bool] | None,
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.revalidate."""

    def now_ms(self) -> int:
        """See RunContext.now."""

    def uuid(self) -> uuid.UUID:
        """See RunContext.uuid."""

    def random(self) -> Random:
        """See RunContext.random."""

    def write_log(self, level: str, message: str, fields: dict[str, object]) -> None:
        """See RunLog."""


class RunLog:
    """`ctx.log`: lines about a run, written once, when what led to them is durable.

    As in logging, `args` go into the message by %: `ctx.log.info("paid %d", pence, order=id)`;
    keywords are fields of the line. A message that cannot be formatted is written as it is, with
    its arguments behind it: a line never fails a run.
    """

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        """Made by the run context."""
        self._driver = driver

    def debug(self, message: object, /, *args: object, **fields: object) -> None:
        """Write a line of level debug."""
        self._driver.write_log("debug", formatted(message, args), fields)

    def info(self, message: object, /, *args: object, **fields: object) -> None:
        """Write a line of level info."""
        self._driver.write_log("info", formatted(message, args), fields)

    def warning(self, message: object, /, *args: object, **fields: object) -> None:
        """Write a line of level warning."""
        self._driver.write_log("warning", formatted(message, args), fields)

    def error(self, message: object, /, *args: object, **fields: object) -> None:
        """Write a line of level error."""
        self._driver.write_log("error", formatted(message, args), fields)


def formatted(message: object, args: tuple[object, ...]) -> str:
    """The text of a log line; raises nothing.

    >>> formatted("paid %d of %s", (3, "x")), formatted("paid %d", ("x",)), formatted("50%", ())
    ('paid 3 of x', "paid %d ('x',)", '50%')
    """
    try:
        if not args:
            return str(message)
        # One mapping is looked into by name, as logging does.
        by = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
        return str(message) % by
    except Exception:
        try:
            return f"{message} {args!r}"
        except Exception as error:  # an object whose own text cannot be made
            return f"(a line that cannot be written: {type(error).__name__})"


class RunContext:
    """A run function's first argument, and the only way in which it touches the world.

    Everything awaitable here is awaited in the run function itself, or in coroutines handed to
    `gather`; from other tasks and threads it raises StepOutsideRun.
    """

    __slots__ = ("_driver", "log", "run", "run_id", "version")

    def __init__(self, driver: Driver, *, run_id: str, run: str, version: str) -> None:
        """Made by the engine. `version` is that of the code that runs now."""
        self._driver = driver
        self.run_id, self.run, self.version = run_id, run, version
        self.log = RunLog(driver)

    @overload
    def step(
        self,
        fn: Callable[Concatenate[Effect, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[None, None, R]: ...
    @overload
    def step(
        self, fn: Callable[Concatenate[Effect, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...
    @overload
    def step(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[None, None, R]: ...
    @overload
    def step(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[None, None, R]: ...
    def step(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[None, None, Any]:
        """Run a step, or return what is recorded of it. Its arguments without the effect.

        Raises what the step declared (`not_done`), else StepError; ResultUnrecordable, StepAbsent.
        """
        return self._driver.step(fn, args, kwargs)

    @overload
    def gather(self) -> Coroutine[None, None, tuple[()]]: ...
    @overload
    def gather(self, c1: Awaitable[T1], /) -> Coroutine[None, None, tuple[T1]]: ...
    @overload
    def gather(
        self, c1: Awaitable[T1], c2: Awaitable[T2], /
    ) -> Coroutine[None, None, tuple[T1, T2]]: ...
    @overload
    def gather(
        self, c1: Awaitable[T1], c2: Awaitable[T2], c3: Awaitable[T3], /
    ) -> Coroutine[None, None, tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self, c1: Awaitable[T1], c2: Awaitable[T2], c3: Awaitable[T3], c4: Awaitable[T4], /
    ) -> Coroutine[None, None, tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(
        self,
        c1: Awaitable[T1],
        c2: Awaitable[T2],
        c3: Awaitable[T3],
        c4: Awaitable[T4],
        c5: Awaitable[T5],
        /,
    ) -> Coroutine[None, None, tuple[T1, T2, T3, T4, T5]]: ...
    @overload
    def gather(self, *calls: Awaitable[T]) -> Coroutine[None, None, tuple[T, ...]]: ...
    @overload
    def gather(self, **named: Awaitable[T]) -> Coroutine[None, None, dict[str, T]]: ...
    def gather(self, *calls: Awaitable[Any], **named: Awaitable[Any]) -> Coroutine[None, None, Any]:
        """Run steps or coroutines at the same time, each a branch of its own.

        Waits until all have ended. Returns their results in order (named: as a dict), or raises
        the failure that is first in log order; what the others did is recorded, nothing is left
        running.
        """
        return self._driver.gather(calls, named)

    @overload
    def map(
        self,
        fn: Callable[Concatenate[Effect, T, ...], Coroutine[Any, Any, R]],
        items: Iterable[T],
        *,
        every: int = 25,
        concurrency: int = 8,
    ) -> Coroutine[None, None, list[R]]: ...
    @overload
    def map(
        self,
        fn: Callable[Concatenate[Effect, T, ...], R],
        items: Iterable[T],
        *,
        every: int = 25,
        concurrency: int = 8,
    ) -> Coroutine[None, None, list[R]]: ...
    @overload
    def map(
        self,
        fn: Callable[Concatenate[T, ...], Coroutine[Any, Any, R]],
        items: Iterable[T],
        *,
        every: int = 25,
        concurrency: int = 8,
    ) -> Coroutine[None, None, list[R]]: ...
    @overload
    def map(
        self,
        fn: Callable[Concatenate[T, ...], R],
        items: Iterable[T],
        *,
        every: int = 25,
        concurrency: int = 8,
    ) -> Coroutine[None, None, list[R]]: ...
    def map(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *,
        every: int = 25,
        concurrency: int = 8,
    ) -> Coroutine[None, None, Any]:
        """Run a step once for each item, which is its first argument. Results in item order.

        A re-executable step is recorded once per `every` items; any other has a slot and an intent
        for each item. At most `concurrency` items are under way. After a failure no item is begun
        any more, those under way run to their end, then the first failure is raised.
        """
        return self._driver.map(fn, items, every, concurrency)

    @overload
    def each(self, items: Iterable[T], *, every: int = 25) -> Loop[T, None]: ...
    @overload
    def each(self, items: Iterable[T], *, every: int = 25, state: S) -> Loop[T, S]: ...
    def each(
        self, items: Iterable[Any], *, every: int = 25, state: object = None
    ) -> Loop[Any, Any]:
        """Loop over many items in batches: `async for batch, state in ctx.each(…)`.

        The body ends with `batch.commit(new_state)`; after a crash the loop goes on behind the
        last committed batch. Nothing else that the body assigned survives a batch: read the end
        from `loop.state`. `break`, `return` and exceptions may leave the loop.
        """
        return self._driver.each(items, every, state)

    def sleep(self, duration: timedelta) -> Coroutine[None, None, None]:
        """Wait for a durable timer; the run needs no process while it waits."""
        return self._driver.sleep(duration)

    @overload
    def revalidate(
        self,
        fn: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        recorded: R,
        tolerance: Callable[[R, R], bool] | None = None,
        **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...
    @overload
    def revalidate(
        self,
        fn: Callable[..., R],
        /,
        *args: Any,
        recorded: R,
        tolerance: Callable[[R, R], bool] | None = None,
        **kwargs: Any,
    ) -> Coroutine[None, None, R]: ...
    def revalidate(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        recorded: Any,
        tolerance: Callable[[Any, Any], bool] | None = None,
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]:
        """Read a value again by a re-executable step and return it, or raise Revalidation.

        `args` and `kwargs` are the step's. `tolerance(recorded, fresh)` says whether the two are
        the same for the run; without one they must be equal.
        """
        return self._driver.revalidate(fn, args, kwargs, recorded, tolerance)

    def now(self) -> datetime:
        """The time of the last outcome delivered to this branch; aware, UTC, the same on replay."""
        return EPOCH + timedelta(milliseconds=self._driver.now_ms())

    def uuid(self) -> uuid.UUID:
        """A new UUID, the same on replay."""
        return self._driver.uuid()

    @property
    def random(self) -> Random:
        """A source of random numbers of this branch, the same on replay."""
        return self._driver.random()
