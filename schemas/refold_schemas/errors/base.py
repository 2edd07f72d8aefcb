"""The base of every public error: what happened, what was kept, what to do next, and a code."""

import re
from typing import ClassVar, NamedTuple


class RefoldError(Exception):
    """A public error. `code` names its page `docs/errors/CODE.md`; `kept` and `next` may be empty.

    >>> str(RefoldError("the log is locked", kept="every run in it", next="stop the other process"))
    'the log is locked. Kept: every run in it. Next: stop the other process. (R000)'
    """

    code: ClassVar[str] = "R000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, kept: str = "", next: str = "") -> None:
        self.message, self.kept, self.next = message, kept, next
        parts = [_sentence(message)]
        if kept:
            parts.append(_sentence(f"Kept: {kept}"))
        if next:
            parts.append(_sentence(f"Next: {next}"))
        super().__init__(" ".join(parts) + f" ({type(self).code})")


def _sentence(text: str) -> str:
    """The text with one mark at its end: a question keeps its own."""
    bare = text.rstrip(".")
    return bare if bare.endswith(("?", "!")) else f"{bare}."


class Told(NamedTuple):
    """The parts of an error's text; `code` is empty where it is no text of a RefoldError.

    `place` is where it was raised, ` (in orders.py:88, order)`, as records have it at their end.
    """

    message: str
    kept: str = ""
    next: str = ""
    code: str = ""
    place: str = ""

    @property
    def brief(self) -> str:
        """What happened, with the code that has its page."""
        return f"{self.message} ({self.code}){self.place}" if self.code else self.message


_END = r"(?:(?<=[?!])|\.)"
_TOLD = re.compile(
    rf"(?P<message>.*?)(?:{_END} Kept: (?P<kept>.*?))?(?:{_END} Next: (?P<next>.*))?"
    rf"{_END} \((?P<code>R\d{{3}})\)(?P<place> \(in [^()]*\))?",
    re.DOTALL,
)


def told(text: str) -> Told:
    """The parts of what an error said, as a record keeps it: another error then says it once.

    >>> told("the log is locked. Kept: every run in it. Next: stop the other process. (R000)")
    Told(message='the log is locked', kept='every run in it', next='stop the other process', \
code='R000', place='')
    >>> told("no such order")
    Told(message='no such order', kept='', next='', code='', place='')
    """
    found = _TOLD.fullmatch(text)
    if found is None:
        return Told(text)
    return Told(
        found["message"],
        found["kept"] or "",
        found["next"] or "",
        found["code"],
        found["place"] or "",
    )
