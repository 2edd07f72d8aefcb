"""What run code is given for an outcome: the stored value, or the exception that it stands for."""

import sys

from refold.app.definitions import StepDef
from refold_projections.fold.state import Outcome
from refold_schemas.errors.run import ResultUnrecordable, StepAbsent, StepError
from refold_schemas.values import ErrorInfo, NotDone, Value, decode_error, decode_value


class Fresh:
    """What a step has just returned, as `stored` and as reading that again would make it."""

    __slots__ = ("copy", "stored")

    def __init__(self, stored: Value, copy: object) -> None:
        self.stored, self.copy = stored, copy


def result_of(
    slot: str, definition: StepDef | None, outcome: Outcome, fresh: Fresh | None = None
) -> tuple[object, BaseException | None]:
    """The value to resume run code with, or the exception to raise in it.

    Live and on replay alike it is made from what is stored, so that both see the same; `fresh` is
    that, if it is of this very outcome. Raises ValueUnreadable if today's types cannot read a
    recorded value.
    """
    kind = outcome.kind
    if kind == "ok":
        if fresh is not None and outcome.value is fresh.stored:
            return fresh.copy, None
        return (None if outcome.value is None else decode_value(outcome.value)), None
    if kind == "failed":
        return None, error_of(slot, definition, outcome.error)
    if kind == "unrecordable" and outcome.unrecordable is not None:
        lost = outcome.unrecordable
        return None, ResultUnrecordable(
            slot,
            type_name=lost.type,
            path=lost.path,
            reason=lost.reason,
            size=lost.size,
            repr=lost.repr,
        )
    return None, StepAbsent(slot)


def error_of(slot: str, definition: StepDef | None, info: ErrorInfo | None) -> BaseException:
    """The declared exception itself, everything else as StepError."""
    if info is None:
        return StepError("Exception", "", slot=slot)
    declared = (NotDone,) if definition is None else (*definition.declared.values(), NotDone)
    again = decode_error(info, declared)
    if again is not None:
        return again
    kind = _declared_type(info.path, declared)
    if kind is None:
        return StepError(info.type, info.message, slot=slot)
    again = decode_error(info, (kind,))
    if again is not None:
        return again
    # Its constructor does not take what it keeps. Run code tells it by its type, so that is kept.
    bare = kind.__new__(kind)
    bare.args = (info.message,)
    return bare


def _declared_type(
    path: str, declared: tuple[type[BaseException], ...]
) -> type[BaseException] | None:
    """The class at `module:qualname` if it is a declared type or derived from one."""
    module, _, qualname = path.partition(":")
    for kind in declared:
        if (kind.__module__, kind.__qualname__) == (module, qualname):
            return kind
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, declared):
        return found
    return None
