"""A session is one run in one process: outcomes in, asks out; no clock, no IO, no event loop.

Outcomes reach run code one at a time in log order, live and on replay alike, and between two of
them every branch runs until it waits. Source: design, section 5.
"""

import contextvars
from typing import Any, Final

from refold.app.application import App
from refold.app.context import RunContext
from refold.app.definitions import RunDef
from refold.app.direct import IN_RUN_CODE
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
from refold.engine.births import Births
from refold.engine.branches import WAIT, Branch
from refold.engine.driving import Driving
from refold.engine.outcomes import Fresh, result_of
from refold.engine.record import Record, Turn
from refold.engine.run_calls import RunCalls
from refold.engine.scopes import Scope
from refold_projections.fold.state import Outcome, RunState
from refold_schemas.errors.base import RefoldError
from refold_schemas.values import Value, decode_value

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

VALUE_BYTES_MAX: Final = 1_000_000


class Session:
    """Drives the coroutines of one run until it ends, diverges or is closed.

    `replaying` while recorded outcomes are left. `ended` once Returned, Raised or Diverged was
    asked. Not thread-safe: one thread starts it, delivers to it and closes it.
    """

    __slots__ = (
        "_acquired",
        "_app",
        "_births",
        "_calls",
        "_cleanup_only",
        "_driving",
        "_expired",
        "_late",
        "_now_ms",
        "_run",
        "_state",
        "_value_bytes_max",
        "ended",
        "namespace",
        "replaying",
        "run_id",
    )

    def __init__(
        self,
        app: App,
        definition: RunDef,
        state: RunState,
        *,
        namespace: str,
        now_ms: int,
        cleanup_only: bool = False,
        value_bytes_max: int = VALUE_BYTES_MAX,
    ) -> None:
        """`now_ms` is the owner's clock: what has run out by then is acquired again.

        A call with an argument over `value_bytes_max` is refused in run code, nothing is asked.

        With `cleanup_only` no run code runs, only what the run acquired is released.
        """
        self.run_id, self.namespace = state.run_id, namespace
        self.ended, self.replaying = False, True
        self._app, self._run, self._now_ms = app, definition, now_ms
        self._cleanup_only, self._value_bytes_max = cleanup_only, value_bytes_max
        self._state: RunState | None = state
        self._late: list[tuple[str, Outcome]] = []
        self._expired: Turn | None = None
        self._acquired = Acquisitions(state, app.steps)
        self._set_up(state)

    def _set_up(self, state: RunState) -> None:
        record = Record(state, self._app.steps, self._acquired, cleanup_only=self._cleanup_only)
        self._driving = Driving(state.run_id)
        self._births = Births(
            self._driving,
            self._app.steps,
            state.nonce,
            self._acquired,
            record,
            self._value_bytes_max,
        )
        self._calls = RunCalls(self._driving, self._births, state.started_ms)

    # ---- what the owner calls

    def start(self) -> list[Ask]:
        """Run the function from the top through every recorded outcome; once.

        Returns what it asks for that is not recorded, in the order in which run code asked.
        Raises nothing but an operator's KeyboardInterrupt; what run code raises is asked as Raised.
        """
        state = self._state
        if state is None:
            return []
        if self._cleanup_only:
            self._release(None, None)
        else:
            try:
                given = self._run.read_input(state.input)
            except RefoldError as error:
                self._births.diverge("input", f"input: {error.message}")
                return self._answer()
            context = RunContext(
                self._calls, run_id=self.run_id, run=self._run.name, version=self._run.version
            )
            arguments = (context,) if self._run.parameter is None else (context, given)
            self._begin(self._run.fn(*arguments), self._release)
        return self._replay()

    def deliver(self, slot: str, outcome: Outcome, fresh: Fresh | None = None) -> list[Ask]:
        """Give run code an outcome, in log order, and return what it asks for then.

        `fresh` is given to nobody else. Raises KeyError if run code does not wait for the slot.
        """
        if self.ended or self._driving.closing:
            return []
        expired = self._expired
        if expired is not None:
            if expired.slot != slot:
                self._late.append((slot, outcome))
                return []
            self._expired = None
            return self._replay_on(expired, outcome)
        self._resume(slot, outcome, fresh)
        return self._answer()

    def close(self) -> None:
        """Tear the run's code down in this process: every coroutine is closed once and abandoned.

        Steps that are called meanwhile raise RunTornDown.
        """
        if not self._driving.closing:
            self._driving.close()
            self._state = self._births.record = None

    def waits_for(self, slot: str) -> bool:
        """Whether run code waits for the slot now."""
        return slot in self._driving.waiting

    @property
    def waiting_slots(self) -> tuple[str, ...]:
        """The slots that run code waits for now."""
        return tuple(self._driving.waiting)

    @property
    def swallowed_teardown(self) -> bool:
        """True if run code would not let itself be closed, and was abandoned."""
        return self._driving.swallowed

    # ---- replay

    def _replay(self) -> list[Ask]:
        """Feed the recorded outcomes from the next one on, until all are or one has run out."""
        births, waiting = self._births, self._driving.waiting
        record = births.record
        if record is None:
            return self._answer()
        if record.read:
            self._calls.drive_ms = self._now_ms
        self._driving.drive()
        while births.diverged is None and not record.read:
            turn = record.turns[record.next]
            branch = waiting.get(turn.slot)
            if branch is None:
                if self._acquired.is_release(turn.slot) and self._driving.branches:
                    return self._restart()
                births.diverge_passed(record, turn.slot)
            elif self._has_run_out(turn, branch):
                self._expired = turn
                return [Unsettled(turn.slot, branch.definition, True, branch.asked)]
            else:
                self._take(record, turn, turn.outcome)
        return self._end_of_record(record)

    def _replay_on(self, expired: Turn, outcome: Outcome) -> list[Ask]:
        """Go on with a handle that was acquired anew."""
        record = self._births.record
        if record is None:
            return self._answer()
        self._take(record, expired, outcome, renewed=True)
        return self._replay()

    def _restart(self) -> list[Ask]:
        """Replay again: the run had ended and released what it held, and was resumed since."""
        state = self._state
        if state is None:
            return self._answer()
        self._driving.close()
        self._acquired.resume()
        self._set_up(state)
        return self.start()

    def _take(
        self, record: Record, turn: Turn, outcome: Outcome | None, *, renewed: bool = False
    ) -> None:
        """Hand one recorded outcome out and let every branch run until it waits."""
        definition = self._driving.waiting[turn.slot].definition
        if definition is not None and definition.acquires:
            renewed = renewed or record.acquired_anew(turn)
        record.next += 1
        self._births.drop_log()
        if turn.cursor is not None:
            self._resume_loop(turn.slot, turn.cursor.state, turn.cursor.at_ms, last=record.read)
        elif outcome is not None:
            self._resume(turn.slot, outcome, last=record.read, renewed=renewed)

    def _end_of_record(self, record: Record) -> list[Ask]:
        births = self._births
        if births.diverged is None:
            unread = record.unread()
            if unread is not None:
                births.diverge_passed(record, unread.name)
        if births.diverged is None:
            self.replaying = False
            self._state = births.record = None
            late, self._late = self._late, []
            for slot, outcome in late:
                if not self.ended:
                    self._resume(slot, outcome)
        return self._answer()

    def _has_run_out(self, turn: Turn, branch: Branch) -> bool:
        if turn.outcome is None or branch.definition is None:
            return False
        return self._acquired.has_run_out(turn.slot, branch.definition, turn.outcome, self._now_ms)

    # ---- driving

    def _begin(self, coroutine: Any, ended: Any) -> None:
        def branch_ended(branch: Branch, result: Any, error: BaseException | None) -> None:
            ended(result, error)

        started_ms = self._calls.drive_ms
        # An empty context: run code must not see what the process around it has set.
        context = contextvars.Context()
        context.run(IN_RUN_CODE.set, True)
        self._driving.begin(Branch(coroutine, Scope(""), context, started_ms, branch_ended))

    def _resume(
        self,
        slot: str,
        outcome: Outcome,
        fresh: Fresh | None = None,
        *,
        last: bool = False,
        renewed: bool = False,
    ) -> None:
        branch = self._driving.waiting.pop(slot)
        definition = branch.definition
        try:
            value, error = result_of(slot, definition, outcome, fresh)
            acquires = definition is not None and definition.acquires
            if acquires and renewed:
                self._acquired.renewed(outcome)
        except RefoldError as unreadable:
            self._births.diverge(slot, f"step {slot}: its recorded result: {unreadable.message}")
            return
        if not acquires:
            # Handles are acquired anew at another time, so they must not move the run's clock.
            branch.now_ms = outcome.at_ms
        if definition is not None and definition.release is not None:
            self._acquired.note(slot, definition, outcome)
        branch.asked = None
        self._driving.resume(branch, value, error)
        self._drive(outcome.at_ms, last=last)

    def _resume_loop(self, slot: str, state: Value, at_ms: int, *, last: bool) -> None:
        branch = self._driving.waiting.pop(slot)
        try:
            value = decode_value(state)
        except RefoldError as unreadable:
            self._births.diverge(slot, f"loop {slot}: its recorded state: {unreadable.message}")
            return
        branch.now_ms = at_ms
        self._driving.resume(branch, value)
        self._drive(at_ms, last=last)

    def _drive(self, at_ms: int, *, last: bool) -> None:
        # What run code asks for behind the last recorded outcome is recorded now, not then.
        self._calls.drive_ms = max(self._now_ms, at_ms) if last else at_ms
        self._driving.drive()

    # ---- the end

    def _release(self, result: Any, error: BaseException | None) -> None:
        """Give back what was acquired, last first, then say how the run ended."""
        if not self._acquired.held():
            self._finish(result, error)
            return

        def released(_: Any, failed: BaseException | None) -> None:
            self._finish(result, error if failed is None else failed)

        self._begin(self._release_all(), released)

    async def _release_all(self) -> None:
        branch = self._driving.running("release")
        for held in self._acquired.held():
            branch.scope = Scope(held.slot)
            self._acquired.skip_stale(branch.scope, held)
            try:
                arguments = held.release.bind((decode_value(held.value),), {})
                self._births.step(branch, held.release, arguments)
                await WAIT
            except Exception:
                # How a release ended is in the record; the run's own result stands.
                continue

    def _finish(self, result: Any, error: BaseException | None) -> None:
        self.ended = True
        self._births.asks.append(Returned(result) if error is None else Raised(error))

    def _answer(self) -> list[Ask]:
        births = self._births
        if births.diverged is not None:
            self.ended = True
            births.asks = []
            return [births.diverged]
        asks, births.asks = births.asks, []
        return asks
