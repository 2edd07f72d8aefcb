"""Tells whether this installation runs compiled: docs/adr/0033."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import refold_schemas


def is_compiled() -> bool:
    """Whether all that its wheel brought as machine code is there for this Python.

    A module whose machine code is missing runs as plain Python, and says nothing. This looks at
    files and imports nothing: `refold --version` asks.
    """
    try:
        brought = files("refold") or []
    except PackageNotFoundError:
        return False
    built = [str(path) for path in brought if path.name.endswith(tuple(EXTENSION_SUFFIXES))]
    # Where the code is that runs: another copy of refold may come first in the path.
    installed = Path(refold_schemas.__file__).parents[1]
    return bool(built) and all((installed / path).exists() for path in built)
