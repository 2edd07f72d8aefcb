"""Functions that are written by other functions: compiled from lines, with the names they use."""

from collections.abc import Iterable, Mapping
from typing import Any


def generated(lines: Iterable[str], names: Mapping[str, Any], *, title: str) -> Any:
    """Return the function that `lines` define, with `names` as its globals.

    `title` stands for a file name in tracebacks and profiles.
    """
    # One by one, into a dict that was empty: one that compiled code makes at once is of a kind in
    # which Python looks each name up anew at every use, as if it had never met it.
    shown: dict[str, Any] = {}
    for name, meant in names.items():
        shown[name] = meant
    before = set(shown)
    exec(compile("\n".join(lines), title, "exec"), shown)
    [made] = [shown[name] for name in shown if name not in before and name != "__builtins__"]
    return made
