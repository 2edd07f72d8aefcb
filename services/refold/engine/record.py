"""The record of a run as replay reads it: outcomes in log order, and how code differs from it."""

from collections.abc import Mapping
from typing import NamedTuple

from refold.app.definitions import StepDef
from refold.engine.acquisitions import Acquisitions
from refold.engine.scopes import passed_by
from refold_projections.fold.state import Cursor, Outcome, RunState, Slot
from refold_schemas.errors.base import RefoldError
from refold_schemas.values import Argument, Value, decode_value, encode_value, values_differ


class Turn(NamedTuple):
    """One outcome of the record, at its place in the log's order. A cursor is one of its loop."""

    order: int
    slot: str
    outcome: Outcome | None
    cursor: Cursor | None


class Record:
    """What is recorded of a run and not yet read by its code.

    `turns` are the outcomes in log order; `open` the slots without one. What lies in a loop's batch
    that a cursor has passed is in neither: run code starts behind it.
    """

    __slots__ = ("_state", "next", "open", "passed", "turns")

    def __init__(
        self,
        state: RunState,
        steps: Mapping[str, StepDef],
        acquired: Acquisitions,
        *,
        cleanup_only: bool,
    ) -> None:
        """Read the slots once. With `cleanup_only` the releases alone are left to be read."""
        self._state = state
        self.next = 0
        self.open: dict[str, Slot] = {}
        self.passed = 0
        turns: list[Turn] = []
        cursors = {name: cursor.cursor for name, cursor in state.cursors.items()}
        for name, slot in state.slots.items():
            is_passed = bool(cursors) and passed_by(name, cursors)
            if is_passed or (cleanup_only and not acquired.is_release(name)):
                self.passed += 1
                # Its handle is held none the less, although no code will be given it again.
                definition = steps.get(slot.step)
                if definition is not None and slot.outcome is not None:
                    acquired.note(name, definition, slot.outcome)
            elif acquired.is_stale(name):
                self.passed += 1
            elif slot.outcome is None:
                self.open[name] = slot
            else:
                turns.append(Turn(slot.outcome.order, name, slot.outcome, None))
        for name, cursor in state.cursors.items():
            if not cleanup_only and not passed_by(f"{name}/", cursors):
                turns.append(Turn(cursor.order, name, None, cursor))
        turns.sort(key=lambda turn: turn.order)
        self.turns = turns

    @property
    def read(self) -> bool:
        """True once run code was given every outcome."""
        return self.next >= len(self.turns)

    def acquired_anew(self, turn: Turn) -> bool:
        """True if the handle of the next turn has replaced one that run code had been given.

        It keeps the place in the order, so that it may be younger than what follows it.
        """
        slot, outcome = self.slot(turn.slot), turn.outcome
        if slot is None or outcome is None:
            return False
        if slot.attempts:  # under an intent it got another key; times may run back
            return slot.generation > 0
        return any(
            later.outcome is not None and later.outcome.at_ms < outcome.at_ms
            for later in self.turns[self.next + 1 :]
        )

    def slot(self, name: str) -> Slot | None:
        """The recorded slot of this name."""
        return self._state.slots.get(name)

    def cursor(self, loop: str) -> Cursor | None:
        """The recorded cursor of a loop."""
        return self._state.cursors.get(loop)

    def place(self, name: str) -> int:
        """The 1-based place of a recorded slot in birth order."""
        born = sorted(self._state.slots.values(), key=lambda slot: slot.born)
        return next((i for i, slot in enumerate(born, 1) if slot.name == name), 0)

    def unread(self) -> Slot | None:
        """The first slot without outcome that code has passed by, None if there is none."""
        return min(self.open.values(), key=lambda slot: slot.born, default=None)


def argument_difference(
    recorded: Slot, definition: StepDef, arguments: Mapping[str, object]
) -> str | None:
    """How the code's arguments differ in value from the recorded ones, None if they do not.

    Asked only if the fingerprints differ, for then a class may merely have gained a field with a
    default. `argument pence 4160 → 4610`; several are joined by semicolons.
    """
    found: list[str] = []
    kept = {argument.name: argument.value for argument in recorded.arguments}
    for name, value in kept.items():
        if name in definition.volatile:
            continue
        if name not in arguments:
            found.append(f"argument {name} is recorded but not sent any more")
            continue
        text = values_differ(value, arguments[name], definition.parameter_types.get(name))
        if text is not None:
            note = " (kept as a digest only)" if value.ref is not None else ""
            found.append(f"argument {name}{_joint(text)}{text}{note}")
    for name, fresh in arguments.items():
        if name in kept or name in definition.volatile:
            continue
        if name not in definition.defaults or not _same(fresh, definition.defaults[name]):
            found.append(f"argument {name} is sent but not recorded")
    return "; ".join(found) or None


def chunk_difference(
    recorded: Slot, definition: StepDef, arguments: Mapping[str, object]
) -> str | None:
    """As `argument_difference`, for a chunk: its one argument `items` has those of all calls.

    `arguments` come without the volatile ones.
    """
    kept = next((a.value for a in recorded.arguments if a.name == "items"), None)
    if kept is None:
        return "argument items is sent but not recorded"
    if definition.volatile:
        kept = _chunk_without_volatile(definition, kept)
    text = values_differ(kept, arguments["items"], None)
    if text is None:
        return None
    note = " (kept as a digest only)" if kept.ref is not None else ""
    return f"argument items{_joint(text)}{text}{note}"


def without_volatile(
    definition: StepDef, items: list[dict[str, object]]
) -> list[dict[str, object]]:
    """A chunk's items as they count for its fingerprint."""
    if not definition.volatile:
        return items
    return [{k: v for k, v in item.items() if k not in definition.volatile} for item in items]


def encode_arguments(arguments: Mapping[str, object]) -> tuple[Argument, ...]:
    """The arguments as they are recorded. Raises ValueRefused naming the argument."""
    return tuple(
        [Argument(name, encode_value(value, path=name)) for name, value in arguments.items()]
    )


def _chunk_without_volatile(definition: StepDef, kept: Value) -> Value:
    if kept.body is None:
        return kept
    items = decode_value(kept)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return kept
    return encode_value(without_volatile(definition, items))


def _same(fresh: object, default: object) -> bool:
    try:
        return values_differ(encode_value(default), fresh, None) is None
    except RefoldError:
        return False


def _joint(text: str) -> str:
    # A path inside the value (`.lines[3].price`) belongs to the name before it.
    return "" if text[:1] in (".", "[") else " "
