"""Errors about values: what cannot be stored or read back, and run ids that are refused."""

from typing import ClassVar

from refold_schemas.errors.base import RefoldError

PATH_LENGTH_MAX = 200


class ValueRefused(RefoldError, ValueError):
    """A value would not come back equal and of the same kind, so it was not stored.

    `path` points into the value (`result.lines[3].price`), `type_name` is the type found there,
    `reason` says why. None of them holds the value itself, for it may be a secret; only the text of
    a validator of yours is passed on as it is.
    """

    code: ClassVar[str] = "R101"
    exit_code: ClassVar[int] = 2

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        # the path into a cycle is as long as the depth limit: its two ends say enough
        path = path if len(path) <= PATH_LENGTH_MAX else f"{path[:120]}…{path[-60:]}"
        self.path, self.type_name, self.reason = path, type_name, reason
        super().__init__(
            f"{path} ({type_name}) cannot be stored faithfully: {reason}",
            kept="nothing of this value; everything recorded before it stays",
            next="pass what comes back equal: plain data, a pydantic model, a dataclass or an enum",
        )


class ValueUnreadable(RefoldError, ValueError):
    """A stored value cannot be read with the code that is running.

    `type` is the stored type (`module:qualname`, or `""` for plain data), `reason` says why.
    """

    code: ClassVar[str] = "R102"
    exit_code: ClassVar[int] = 3

    def __init__(self, type: str, reason: str) -> None:
        self.type, self.reason = type, reason
        super().__init__(
            f"a stored value of type {type or 'plain data'} cannot be read: {reason}",
            kept="the stored bytes, unchanged",
            next="run code that has this type, or read the value under a type that fits",
        )


class BadRunId(RefoldError, ValueError):
    """A run id is not 1 to 200 characters of UTF-8 without control characters."""

    code: ClassVar[str] = "R103"
    exit_code: ClassVar[int] = 2

    def __init__(self, run_id: object, reason: str) -> None:
        self.run_id, self.reason = run_id, reason
        shown = ascii(run_id)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(
            f"run id {shown} is refused: {reason}",
            kept="nothing was started",
            next="choose 1 to 200 characters, none of them a control character",
        )


class BadCommandText(RefoldError, ValueError):
    """A text of a command is longer than allowed, or is none; nothing was sent.

    `command` is the command's kind, `reason` names the field.
    """

    code: ClassVar[str] = "R104"
    exit_code: ClassVar[int] = 2

    def __init__(self, run_id: str, command: str, reason: str) -> None:
        self.run_id, self.command, self.reason = run_id, command, reason
        super().__init__(
            f"{command} for run {run_id} is refused: {reason}",
            kept="nothing was sent",
            next="send it with a text that fits; docs/commands.md has the limits",
        )
