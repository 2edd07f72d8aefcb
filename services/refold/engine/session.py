"""A session drives the coroutines of one run: outcomes in, asks out; no clock, no IO, no event loop.

Outcomes reach run code one at a time in log order, live and on replay alike, and between two of
them every branch runs until it waits. Source: design, section 5.
"""

import contextvars
import sys
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from random import Random
from threading import get_ident
from typing import Any

from refold.app.application import App
from refold.app.context import RunContext
from refold.app.definitions import RunDef, StepDef
from refold.engine.acquisitions import Acquisitions
from refold.engine.asks import (
    Ask,
    ChunkAsked,
    CursorAsked,
    Diverged,
    LogLine,
    Raised,
    Returned,
    SleepAsked,
    StepAsked,
    Unsettled,
)
from refold.engine.branches import WAIT, Branch, Group
from refold.engine.foreign import FOREIGN_MAX, foreign_await
from refold.engine.loops import EachLoop
from refold.engine.outcomes import result_of
from refold.engine.record import (
    Record,
    Turn,
    argument_difference,
    chunk_difference,
    encode_arguments,
    without_volatile,
)
from refold.engine.scopes import Scope, scope_of
from refold_projections.fold.state import Outcome, RunState, Slot
from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.run import (
    CallRefused,
    Revalidation,
    RunTornDown,
    StepOutsideRun,
)
from refold_schemas.values import Value, decode_value, fingerprint

__all__ = [
    "Ask",
    "ChunkAsked",
    "CursorAsked",
    "Diverged",
    "LogLine",
    "Raised",
    "Returned",
    "Session",
    "SleepAsked",
    "StepAsked",
    "Unsettled",
]

SLEEP = "sleep"
TEARDOWN_CALLS_MAX = 100
"""Run code that calls this often into its context while it is torn down is abandoned."""

_abandoned: list[Coroutine[Any, Any, Any]] = []
"""Coroutines that would not close. Dropping one would throw into it again at a random moment."""


