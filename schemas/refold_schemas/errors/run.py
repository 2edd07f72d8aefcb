"""R4nn: what an agent author meets, when steps and runs are declared and inside run code."""

from typing import ClassVar

from refold_schemas.errors.base import RefoldError

RUN_RESULT = "its result"
"""What a ValueTooLarge names that is about what a run function returned."""


class RegistrationRefused(RefoldError):
    """A step, model, run or app was declared so that refold cannot keep its promises."""

    code = "R401"
    exit_code = 2

    def __init__(self, what: str, problem: str, repair: str) -> None:
        """`what` names the declaration (`step 'charge'`), `repair` is what to write instead."""
        self.what, self.problem, self.repair = what, problem, repair
        super().__init__(f"{what}: {problem}", kept="nothing was registered", next=repair)


class CallRefused(RefoldError):
    """A step or a method of the run context was called in a way that cannot work."""

    code = "R402"

    def __init__(self, what: str, problem: str, repair: str) -> None:
        """`what` names the call (`step 'charge'`, `ctx.gather`)."""
        self.what, self.problem, self.repair = what, problem, repair
        super().__init__(f"{what}: {problem}", kept="the step was not started", next=repair)


class StepError(RefoldError):
    """A step ended in failure with an exception that is not among its declared types.

    `type_name` is the exception's class name, `error_message` its text, `slot` the step's place.
    """

    code = "R403"

    def __init__(self, type_name: str, message: str, *, slot: str = "") -> None:
        """Name the class of the original exception and its text."""
        self.type_name, self.error_message, self.slot = type_name, message, slot
        where = f"step {slot}" if slot else "the step"
        super().__init__(
            f"{where} failed: {type_name}: {message}"
            if message
            else f"{where} failed: {type_name}",
            kept="the failure is in the record and is read from there on replay",
            next="catch StepError, declare the type in not_done=(...) to get it back as itself, "
            "or give the step a retry=",
        )


class ResultUnrecordable(RefoldError):
    """A step acted, but its result could not be stored: it never runs again, the value is gone.

    `path` points into the result, `type_name` is what stood there, `reason` why it was refused.
    """

    code = "R404"

    def __init__(
        self, slot: str, *, type_name: str, path: str, reason: str, size: int = 0, repr: str = ""
    ) -> None:
        """`repr` is the bounded text of the value, `size` its bytes (0: not measured)."""
        self.slot, self.type_name, self.path = slot, type_name, path
        self.reason, self.size, self.repr = reason, size, repr
        super().__init__(
            f"step {slot} acted, but its result cannot be stored: {path} ({type_name}): {reason}",
            kept="the step counts as done and its value's text is in the record",
            next=(
                "let the step return a reference (a key, a URL) instead of the content; "
                if size
                else "let the step return plain data, a dataclass or a pydantic model; "
            )
            + "catch ResultUnrecordable if the run can go on without the value",
        )


class StepAbsent(RefoldError):
    """The slot ended without its effect: a lookup or a person said that it is not there."""

    code = "R405"

    def __init__(self, slot: str) -> None:
        """`slot` is the step's place in its run."""
        self.slot = slot
        super().__init__(
            f"step {slot} ended without its effect",
            kept="the evidence is in the record",
            next="catch StepAbsent where the run can go on without the effect",
        )


class Revalidation(RefoldError):
    """A value read again differs from the one that the run had recorded."""

    code = "R406"

    def __init__(self, recorded: object, fresh: object, *, slot: str = "") -> None:
        """`recorded` is what the run went by, `fresh` what the reading step answers now."""
        self.recorded, self.fresh, self.slot = recorded, fresh, slot
        where = f" by {slot}" if slot else ""
        super().__init__(
            f"what was read again{where} differs: {_cut(recorded)} → {_cut(fresh)}",
            kept="both values are in the record",
            next="catch Revalidation and decide with its `fresh` value",
        )


