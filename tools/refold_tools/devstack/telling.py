"""How the stack says what goes on, to whoever wants to know."""

from typing import Protocol


class Tell(Protocol):
    """Takes what goes on, a line each. A `passing` one matters only until the next comes."""

    def __call__(self, line: str, *, passing: bool = False) -> None:
        """Show the line, or leave it out."""


def quiet(line: str, *, passing: bool = False) -> None:
    """Tells nobody."""
