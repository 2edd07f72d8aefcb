"""What a run has acquired (a lock, a reservation): handles that run out, and their release."""

from collections.abc import Mapping
from typing import NamedTuple

from refold.app.definitions import StepDef
from refold.engine.scopes import Scope, scope_of
from refold_projections.fold.state import Outcome, RunState
from refold_schemas.values import Value, decode_value


class Held(NamedTuple):
    """One acquisition to be released. `order` is its outcome's place in the log."""

    order: int
    slot: str
    release: StepDef
    value: Value


class Acquisitions:
    """The acquisitions of one run, those in batches that a loop has passed included.

    A run that had ended, released what it held and was then resumed by a person finds its handles
    released: they are acquired anew, and the releases recorded before that are `stale`.
    """

    __slots__ = ("_handles", "_held", "_released", "_resumed", "_stale")

    def __init__(self, state: RunState, steps: Mapping[str, StepDef]) -> None:
        """Read the recorded releases; most runs acquire nothing."""
        self._held: dict[str, Held] = {}
        self._handles: list[object] = []
        self._released: dict[str, str] = {}  # release slot → acquisition
        self._stale: dict[str, int] = {}  # acquisition → releases before it was acquired anew
        self._resumed = False
        if any(definition.release is not None for definition in steps.values()):
            for name in state.slots:
                self._note_release(state, steps, name)

    def _note_release(self, state: RunState, steps: Mapping[str, StepDef], name: str) -> None:
        acquired = state.slots.get(scope_of(name))
        definition = None if acquired is None else steps.get(acquired.step)
        if acquired is None or definition is None or definition.release is None:
            return
        released = state.slots[name].outcome
        handle = acquired.outcome
        # Acquired anew under an intent it has another key. A release that only seems older, since a
        # clock was set back, is of the one handle that there was.
        replaced = acquired.generation > 0 or not acquired.attempts
        if (
            replaced
            and released is not None
            and handle is not None
            and released.at_ms < handle.at_ms
        ):
            self._stale[acquired.name] = self._stale.get(acquired.name, 0) + 1
        else:
            self._released[name] = acquired.name

    # ---- what replay asks

    def is_release(self, slot: str) -> bool:
        """True for the recorded release of a handle that was not acquired anew since."""
        return slot in self._released and not self._resumed

    def is_stale(self, slot: str) -> bool:
        """True for the recorded release of a handle that was acquired anew since."""
        return scope_of(slot) in self._stale and (self._resumed or slot not in self._released)

    def resume(self) -> None:
        """The run's code goes on although releases are recorded: a person has resumed it."""
        self._resumed = True
        self._held.clear()
        for acquired in self._released.values():
            self._stale[acquired] = self._stale.get(acquired, 0) + 1

    def has_run_out(self, slot: str, definition: StepDef, outcome: Outcome, now_ms: int) -> bool:
        """True if a recorded handle is of no use any more and run code still wants it."""
        if outcome.kind != "ok":
            return False
        if self._released and not self._resumed:
            return False  # run code is over, only its releases are left
        if slot in self._released.values():
            return True
        valid_for_ms = definition.valid_for_ms
        return valid_for_ms is not None and outcome.at_ms + valid_for_ms <= now_ms

    def renewed(self, outcome: Outcome) -> None:
        """A handle that was acquired anew: recorded arguments may hold the one before it.

        Raises ValueUnreadable if today's types cannot read it.
        """
        if outcome.kind == "ok" and outcome.value is not None:
            self._handles.append(decode_value(outcome.value))

    def with_recorded_handles(
        self, arguments: dict[str, object], kept: Mapping[str, Value]
    ) -> dict[str, object]:
        """The arguments as they were recorded where they hold a renewed handle now.

        The same object if no handle was renewed. Inside models and dataclasses it is not looked.
        """
        if not self._handles:
            return arguments
        return {
            name: self._recorded(value, decode_value(kept[name]))
            if name in kept and kept[name].body is not None
            else value
            for name, value in arguments.items()
        }

    def _recorded(self, fresh: object, kept: object) -> object:
        if any(type(fresh) is type(handle) and fresh == handle for handle in self._handles):
            return kept
        if type(fresh) is not type(kept):
            return fresh
        if isinstance(fresh, dict) and isinstance(kept, dict):
            return {
                key: self._recorded(item, kept[key]) if key in kept else item
                for key, item in fresh.items()
            }
        if isinstance(fresh, (list, tuple)) and isinstance(kept, (list, tuple)):
            if len(fresh) != len(kept) or type(fresh) not in (list, tuple):
                return fresh
            return type(fresh)(
                [self._recorded(item, old) for item, old in zip(fresh, kept, strict=True)]
            )
        return fresh

    # ---- what the session tells, and asks at the end

    def note(self, slot: str, definition: StepDef, outcome: Outcome) -> None:
        """Run code was given a handle that is to be released."""
        if outcome.kind == "ok" and outcome.value is not None and definition.release is not None:
            self._held[slot] = Held(outcome.order, slot, definition.release, outcome.value)

    def held(self) -> list[Held]:
        """What is to be released, the last acquired first."""
        return sorted(self._held.values(), key=lambda held: held.order, reverse=True)

    def skip_stale(self, scope: Scope, held: Held) -> None:
        """Count the earlier releases of a handle, so that the next one gets a slot of its own."""
        for _ in range(self._stale.get(held.slot, 0)):
            scope.slot(held.release.name)
