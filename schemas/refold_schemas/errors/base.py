"""The base of every public error: what happened, what was kept, what to do next, and a code."""

from typing import ClassVar


class RefoldError(Exception):
    """A public error. `code` names its page `docs/errors/CODE.md`; `kept` and `next` may be empty.

    >>> str(RefoldError("the log is locked", kept="every run in it", next="stop the other process"))
    'the log is locked. Kept: every run in it. Next: stop the other process. (R000)'
    """

    code: ClassVar[str] = "R000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, kept: str = "", next: str = "") -> None:
        self.message, self.kept, self.next = message, kept, next
        parts = [message.rstrip(".")]
        if kept:
            parts.append(f"Kept: {kept.rstrip('.')}")
        if next:
            parts.append(f"Next: {next.rstrip('.')}")
        super().__init__(". ".join(parts) + f". ({type(self).code})")
