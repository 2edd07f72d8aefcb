"""Slots as they are born: compared with the record, or asked of the owner if they are not in it."""

from collections.abc import Coroutine, Mapping
from datetime import timedelta
from types import FunctionType, MethodType
from typing import Final

from refold.app.definitions import StepDef
from refold.engine.acquisitions import Acquisitions
from refold.engine.asks import (
    Ask,
    ChunkAsked,
    Diverged,
    LogLine,
    Raised,
    SleepAsked,
    StepAsked,
    Unsettled,
)
from refold.engine.branches import Branch
from refold.engine.driving import Driving
from refold.engine.record import (
    Record,
    argument_difference,
    chunk_difference,
    encode_arguments,
    without_volatile,
)
from refold.engine.scopes import Scope, scope_of
from refold_projections.fold.state import Slot
from refold_schemas.commands.limits import SLOT_CHARS_MAX
from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.run import CallRefused, ValueTooLarge
from refold_schemas.values import Argument, Fingerprints, Value, encode_value, is_scalar

SLEEP: Final = "sleep"
_tuple: Final = tuple.__new__
"""Makes a NamedTuple without the Python function that its own call goes through."""


class Births:
    """What one run's code has asked for. `asks` are those the owner has not been given yet.

    `record` is None once run code was given everything in it. `diverged` is the first difference
    between code and record; it stops the driving.
    """

    __slots__ = (
        "_driving",
        "_fingerprints",
        "_steps",
        "_value_bytes_max",
        "acquired",
        "asks",
        "count",
        "diverged",
        "nonce",
        "record",
    )

    def __init__(
        self,
        driving: Driving,
        steps: Mapping[str, StepDef],
        nonce: bytes,
        acquired: Acquisitions,
        record: Record,
        value_bytes_max: int,
    ) -> None:
        """Nothing is born yet. No single argument or loop state may be over `value_bytes_max`."""
        self._driving, self._steps, self.nonce = driving, steps, nonce
        self.acquired = acquired
        self.record: Record | None = record
        self._value_bytes_max = value_bytes_max
        self._fingerprints = Fingerprints(nonce)
        self.asks: list[Ask] = []
        self.diverged: Diverged | None = None
        self.count = 0

    def definition(self, call: str, fn: object) -> StepDef:
        """The registered step of a function. Raises CallRefused."""
        definition = getattr(fn, "__refold__", None)
        if type(definition) is StepDef and self._steps.get(definition.name) is definition:
            return definition
        name = getattr(fn, "__name__", None) or type(fn).__name__
        if type(definition) is StepDef:
            raise CallRefused(
                call, f"{name} is a step of another App", "register it in the App of this run"
            )
        raise CallRefused(call, *_no_step(call, fn, name))

    # ---- births; after each of them the branch must wait

    def step(self, branch: Branch, definition: StepDef, arguments: dict[str, object]) -> str:
        """The slot of a step.

        Raises ValueRefused naming an argument that cannot be stored, and CallRefused for a slot
        that is longer than a command may name.
        """
        volatile = definition.volatile
        lasting = arguments
        if volatile:
            lasting = {name: item for name, item in arguments.items() if name not in volatile}
        slot = branch.scope.peek(definition.name)
        kept = None if self.record is None else self.record.slot(slot)
        if self.record is None or kept is None:
            _check_depth(f"step {definition.name!r}", slot)
            stored, scalars = self._encoded(definition, arguments)
            mark = self._fingerprints.of(definition.name, lasting, None if volatile else scalars)
            asked = (slot, definition, arguments, mark, stored)
            self.asks.append(_tuple(StepAsked, asked))
        else:
            mark = self._mark(definition, lasting, arguments)
            if mark != kept.fingerprint:
                self._stored(definition, arguments)  # was refused before it took a slot, if it was
                self._compare(self.record, kept, definition, lasting, is_chunk=False)
            is_open = self._is_open(self.record, kept)
            if is_open or definition.acquires:
                stored = self._stored(definition, arguments)
                branch.asked = StepAsked(slot, definition, arguments, mark, stored)
            if is_open:
                self.asks.append(Unsettled(slot, definition, False, branch.asked))
        branch.scope.take(definition.name)
        self._wait(branch, slot, definition)
        return slot

    def chunk(
        self,
        branch: Branch,
        scope: Scope,
        definition: StepDef,
        items: list[dict[str, object]],
        concurrency: int,
    ) -> None:
        """The slot of a chunk of a `map`. Raises ValueRefused, and CallRefused as a step does."""
        arguments: dict[str, object] = {"items": items}
        lasting: dict[str, object] = {"items": without_volatile(definition, items)}
        mark = self._mark(definition, lasting, arguments)
        slot = scope.slot(definition.name)  # of its own scope, so that nothing else counts in it
        kept = None if self.record is None else self.record.slot(slot)
        if self.record is None or kept is None:
            _check_depth(f"ctx.map of step {definition.name!r}", slot)
            stored = self._stored(definition, arguments)
            self.asks.append(ChunkAsked(slot, definition, items, concurrency, mark, stored))
        else:
            if mark != kept.fingerprint:
                self._stored(definition, arguments)
                self._compare(self.record, kept, definition, lasting, is_chunk=True)
            if self._is_open(self.record, kept):
                stored = self._stored(definition, arguments)
                again = ChunkAsked(slot, definition, items, concurrency, mark, stored)
                self.asks.append(Unsettled(slot, definition, False, again))
        self._wait(branch, slot, definition)

    def sleep(self, branch: Branch, duration: timedelta) -> None:
        """The slot of a timer. Recorded is when it is due, so another duration changes nothing.

        Raises CallRefused as a step does.
        """
        slot = branch.scope.peek(SLEEP)
        kept = None if self.record is None else self.record.slot(slot)
        if self.record is not None and kept is not None:
            if self._is_open(self.record, kept):
                self.asks.append(Unsettled(slot, None, False))
        else:
            _check_depth("ctx.sleep", slot)
            whole_ms, rest = divmod(duration, timedelta(milliseconds=1))
            self.asks.append(SleepAsked(slot, whole_ms + bool(rest)))
        branch.scope.take(SLEEP)
        self._wait(branch, slot, None)

    def _wait(self, branch: Branch, slot: str, definition: StepDef | None) -> None:
        self.count += 1
        branch.definition = definition
        self._driving.waiting[slot] = branch

    def _mark(
        self, definition: StepDef, lasting: dict[str, object], arguments: dict[str, object]
    ) -> bytes:
        try:
            return self._fingerprints.of(definition.name, lasting)
        except RefoldError:
            encode_arguments(arguments)  # refuses the same, with the argument's own name
            raise

    def _stored(self, definition: StepDef, arguments: Mapping[str, object]) -> tuple[Argument, ...]:
        return self._encoded(definition, arguments)[0]

    def _encoded(
        self, definition: StepDef, arguments: Mapping[str, object]
    ) -> tuple[tuple[Argument, ...], list[bytes] | None]:
        """The arguments as they are recorded; their bodies too, if none of them is a container."""
        # As `encode_arguments` does it, written out: this is done for every step.
        stored: list[Argument] = []
        bodies: list[bytes] = []
        size_max, too_large = self._value_bytes_max, False
        for name, given in arguments.items():
            value = encode_value(given, path=name)
            stored.append(Argument(name, value))
            body = value.body
            if body is None:
                continue
            if is_scalar(body, value.type):
                bodies.append(body)
            if len(body) > size_max:
                too_large = True  # said once it is known that each can be stored
        if too_large:
            for argument in stored:
                what = f"step {definition.name}: argument {argument.name}"
                self.check_size(what, argument.value)
        return tuple(stored), bodies if len(bodies) == len(stored) else None

    def check_size(self, what: str, value: Value) -> None:
        """Raise ValueTooLarge for a value over the limit."""
        body = value.body
        if body is not None and len(body) > self._value_bytes_max:
            raise ValueTooLarge(self._driving.run_id, what, len(body), self._value_bytes_max)

    # ---- the record

    def _compare(
        self,
        record: Record,
        kept: Slot,
        definition: StepDef,
        lasting: dict[str, object],
        *,
        is_chunk: bool,
    ) -> None:
        """Find out whether arguments with another fingerprint have another value too."""
        differ = chunk_difference if is_chunk else argument_difference
        try:
            found = differ(kept, definition, self._as_recorded(kept, lasting))
        except RefoldError as error:
            found = f"a recorded argument cannot be compared: {error.message}"
        if found is not None:
            place = self.count + 1 + record.passed
            self.diverge(kept.name, f"{_step_text(place, definition.name, kept.name)}: {found}")

    def _as_recorded(self, kept: Slot, lasting: dict[str, object]) -> dict[str, object]:
        recorded = {argument.name: argument.value for argument in kept.arguments}
        return self.acquired.with_recorded_handles(lasting, recorded)

    def _is_open(self, record: Record, kept: Slot) -> bool:
        """Run code has come to a recorded slot: True, once, if the owner has to settle it."""
        # What was logged on the way here was logged when the slot was recorded.
        self.drop_log()
        return record.open.pop(kept.name, None) is not None

    def drop_log(self) -> None:
        """Forget log lines: they were written before."""
        if self.asks:
            self.asks = [ask for ask in self.asks if type(ask) is not LogLine]

    def diverge(self, slot: str, detail: str) -> None:
        """Code and record differ; the first difference is the one that is told."""
        if self.diverged is None:
            self.diverged = Diverged(slot, detail)
            self._driving.stopped = True

    def diverge_passed(self, record: Record, name: str) -> None:
        """A recorded slot whose turn it is, and nobody waits for it."""
        slot = record.slot(name)
        if slot is None:
            self.diverge(name, f"loop {name}: recorded, but the code does not come to it")
            return
        where = f"step {record.place(name)} {slot.step}"
        if slot.step != SLEEP and slot.step not in self._steps:
            where = _step_text(record.place(name), slot.step, name)
            self.diverge(name, f"{where}: the app has no step of this name any more")
            return
        scope = scope_of(name)
        other = next((s for s in self._driving.waiting if scope_of(s) == scope), None)
        if other is not None:
            detail = f"recorded as {name}, but the code asks for {other} instead"
        elif self._driving.branches:
            detail = f"recorded as {name}, but the code does not ask for it"
        else:
            detail = f"recorded as {name}, but the code ends before it"
            raised = next((ask.error for ask in self.asks if type(ask) is Raised), None)
            if raised is not None:
                text = str(raised).encode("utf-8", "backslashreplace").decode()[:200]
                detail += f": it raises {type(raised).__name__}: {text}"
        self.diverge(name, f"{where}: {detail}")


