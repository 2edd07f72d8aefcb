"""Plays owner to a session: answers its asks in any order and records what it answered."""

from collections.abc import Callable
from typing import Any

import immutables

from refold.app import App, Effect
from refold.app.definitions import StepDef
from refold.engine.session import (
    Ask,
    ChunkAsked,
    CursorAsked,
    Diverged,
    LogLine,
    Raised,
    Returned,
    Session,
    SleepAsked,
    StepAsked,
    Unsettled,
)
from refold_projections.fold.state import Cursor, Outcome, RunState, Slot
from refold_schemas.values import ErrorInfo, Value, decode_value, encode_error, encode_value

NONCE = bytes(range(32))
STARTED_MS = 1_764_460_800_000

Answer = Callable[[StepDef, dict[str, object]], object]


class Fails(Exception):
    """What a step of these tests raises if it is to fail."""


def new_state(run: str = "test", input: object = None, run_id: str = "run-1") -> RunState:
    """A run that has only been started."""
    return RunState(
        run_id=run_id,
        run=run,
        version="1",
        input=encode_value(input),
        nonce=NONCE,
        started_ms=STARTED_MS,
    )


def call(definition: StepDef, arguments: dict[str, object]) -> object:
    """Call a sync step function."""
    return definition.invoke(Effect.for_test(), arguments)


class Play:
    """One process' life of a run. `history` has the record after every event, the oldest first.

    `open` are the asked slots that have no outcome yet, in the order in which they were asked.
    """

    def __init__(
        self,
        app: App,
        state: RunState,
        *,
        answer: Answer = call,
        now_ms: int = STARTED_MS,
        cleanup_only: bool = False,
    ) -> None:
        self.app, self.state, self.answer = app, state, answer
        self.now_ms = now_ms
        self.history = [state]
        self.log: list[LogLine] = []
        self.asked: list[Ask] = []
        self.open: dict[str, Ask] = {}
        self.end: Returned | Raised | Diverged | None = None
        self.session = Session(
            app,
            app.runs[state.run],
            state,
            namespace="test",
            now_ms=now_ms,
            cleanup_only=cleanup_only,
        )

    def start(self) -> "Play":
        self.take(self.session.start())
        return self

    def take(self, asks: list[Ask]) -> None:
        for ask in asks:
            self.asked.append(ask)
            match ask:
                case StepAsked() | ChunkAsked() | SleepAsked() | Unsettled():
                    self.open[ask.slot] = ask
                case CursorAsked():
                    self._record_cursor(ask)
                case LogLine():
                    self.log.append(ask)
                case Returned() | Raised() | Diverged():
                    self.end = ask

    def record(self, state: RunState) -> None:
        self.state = state
        self.history.append(state)

    def _record_cursor(self, ask: CursorAsked) -> None:
        kept = self.state.cursors.get(ask.slot)
        born = self.state.born_next if kept is None else kept.born
        cursor = Cursor(
            ask.slot, born, ask.cursor, ask.total, self.state.order_next, ask.at_ms, ask.state
        )
        self.record(
            self.state._replace(
                cursors=self.state.cursors.set(ask.slot, cursor),
                born_next=self.state.born_next + (kept is None),
                order_next=self.state.order_next + 1,
            )
        )

    def intend(self, slot: str) -> None:
        """Record an asked slot without an outcome."""
        ask = self.open[slot]
        if slot in self.state.slots:
            return
        self.record(
            self.state._replace(
                slots=self.state.slots.set(slot, self._slot(ask)),
                born_next=self.state.born_next + 1,
            )
        )

    def _slot(self, ask: Ask) -> Slot:
        match ask:
            case StepAsked() | ChunkAsked():
                return Slot(
                    ask.slot,
                    ask.definition.name,
                    self.state.born_next,
                    fingerprint=ask.fingerprint,
                    arguments=ask.stored,
                )
            case SleepAsked():
                return Slot(ask.slot, "sleep", self.state.born_next)
            case Unsettled():
                return self.state.slots[ask.slot]
        raise AssertionError(ask)

    def outcome_of(self, ask: Ask) -> tuple[str, Value | None, ErrorInfo | None]:
        match ask:
            case ChunkAsked(definition=definition, items=items):
                arguments: dict[str, Any] = {"items": items}
            case StepAsked(definition=definition, arguments=arguments):
                pass
            case Unsettled(definition=StepDef() as definition):
                kept = self.state.slots[ask.slot].arguments
                arguments = {a.name: decode_value(a.value) for a in kept}
            case _:
                return "ok", None, None
        try:
            if list(arguments) == ["items"]:
                result: object = [self.answer(definition, item) for item in arguments["items"]]
            else:
                result = self.answer(definition, arguments)
            return "ok", encode_value(result), None
        except Exception as error:
            return "failed", None, encode_error(error)

    def finish(self, slot: str, **outcome: Any) -> None:
        """Give an asked slot its outcome: record it, then deliver it."""
        ask = self.open.pop(slot)
        if "kind" not in outcome:
            kind, value, error = self.outcome_of(ask)
            outcome = {"kind": kind, "value": value, "error": error, **outcome}
        kept = self.state.slots.get(slot)
        recorded = self._slot(ask)
        replaced = kept.outcome if kept is not None else None
        order = self.state.order_next if replaced is None else replaced.order
        self.now_ms = outcome.pop("at_ms", self.now_ms + 1000)
        told = Outcome(order=order, at_ms=self.now_ms, **outcome)
        self.record(
            self.state._replace(
                slots=self.state.slots.set(slot, recorded._replace(outcome=told)),
                born_next=self.state.born_next + (kept is None),
                order_next=self.state.order_next + (replaced is None),
            )
        )
        self.take(self.session.deliver(slot, told))

    def run(self, choose: Callable[[list[str]], str] = lambda slots: slots[0]) -> "Play":
        """Answer everything, one at a time, until the run ends."""
        if not self.asked:
            self.start()
        while self.end is None:
            self.finish(choose(list(self.open)))
        return self

    @property
    def result(self) -> object:
        assert isinstance(self.end, Returned), self.end
        return self.end.result

    @property
    def error(self) -> BaseException:
        assert isinstance(self.end, Raised), self.end
        return self.end.error

    @property
    def detail(self) -> str:
        assert isinstance(self.end, Diverged), self.end
        return self.end.detail


def replay(app: App, state: RunState, *, answer: Answer = call, now_ms: int = STARTED_MS) -> Play:
    """A new process that takes the run over from its record."""
    return Play(app, state, answer=answer, now_ms=now_ms).start()


def emptied(state: RunState) -> RunState:
    """The same run, nothing recorded."""
    return state._replace(
        slots=immutables.Map(), cursors=immutables.Map(), born_next=0, order_next=0
    )
