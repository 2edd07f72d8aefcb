"""What run code calls through its context: steps, branches, loops, and what derives from them."""

import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from random import Random
from typing import Any

from refold.app.definitions import StepDef
from refold.engine.asks import CursorAsked, LogLine
from refold.engine.births import Births
from refold.engine.branches import WAIT, Branch, Group
from refold.engine.driving import Driving
from refold.engine.loops import EachLoop
from refold.engine.scopes import Scope
from refold.engine.shown import short_repr
from refold_schemas.errors.run import CallRefused, Revalidation
from refold_schemas.values import Value


class RunCalls:
    """Stands behind a RunContext. `drive_ms` is the time of what run code is being given now."""

    __slots__ = ("_births", "_driving", "drive_ms", "run_id")

    def __init__(self, driving: Driving, births: Births, started_ms: int) -> None:
        """The calls of one run."""
        self.run_id = driving.run_id
        self._driving, self._births = driving, births
        self.drive_ms = started_ms

    def step(
        self, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.step."""
        # As _made does it, written out: this is done for every step.
        driving = self._driving
        number = driving.made = driving.made + 1
        call = self._step(number, fn, args, kwargs)
        branch = driving.current
        if branch is not None:
            frame = sys._getframe(2)  # run code, behind the context's own method
            driving.unbegun[number] = (call, branch, "ctx.step", fn, frame.f_code, frame.f_lasti)
        return call

    def _made(
        self, name: str, subject: object, begin: Callable[[int], Coroutine[Any, Any, Any]]
    ) -> Coroutine[Any, Any, Any]:
        """Make a call that its branch has to await before it ends."""
        driving = self._driving
        number = driving.made = driving.made + 1
        call = begin(number)
        if driving.current is not None:
            frame = sys._getframe(3)
            place = (frame.f_code, frame.f_lasti)
            driving.unbegun[number] = (call, driving.current, name, subject, *place)
        return call

    async def _step(
        self, number: int, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Any:
        driving, births = self._driving, self._births
        driving.unbegun.pop(number, None)
        if driving.closing:
            await driving.refuse_teardown()
        branch = driving.running("ctx.step")
        definition = births.definition("ctx.step", fn)
        births.step(branch, definition, definition.bind(args, kwargs))
        return await WAIT

    def sleep(self, duration: timedelta) -> Coroutine[Any, Any, None]:
        """See RunContext.sleep."""
        return self._made("ctx.sleep", duration, lambda number: self._sleep(number, duration))

    async def _sleep(self, number: int, duration: timedelta) -> None:
        branch = await self._running("ctx.sleep", number)
        if not isinstance(duration, timedelta) or duration < timedelta(0):
            raise CallRefused(
                "ctx.sleep", f"{duration!r} is no duration", "pass a timedelta of zero or more"
            )
        self._births.sleep(branch, duration)
        await WAIT

    def revalidate(
        self,
        fn: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        recorded: object,
        tolerance: Callable[[Any, Any], bool] | None,
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.revalidate."""
        return self._made(
            "ctx.revalidate",
            fn,
            lambda number: self._revalidate(number, fn, args, kwargs, recorded, tolerance),
        )

    async def _revalidate(
        self,
        number: int,
        fn: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        recorded: object,
        tolerance: Callable[[Any, Any], bool] | None,
    ) -> Any:
        branch = await self._running("ctx.revalidate", number)
        definition = self._births.definition("ctx.revalidate", fn)
        if not definition.re_executable:
            raise CallRefused(
                "ctx.revalidate",
                f"{definition.name} is {definition.policy.value}, not re_executable",
                "revalidate by a step that only reads, with policy=Policy.RE_EXECUTABLE",
            )
        slot = self._births.step(branch, definition, definition.bind(args, kwargs))
        fresh = await WAIT
        same = fresh == recorded if tolerance is None else tolerance(recorded, fresh)
        if not same:
            raise Revalidation(recorded, fresh, slot=slot)
        return fresh

    async def _running(self, call: str, number: int) -> Branch:
        self._driving.unbegun.pop(number, None)
        if self._driving.closing:
            await self._driving.refuse_teardown()
        return self._driving.running(call)

    # ---- branches

    def gather(
        self, calls: tuple[object, ...], named: Mapping[str, object]
    ) -> Coroutine[Any, Any, Any]:
        """See RunContext.gather."""
        given = (*calls, *named.values())
        return self._made("ctx.gather", given, lambda number: self._gather(number, calls, named))

    async def _gather(
        self, number: int, calls: tuple[object, ...], named: Mapping[str, object]
    ) -> Any:
        try:
            branch = await self._running("ctx.gather", number)
            children = _children(calls, named)
        except BaseException:
            _close_all((*calls, *named.values()))
            raise
        place = branch.scope.slot("gather")
        group = Group(branch, len(children), self._driving.resume)
        for index, (key, coroutine) in enumerate(children):
            self._begin_child(group, index, coroutine, f"{place}[{key}]")
        if children:
            await WAIT
        if group.failure is not None:
            raise group.failure
        if named:
            return dict(zip(named, group.results, strict=True))
        return tuple(group.results)

    def map(
        self, fn: object, items: Iterable[object], every: int, concurrency: int
    ) -> Coroutine[Any, Any, list[Any]]:
        """See RunContext.map."""
        return self._made(
            "ctx.map", fn, lambda number: self._map(number, fn, items, every, concurrency)
        )

    async def _map(
        self, number: int, fn: object, items: Iterable[object], every: int, concurrency: int
    ) -> list[Any]:
        branch = await self._running("ctx.map", number)
        definition = self._births.definition("ctx.map", fn)
        for name, count in (("every", every), ("concurrency", concurrency)):
            _check_count("ctx.map", name, count)
        calls = [definition.bind((item,), {}) for item in items]
        place = branch.scope.slot("map")
        if not calls:
            return []
        if not definition.re_executable:
            return await self._map_items(branch, definition, calls, place, concurrency)
        results: list[Any] = []
        for start in range(0, len(calls), every):
            chunk = calls[start : start + every]
            scope = Scope(f"{place}[{start}..{start + len(chunk) - 1}]")
            self._births.chunk(branch, scope, definition, chunk, concurrency)
            results += await WAIT
        return results

    async def _map_items(
        self,
        branch: Branch,
        definition: StepDef,
        calls: list[dict[str, object]],
        place: str,
        concurrency: int,
    ) -> list[Any]:
        group = Group(branch, len(calls), self._driving.resume)
        begun = 0

        async def one(arguments: dict[str, object]) -> Any:
            self._births.step(self._driving.running("ctx.map"), definition, arguments)
            return await WAIT

        def begin() -> None:
            nonlocal begun
            if begun < len(calls):
                index, begun = begun, begun + 1
                self._begin_child(group, index, one(calls[index]), f"{place}[{index}]")

        for _ in range(min(concurrency, len(calls))):
            begin()
        group.begin = begin
        await WAIT
        if group.failure is not None:
            raise group.failure
        return group.results

    def _begin_child(
        self, group: Group, index: int, coroutine: Coroutine[Any, Any, Any], path: str
    ) -> None:
        parent = group.parent
        group.open += 1
        self._driving.begin(
            Branch(coroutine, Scope(path), parent.context.copy(), parent.now_ms, group.ender(index))
        )

    # ---- loops

    def each(self, items: Iterable[Any], every: int, state: object) -> EachLoop:
        """See RunContext.each."""
        self._driving.running("ctx.each")
        _check_count("ctx.each", "every", every)
        return EachLoop(self, list(items), every, state)

    def running(self, call: str) -> Branch:
        """The branch that runs now. Raises StepOutsideRun or RunTornDown."""
        return self._driving.running(call)

    async def enter_loop(self, branch: Branch, slot: str, total: int) -> tuple[int, Any] | None:
        """Where a recorded loop begins, once its turn has come; None if nothing is recorded."""
        record = self._births.record
        kept = None if record is None else record.cursor(slot)
        if kept is None:
            return None
        if kept.total != total:
            self._births.diverge(
                slot, f"loop {slot}: recorded over {kept.total} items, the code has {total}"
            )
        # Not at once: what was delivered before the cursor is to be delivered before it again.
        branch.definition = None
        self._driving.waiting[slot] = branch
        return kept.cursor, await WAIT

    def ask_cursor(self, branch: Branch, slot: str, cursor: int, total: int, state: Value) -> None:
        """A loop goes on behind a committed batch."""
        branch.now_ms = self.drive_ms
        self._births.asks.append(CursorAsked(slot, cursor, total, state, self.drive_ms))

    def check_size(self, what: str, value: Value) -> None:
        """Raise ValueTooLarge for a value over the limit."""
        self._births.check_size(what, value)

    # ---- what derives

    def now_ms(self) -> int:
        """See RunContext.now."""
        return self._driving.any_branch("ctx.now").now_ms

    def uuid(self) -> uuid.UUID:
        """See RunContext.uuid."""
        return self._driving.any_branch("ctx.uuid").scope.uuid(self._births.nonce)

    def random(self) -> Random:
        """See RunContext.random."""
        return self._driving.any_branch("ctx.random").scope.random(self._births.nonce)

    def write_log(self, level: str, message: str, fields: dict[str, object]) -> None:
        """See RunLog."""
        branch = self._driving.any_branch("ctx.log")
        if not self._driving.closing:
            shown = {name: short_repr(value) for name, value in fields.items()}
            self._births.asks.append(LogLine(level, message, shown, branch.now_ms))


def _check_count(call: str, name: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise CallRefused(call, f"{name}={number!r}", f"give {name} a whole number from 1 on")


def _children(
    calls: tuple[object, ...], named: Mapping[str, object]
) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
    """The branches of a gather by key. Raises CallRefused."""
    if calls and named:
        raise CallRefused(
            "ctx.gather", "some calls are named, some are not", "name all of them or none"
        )
    children: list[tuple[str, Coroutine[Any, Any, Any]]] = []
    seen: set[int] = set()
    for key, call in named.items() if named else enumerate(calls):
        if id(call) in seen:
            raise CallRefused(
                "ctx.gather", f"one call was given twice (at {key})", "make a second call"
            )
        seen.add(id(call))
        if isinstance(key, str) and not key.isidentifier():
            raise CallRefused(
                "ctx.gather", f"{key!r} cannot name a branch", "use a Python identifier"
            )
        if isinstance(call, Coroutine):
            children.append((str(key), call))
        elif hasattr(call, "__await__"):
            children.append((str(key), _await(call)))
        else:
            raise CallRefused(
                "ctx.gather",
                f"{type(call).__name__} at {key} cannot be awaited",
                "pass ctx.step(step, …) or call an `async def` function",
            )
    return children


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _close_all(calls: tuple[object, ...]) -> None:
    """Close calls that were not begun, so that Python does not complain of each."""
    for call in calls:
        if isinstance(call, Coroutine):
            call.close()