def _step_text(place: int, step: str, slot: str) -> str:
    """`step 5 charge`; the slot too, where it says more than the step's name does.

    >>> _step_text(5, "charge", "charge#1"), _step_text(4, "check", "gather#1[0]/check#1")
    ('step 5 charge', 'step 4 check (gather#1[0]/check#1)')
    """
    return f"step {place} {step}" + ("" if slot == f"{step}#1" else f" ({slot})")


def _check_depth(call: str, slot: str) -> None:
    """Raise CallRefused: a person must be able to name what may come to be in doubt, or waits."""
    if len(slot) <= SLOT_CHARS_MAX:
        return
    raise CallRefused(
        call,
        f"its slot, with the names of all branches around it, has {len(slot):,} characters, "
        f"{SLOT_CHARS_MAX:,} are allowed",
        "give the branches around it shorter names, or nest fewer of them",
    )


def _no_step(call: str, fn: object, name: str) -> tuple[str, str]:
    """What was given instead of a step's function, and what to write."""
    if isinstance(fn, str):
        shown = fn if fn.isidentifier() else "step"
        return f"{fn!r} is a text", f"pass the function, not its name: {call}({shown}, …)"
    if isinstance(fn, Coroutine):
        fn.close()
        return (
            f"{name}(…) was called already",
            f"pass the function and its arguments: {call}({name}, …)",
        )
    if name == "<lambda>":
        return (
            "a lambda is not a registered step",
            "give it a name: a function of its own with @app.step(…) above it",
        )
    if not isinstance(fn, (FunctionType, MethodType)):
        what = name if callable(fn) else f"an object of type {type(fn).__name__}"
        return (
            f"{what} is not a registered step",
            f"write a function that does it, with @app.step(…) above, and pass that to {call}",
        )
    return f"{name} is not a registered step", f"write @app.step(…) above {name}"
