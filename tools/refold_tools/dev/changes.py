"""Which Python files there are below some folders, and which of them have changed."""

import os
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
FILES_MAX = 20_000


def snapshot(folders: tuple[Path, ...]) -> dict[str, int]:
    """Python files below the folders and when each was modified, in nanoseconds."""
    found: dict[str, int] = {}
    for folder in folders:
        for path in _python_files(folder):
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:  # gone since: that is a change, too
                continue
            if len(found) >= FILES_MAX:
                return found
    return found


def _python_files(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            one for one in folders if not one.startswith(".") and one not in SKIPPED_FOLDERS
        ]
        for name in names:
            if name.endswith(".py"):
                yield os.path.join(place, name)


def changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Names of files that differ, at most three.

    >>> changed({"a.py": 1, "b.py": 1}, {"a.py": 2, "c.py": 1})
    ['a.py', 'b.py', 'c.py']
    """
    differing = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    names = [os.path.basename(path) for path in differing]
    return names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"]