class ForeignAwait(RefoldError):
    """Run code awaited something that is not refold's, so replay could not repeat it."""

    code = "R407"

    def __init__(self, awaited: str, where: str, repair: str) -> None:
        """`awaited` names the object, `where` the line in run code."""
        self.awaited, self.where, self.repair = awaited, where, repair
        super().__init__(
            f"run code awaited {awaited} {where}",
            kept="every recorded step; nothing was waited for",
            next=repair,
        )


class StepOutsideRun(RefoldError):
    """The run context was used where its run is not running: another task or thread, or later."""

    code = "R408"

    def __init__(self, call: str, run_id: str) -> None:
        """`call` is the method of the run context (`ctx.step`)."""
        self.call, self.run_id = call, run_id
        super().__init__(
            f"{call} of run {run_id} was used outside its run code "
            "(from another task, thread or run, or after the run function had ended)",
            kept="the run is not touched by it",
            next="await it directly in the run function; for steps at the same time use ctx.gather "
            "or ctx.map, not asyncio.gather, create_task or threads",
        )


class EffectBarred(RefoldError):
    """The attempt may not go on: its deadline has passed or its worker lost the partition."""

    code = "R409"

    def __init__(self, slot: str, reason: str) -> None:
        """`reason` says whether the deadline passed or the call was barred."""
        self.slot, self.reason = slot, reason
        super().__init__(
            f"step {slot}: {reason}",
            kept="the attempt stays in doubt and is settled by the step's policy",
            next="let the exception leave the step function; a longer timeout= gives it more time",
        )


class LoopMisused(RefoldError):
    """A `ctx.each` body went on without `commit`, committed twice, or did more after `commit`."""

    code = "R410"

    def __init__(self, slot: str, problem: str, repair: str) -> None:
        """`slot` names the loop and its batch (`each#1[25..49]`)."""
        self.slot, self.problem, self.repair = slot, problem, repair
        super().__init__(
            f"{slot}: {problem}",
            kept="the batches committed before and every recorded step of this one",
            next=repair,
        )


class InputRefused(RefoldError):
    """A run's input does not fit the run function's parameter."""

    code = "R411"
    exit_code = 2

    def __init__(self, run: str, problem: str) -> None:
        """`problem` is what the validation said."""
        self.run, self.problem = run, problem
        super().__init__(
            f"run {run!r}: its input does not validate: {problem}",
            kept="the input as it was sent",
            next="send an input that fits the run function's parameter, "
            "or let its type read the old shape",
        )


class ValueTooLarge(RefoldError, ValueError):
    """An argument, the state of a loop, or a run's result is over the limit for a stored value."""

    code = "R413"

    def __init__(self, run_id: str, what: str, size: int, size_max: int) -> None:
        """`what` names step and argument, the sizes are bytes as stored."""
        self.run_id, self.what, self.size, self.size_max = run_id, what, size, size_max
        super().__init__(
            f"run {run_id}: {what} has {size:,} bytes, {size_max:,} are allowed",
            kept="every recorded step; "
            + ("only the result is lost" if what == RUN_RESULT else "this call was not begun"),
            next="pass a reference (a key, a URL) instead of the content, or raise the limit",
        )


class RunTornDown(BaseException):
    """The run is taken down in this process (it goes on elsewhere): what waits, waits no more.

    Not a failure and not a cancellation of the run, hence no `Exception`: let it pass.
    """

    code: ClassVar[str] = "R412"

    def __init__(self, call: str, run_id: str) -> None:
        """`call` is the method of the run context that was refused, or what was waited for."""
        self.call, self.run_id = call, run_id
        super().__init__(
            f"{call} of run {run_id} came to nothing: the run is taken down in this process. "
            "Kept: everything recorded; the run goes on from there. "
            "Next: nothing to do; do not catch BaseException around steps. (R412)"
        )


def _cut(value: object, chars_max: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
