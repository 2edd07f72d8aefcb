"""How long the texts of a command may be: said once, for whoever sends, takes or decides one."""

from functools import cache
from typing import Any, get_type_hints

from refold_schemas.commands.types import Command
from refold_schemas.errors import BadCommandText

TEXT_CHARS_MAX = 1_000
"""Characters of an id, a name or a sentence in a command; a run id has a limit of its own."""
WHY_CHARS_MAX = 10_000
"""Characters of `why`, in which a person explains."""
SLOT_CHARS_MAX = 10_000
"""Characters of a slot, which has the names of all branches around it: whatever run code calls
those, a person must be able to name the step."""


def chars_max(field: str) -> int:
    """How many characters the text field of a command may have.

    >>> chars_max("command_id"), chars_max("why"), chars_max("slot")
    (1000, 10000, 10000)
    """
    return {"why": WHY_CHARS_MAX, "slot": SLOT_CHARS_MAX}.get(field, TEXT_CHARS_MAX)


def too_long(command: Command) -> str | None:
    """Which text of a command is longer than a name, a sentence or an id ever is."""
    kind: Any = type(command)
    for name, _ in _texts_of(kind):
        text, limit = getattr(command, name), chars_max(name)
        if isinstance(text, str) and len(text) > limit:
            return f"its {name} has {len(text):,} characters, {limit:,} are allowed"
    return None


def check_texts(command: Command) -> None:
    """Raise BadCommandText unless a worker can take the command's texts and answer under its id.

    A worker refuses one that is too long, with its id cut: who sent it waits for that answer in
    vain. The same with an empty id, which every command has that nobody can read.
    """
    kind: Any = type(command)
    problem = None if command.command_id else "its command_id is empty"
    for name, optional in _texts_of(kind):
        text = getattr(command, name)
        if problem is not None or (text is None and optional):
            continue
        if not isinstance(text, str):
            problem = f"its {name} is {type(text).__name__}, not text"
        elif not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            problem = f"its {name} has half of a surrogate pair"
    problem = problem or too_long(command)
    if problem is not None:
        raise BadCommandText(command.run_id, kind.__name__, problem)


@cache
def _texts_of(kind: type) -> tuple[tuple[str, bool], ...]:
    """The text fields of a command, and whether they may be None; the run id has its own rule."""
    return tuple(
        (name, hint is not str)
        for name, hint in get_type_hints(kind).items()
        if hint in (str, str | None) and name != "run_id"
    )


__all__ = [
    "SLOT_CHARS_MAX",
    "TEXT_CHARS_MAX",
    "WHY_CHARS_MAX",
    "chars_max",
    "check_texts",
    "too_long",
]