class Session:
    """One run in one process: drives its coroutines until it ends, diverges or is closed.

    `replaying` while recorded outcomes are left. `ended` once Returned, Raised or Diverged was
    asked. `swallowed_teardown` is True if run code would not let itself be closed.
    Not thread-safe: one thread starts it, delivers to it and closes it.
    """

    def __init__(
        self,
        app: App,
        definition: RunDef,
        state: RunState,
        *,
        namespace: str,
        now_ms: int,
        cleanup_only: bool = False,
    ) -> None:
        """`now_ms` is the owner's clock: what has run out by then is acquired again.

        With `cleanup_only` no run code runs, only what the run acquired is released.
        """
        self.run_id, self.namespace = state.run_id, namespace
        self.ended = False
        self.replaying = True
        self.swallowed_teardown = False
        self._app, self._steps, self._run = app, app.steps, definition
        self._state: RunState | None = state
        self._nonce = state.nonce
        self._started_ms = state.started_ms
        self._now_ms = now_ms
        self._cleanup_only = cleanup_only
        self._acquired = Acquisitions(state, app.steps)
        self._record: Record | None = Record(
            state, app.steps, self._acquired, cleanup_only=cleanup_only
        )
        self._branches: dict[Branch, None] = {}
        self._waiting: dict[str, Branch] = {}
        self._ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self._asks: list[Ask] = []
        self._late: list[tuple[str, Outcome]] = []
        self._expired: Turn | None = None
        self._diverged: Diverged | None = None
        self._current: Branch | None = None
        self._thread = 0
        self._closing = False
        self._calls_closing = 0
        self._births = 0
        self._drive_ms = state.started_ms
        self._last = ""  # the slot of the last step that `_ask_step` bore

    # ---- what the owner calls

    def start(self) -> list[Ask]:
        """Run the function from the top through every recorded outcome.

        Returns what it asks for that is not recorded, in the order in which run code asked.
        Raises nothing but KeyboardInterrupt; what run code raises is asked as Raised.
        """
        state = self._state
        if state is None:
            raise RuntimeError("a session is started once")
        return self._start(state)

    def _start(self, state: RunState) -> list[Ask]:
        if self._cleanup_only:
            self._release(None, None)
        else:
            try:
                given = self._run.read_input(state.input)
            except RefoldError as error:
                self._diverge("input", f"input: {error.message}")
                return self._answer()
            context = RunContext(
                self, run_id=self.run_id, run=self._run.name, version=self._run.version
            )
            arguments = (context,) if self._run.parameter is None else (context, given)
            root = Branch(
                self._run.fn(*arguments),
                Scope(""),
                contextvars.copy_context(),
                self._started_ms,
                self._root_ended,
            )
            self._begin(root)
        return self._replay()

    def deliver(self, slot: str, outcome: Outcome) -> list[Ask]:
        """Give run code an outcome, in log order, and return what it asks for then."""
        if self.ended or self._closing:
            return []
        expired = self._expired
        if expired is not None:
            if expired.slot != slot:
                self._late.append((slot, outcome))
                return []
            self._expired = None
            return self._replay_on(expired, outcome)
        branch = self._waiting.pop(slot, None)
        if branch is None:
            raise RuntimeError(f"run {self.run_id} does not wait for {slot}")
        self._drive_ms = outcome.at_ms
        self._resume(branch, slot, outcome)
        self._drive()
        return self._answer()

    def close(self) -> None:
        """Tear the run's code down in this process: every coroutine is closed once and abandoned.

        Steps that are called meanwhile raise RunTornDown.
        """
        if self._closing:
            return
        self._close_branches()
        self._record = self._state = None

    def _close_branches(self) -> None:
        self._closing = True
        self._thread = get_ident()
        self._ready.clear()
        self._waiting.clear()
        for branch in reversed(self._branches):
            self._current = branch
            try:
                branch.context.run(branch.coroutine.throw, GeneratorExit())
            except StopIteration:
                self.swallowed_teardown = True
            except KeyboardInterrupt:
                raise
            except BaseException:
                pass
            else:
                self.swallowed_teardown = True
                _abandoned.append(branch.coroutine)
            finally:
                self._current = None
        self._branches.clear()

    @property
    def waiting_slots(self) -> tuple[str, ...]:
        """The slots that run code waits for now."""
        return tuple(self._waiting)

    # ---- replay

    def _replay(self) -> list[Ask]:
        """Feed the recorded outcomes from the next one on, until they are read or one has run out."""
        record = self._record
        if record is None:
            return self._answer()
        self._drive_ms = self._now_ms if record.read else self._started_ms
        self._drive()
        while self._diverged is None and not record.read:
            turn = record.turns[record.next]
            branch = self._waiting.get(turn.slot)
            if branch is None:
                if self._acquired.is_release(turn.slot) and self._branches:
                    return self._restart_resumed()
                self._diverge_passed(record, turn.slot)
                break
            if self._has_run_out(turn, branch):
                self._expired = turn
                definition = branch.definition
                return [Unsettled(turn.slot, definition, True)]
            self._take(record, turn, turn.outcome)
        return self._end_of_record(record)

    def _restart_resumed(self) -> list[Ask]:
        """Replay again: the run had ended and released what it held, and was resumed since."""
        state = self._state
        if state is None:
            return self._answer()
        self._close_branches()
        self._closing = False
        self._asks.clear()
        self._births = 0
        self._acquired.resume()
        self._record = Record(state, self._steps, self._acquired, cleanup_only=False)
        return self._start(state)

    def _replay_on(self, expired: Turn, outcome: Outcome) -> list[Ask]:
        record = self._record
        if record is None:
            return self._answer()
        try:
            self._acquired.renew(expired.outcome, outcome)
        except RefoldError as unreadable:
            self._diverge(expired.slot, f"step {expired.slot}: its handle: {unreadable.message}")
            return self._answer()
        self._take(record, expired, outcome)
        return self._replay()

    def _take(self, record: Record, turn: Turn, outcome: Outcome | None) -> None:
        """Hand one recorded outcome out and let every branch run until it waits."""
        record.next += 1
        self._asks = [ask for ask in self._asks if type(ask) is not LogLine]
        branch = self._waiting.pop(turn.slot)
        if turn.cursor is not None:
            at_ms = turn.cursor.at_ms
        else:
            at_ms = outcome.at_ms if outcome is not None else self._now_ms
        self._drive_ms = max(self._now_ms, at_ms) if record.read else at_ms
        if turn.cursor is not None:
            self._resume_loop(branch, turn.slot, turn.cursor.state, at_ms)
        elif outcome is not None:
            self._resume(branch, turn.slot, outcome)
        self._drive()

    def _end_of_record(self, record: Record) -> list[Ask]:
        if self._diverged is None:
            unread = record.unread()
            if unread is not None:
                self._diverge_passed(record, unread.name)
        if self._diverged is None:
            self.replaying = False
            self._record = self._state = None
            late, self._late = self._late, []
            for slot, outcome in late:
                branch = self._waiting.pop(slot, None)
                if branch is not None and not self.ended:
                    self._drive_ms = outcome.at_ms
                    self._resume(branch, slot, outcome)
                    self._drive()
        return self._answer()

    def _has_run_out(self, turn: Turn, branch: Branch) -> bool:
        if turn.outcome is None or branch.definition is None:
            return False
        return self._acquired.has_run_out(turn.slot, branch.definition, turn.outcome, self._now_ms)

    def _diverge(self, slot: str, detail: str) -> None:
        if self._diverged is None:
            self._diverged = Diverged(slot, detail)

    def _diverge_passed(self, record: Record, name: str) -> None:
        """A recorded slot whose turn it is, and nobody waits for it."""
        slot = record.slot(name)
        if slot is None:
            self._diverge(name, f"loop {name}: recorded, but the code does not come to it")
            return
        where = f"step {record.place(name)} {slot.step}"
        if slot.step != SLEEP and slot.step not in self._steps:
            self._diverge(name, f"{where}: the app has no step of this name any more")
            return
        scope = scope_of(name)
        other = next((s for s in self._waiting if scope_of(s) == scope), None)
        if other is not None:
            detail = f"recorded as {name}, but the code asks for {other} instead"
        elif self._branches:
            detail = f"recorded as {name}, but the code does not ask for it"
        else:
            detail = f"recorded as {name}, but the code ends before it"
        self._diverge(name, f"{where}: {detail}")

    # ---- driving

    def _begin(self, branch: Branch) -> None:
        self._branches[branch] = None
        self._ready.append((branch, None, None))

    def _resume(self, branch: Branch, slot: str, outcome: Outcome) -> None:
        definition = branch.definition
        try:
            value, error = result_of(slot, definition, outcome)
        except RefoldError as unreadable:
            self._diverge(slot, f"step {slot}: its recorded result: {unreadable.message}")
            return
        if definition is None or definition.valid_for_ms is None:
            # Handles are acquired anew at another time, so they must not move the run's clock.
            branch.now_ms = outcome.at_ms
        if definition is not None and definition.release is not None:
            self._acquired.note(slot, definition, outcome)
        branch.definition = None
        self._ready.append((branch, value, error))

    def _resume_loop(self, branch: Branch, slot: str, state: Value, at_ms: int) -> None:
        try:
            value = decode_value(state)
        except RefoldError as unreadable:
            self._diverge(slot, f"loop {slot}: its recorded state: {unreadable.message}")
            return
        branch.now_ms = at_ms
        self._ready.append((branch, value, None))

    def _drive(self) -> None:
        ready = self._ready
        if not ready:
            return
        self._thread = get_ident()
        hooks = sys.get_asyncgen_hooks()
        # The hooks of an event loop would run the end of an abandoned generator as its own task.
        sys.set_asyncgen_hooks(None, None)
        try:
            while ready and self._diverged is None:
                branch, value, error = ready.popleft()
                self._current = branch
                try:
                    if error is None:
                        request = branch.context.run(branch.coroutine.send, value)
                    else:
                        request = branch.context.run(branch.coroutine.throw, error)
                except StopIteration as stop:
                    self._current = None
                    self._end(branch, stop.value, None)
                except KeyboardInterrupt:
                    raise
                except BaseException as raised:
                    self._current = None
                    self._end(branch, None, raised)
                else:
                    if request is WAIT:
                        branch.foreign = 0
                    else:
                        self._refuse_foreign(branch, request)
        finally:
            self._current = None
            sys.set_asyncgen_hooks(*hooks)

    def _refuse_foreign(self, branch: Branch, request: object) -> None:
        branch.foreign += 1
        error = foreign_await(branch.coroutine, request)
        if branch.foreign < FOREIGN_MAX:
            self._ready.appendleft((branch, None, error))
            return
        # It catches what says that it cannot wait here, and waits again: that would never end.
        self.swallowed_teardown = True
        _abandoned.append(branch.coroutine)
        self._end(branch, None, error)

    def _end(self, branch: Branch, result: Any, error: BaseException | None) -> None:
        del self._branches[branch]
        branch.ended(branch, result, error)

    def _root_ended(self, branch: Branch, result: Any, error: BaseException | None) -> None:
        self._release(result, error)

    def _release(self, result: Any, error: BaseException | None) -> None:
        """Give back what was acquired, last first, then say how the run ended."""
        if not self._acquired.held():
            self._finish(result, error)
            return

        def released(branch: Branch, _: Any, failed: BaseException | None) -> None:
            self._finish(result, failed if failed is not None else error)

        self._begin(
            Branch(
                self._release_all(),
                Scope(""),
                contextvars.copy_context(),
                self._started_ms,
                released,
            )
        )

    async def _release_all(self) -> None:
        branch = self.running("release")
        for held in self._acquired.held():
            branch.scope = Scope(held.slot)
            self._acquired.skip_stale(branch.scope, held)
            try:
                handle = decode_value(held.value)
                arguments = held.release.bind((handle,), {})
                self._ask_step(branch, held.release, arguments)
                await WAIT
            except Exception:
                continue

    def _finish(self, result: Any, error: BaseException | None) -> None:
        self.ended = True
        self._asks.append(Returned(result) if error is None else Raised(error))

    def _answer(self) -> list[Ask]:
        if self._diverged is not None:
            self.ended = True
            self._asks = []
            return [self._diverged]
        asks, self._asks = self._asks, []
        return asks

    # ---- what run code calls, through its context

    def running(self, call: str) -> Branch:
        """The branch that runs now. Raises StepOutsideRun or RunTornDown."""
        branch = self._current
        if branch is None or get_ident() != self._thread:
            raise StepOutsideRun(call, self.run_id)
        if self._closing:
            raise RunTornDown(call, self.run_id)
        return branch

    async def _refuse_teardown(self) -> None:
        """Keep code that loops around its own teardown from hanging the process."""
        self._calls_closing += 1
        if self._calls_closing > TEARDOWN_CALLS_MAX:
            await WAIT

    async def step(self, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        """See RunContext.step."""
        if self._closing:
            await self._refuse_teardown()
        branch = self.running("ctx.step")
        definition = getattr(fn, "__refold__", None)
        if type(definition) is not StepDef or self._steps.get(definition.name) is not definition:
            raise self._no_step("ctx.step", fn)
        self._ask_step(branch, definition, definition.bind(args, kwargs))
        return await WAIT

    def _no_step(self, call: str, fn: object) -> CallRefused:
        name = getattr(fn, "__name__", None) or type(fn).__name__
        if isinstance(getattr(fn, "__refold__", None), StepDef):
            problem, repair = f"{name} is a step of another App", f"register it in {self._app.name}"
        else:
            problem, repair = f"{name} is not a registered step", f"write @app.step(…) above {name}"
        return CallRefused(call, problem, repair)

    def _ask_step(self, branch: Branch, definition: StepDef, arguments: dict[str, object]) -> str:
        """Bear the slot of a step; after it the branch must wait."""
        volatile = definition.volatile
        lasting = (
            arguments
            if not volatile
            else {name: value for name, value in arguments.items() if name not in volatile}
        )
        mark = self._fingerprint(definition, lasting, arguments)
        slot = branch.scope.slot(definition.name)
        self._births += 1
        record = self._record
        kept = None if record is None else record.slot(slot)
        if record is not None and kept is not None:
            if mark != kept.fingerprint:
                renewed = self._acquired.with_old_handles(lasting)
                if renewed is lasting or mark_of(self, definition, renewed) != kept.fingerprint:
                    found = argument_difference(kept, definition, renewed)
                    if found is not None:
                        self._diverge(
                            slot, f"step {self._place(record)} {definition.name}: {found}"
                        )
            self._read(record, kept, branch, definition)
        else:
            self._asks.append(
                StepAsked(slot, definition, arguments, mark, encode_arguments(arguments))
            )
        branch.definition = definition
        self._waiting[slot] = branch
        return slot

    def _fingerprint(
        self, definition: StepDef, lasting: dict[str, object], arguments: dict[str, object]
    ) -> bytes:
        try:
            return fingerprint(self._nonce, definition.name, lasting)
        except RefoldError:
            encode_arguments(arguments)  # says the same with the argument's own name
            raise

    def _read(self, record: Record, kept: Slot, branch: Branch, definition: StepDef | None) -> None:
        """Run code has come to a recorded slot; if it has no outcome, the owner settles it."""
        # What the branch logged on the way here was logged when the slot was recorded.
        if self._asks:
            self._asks = [ask for ask in self._asks if type(ask) is not LogLine]
        if record.open.pop(kept.name, None) is not None:
            self._asks.append(Unsettled(kept.name, definition, False))

    def _place(self, record: Record) -> int:
        return self._births + record.passed

    async def sleep(self, duration: timedelta) -> None:
        """See RunContext.sleep."""
        if self._closing:
            await self._refuse_teardown()
        branch = self.running("ctx.sleep")
        if not isinstance(duration, timedelta) or duration < timedelta(0):
            raise CallRefused(
                "ctx.sleep", f"{duration!r} is no duration", "pass a timedelta of zero or more"
            )
        slot = branch.scope.slot(SLEEP)
        self._births += 1
        record = self._record
        kept = None if record is None else record.slot(slot)
        if record is not None and kept is not None:
            self._read(record, kept, branch, None)
        else:
            self._asks.append(SleepAsked(slot, -(-duration // timedelta(milliseconds=1))))
        branch.definition = None
        self._waiting[slot] = branch
        await WAIT

    async def gather(self, calls: tuple[object, ...], named: Mapping[str, object]) -> Any:
        """See RunContext.gather."""
        if self._closing:
            _close_all((*calls, *named.values()))
            await self._refuse_teardown()
        try:
            branch = self.running("ctx.gather")
            children = _children(calls, named)
        except BaseException:
            _close_all((*calls, *named.values()))
            raise
        place = branch.scope.slot("gather")
        group = Group(branch, len(children), self._resume_parent)
        for index, (key, coroutine) in enumerate(children):
            self._begin_child(group, index, coroutine, f"{place}[{key}]")
        if children:
            await WAIT
        if group.failure is not None:
            raise group.failure
        if named:
            return dict(zip(named, group.results, strict=True))
        return tuple(group.results)

    def _begin_child(
        self, group: Group, index: int, coroutine: Coroutine[Any, Any, Any], path: str
    ) -> None:
        parent = group.parent
        group.open += 1
        self._begin(
            Branch(
                coroutine,
                Scope(path),
                parent.context.copy(),
                parent.now_ms,
                group.ender(index),
            )
        )

    def _resume_parent(self, branch: Branch) -> None:
        self._ready.append((branch, None, None))

    async def map(
        self, fn: object, items: Iterable[object], every: int, concurrency: int
    ) -> list[Any]:
        """See RunContext.map."""
        if self._closing:
            await self._refuse_teardown()
        branch = self.running("ctx.map")
        definition = getattr(fn, "__refold__", None)
        if type(definition) is not StepDef or self._steps.get(definition.name) is not definition:
            raise self._no_step("ctx.map", fn)
        for name, number in (("every", every), ("concurrency", concurrency)):
            if type(number) is not int or number < 1:
                raise CallRefused("ctx.map", f"{name}={number!r}", f"give {name} a number from 1")
        calls = [definition.bind((item,), {}) for item in items]
        place = branch.scope.slot("map")
        if not calls:
            return []
        if definition.re_executable:
            return await self._map_chunks(branch, definition, calls, place, every, concurrency)
        return await self._map_items(branch, definition, calls, place, concurrency)

    async def _map_chunks(
        self,
        branch: Branch,
        definition: StepDef,
        calls: list[dict[str, object]],
        place: str,
        every: int,
        concurrency: int,
    ) -> list[Any]:
        results: list[Any] = []
        for start in range(0, len(calls), every):
            chunk = calls[start : start + every]
            scope = Scope(f"{place}[{start}..{start + len(chunk) - 1}]")
            self._ask_chunk(branch, scope, definition, chunk, concurrency)
            results += await WAIT
        return results

    def _ask_chunk(
        self,
        branch: Branch,
        scope: Scope,
        definition: StepDef,
        items: list[dict[str, object]],
        concurrency: int,
    ) -> None:
        lasting: dict[str, object] = {"items": without_volatile(definition, items)}
        mark = self._fingerprint(definition, lasting, {"items": items})
        slot = scope.slot(definition.name)
        self._births += 1
        record = self._record
        kept = None if record is None else record.slot(slot)
        if record is not None and kept is not None:
            if mark != kept.fingerprint:
                renewed = self._acquired.with_old_handles(lasting)
                if renewed is lasting or mark_of(self, definition, renewed) != kept.fingerprint:
                    found = chunk_difference(kept, definition, renewed)
                    if found is not None:
                        self._diverge(
                            slot, f"step {self._place(record)} {definition.name}: {found}"
                        )
            self._read(record, kept, branch, definition)
        else:
            stored = encode_arguments({"items": items})
            self._asks.append(ChunkAsked(slot, definition, items, concurrency, mark, stored))
        branch.definition = definition
        self._waiting[slot] = branch

    async def _map_items(
        self,
        branch: Branch,
        definition: StepDef,
        calls: list[dict[str, object]],
        place: str,
        concurrency: int,
    ) -> list[Any]:
        group = Group(branch, len(calls), self._resume_parent)
        begun = 0

        async def one(arguments: dict[str, object]) -> Any:
            self._ask_step(self.running("ctx.map"), definition, arguments)
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

    def each(self, items: Iterable[Any], every: int, state: object) -> EachLoop:
        """See RunContext.each."""
        self.running("ctx.each")
        if type(every) is not int or every < 1:
            raise CallRefused("ctx.each", f"every={every!r}", "give every a number from 1")
        return EachLoop(self, list(items), every, state)

    async def enter_loop(self, branch: Branch, slot: str, total: int) -> tuple[int, Any] | None:
        """Where the record lets a loop begin, once its turn has come; None if nothing is recorded."""
        record = self._record
        kept = None if record is None else record.cursor(slot)
        if record is None or kept is None:
            return None
        if kept.total != total:
            self._diverge(
                slot, f"loop {slot}: recorded over {kept.total} items, the code has {total}"
            )
        branch.definition = None
        self._waiting[slot] = branch
        return kept.cursor, await WAIT

    def ask_cursor(self, branch: Branch, slot: str, cursor: int, total: int, state: Value) -> None:
        """A loop has gone on behind a committed batch."""
        branch.now_ms = self._drive_ms
        self._asks.append(CursorAsked(slot, cursor, total, state, self._drive_ms))

    async def revalidate(
        self,
        fn: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        recorded: object,
        tolerance: Callable[[Any, Any], bool] | None,
    ) -> Any:
        """See RunContext.revalidate."""
        if self._closing:
            await self._refuse_teardown()
        branch = self.running("ctx.revalidate")
        definition = getattr(fn, "__refold__", None)
        if type(definition) is not StepDef or self._steps.get(definition.name) is not definition:
            raise self._no_step("ctx.revalidate", fn)
        if not definition.re_executable:
            raise CallRefused(
                "ctx.revalidate",
                f"{definition.name} is {definition.policy.value}, not re_executable",
                "revalidate by a step that only reads, with policy=Policy.RE_EXECUTABLE",
            )
        slot = self._ask_step(branch, definition, definition.bind(args, kwargs))
        fresh = await WAIT
        same = fresh == recorded if tolerance is None else tolerance(recorded, fresh)
        if not same:
            raise Revalidation(recorded, fresh, slot=slot)
        return fresh

    def now_ms(self) -> int:
        """See RunContext.now."""
        return self._any_branch("ctx.now").now_ms

    def uuid(self) -> uuid.UUID:
        """See RunContext.uuid."""
        return self._any_branch("ctx.uuid").scope.uuid(self._nonce)

    def random(self) -> Random:
        """See RunContext.random."""
        return self._any_branch("ctx.random").scope.random(self._nonce)

    def write_log(self, level: str, message: str, fields: dict[str, object]) -> None:
        """See RunLog."""
        branch = self._any_branch("ctx.log")
        if not self._closing:
            self._asks.append(LogLine(level, message, fields, branch.now_ms))

    def _any_branch(self, call: str) -> Branch:
        branch = self._current
        if branch is None or get_ident() != self._thread:
            raise StepOutsideRun(call, self.run_id)
        return branch


def mark_of(session: Session, definition: StepDef, lasting: Mapping[str, object]) -> bytes:
    """The fingerprint of a call under the run's nonce."""
    return fingerprint(session._nonce, definition.name, lasting)


def _children(
    calls: tuple[object, ...], named: Mapping[str, object]
) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
    """The branches of a gather by key. Raises CallRefused."""
    if calls and named:
        raise CallRefused(
            "ctx.gather", "some calls are named, some not", "name all of them or none"
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
    """Calls that are not begun, so that Python does not complain of each."""
    for call in calls:
        if isinstance(call, Coroutine):
            call.close()
