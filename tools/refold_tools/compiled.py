"""Tells whether this installation runs compiled: docs/adr/0033."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import refold_schemas


def is_compiled() -> bool:
    """Whether what a step passes through is machine code here, and not plain Python.

    Looks at files and imports nothing: `refold --version` asks.
    """
    rooms = Path(refold_schemas.__file__).parent / "codec"
    return any((rooms / f"codec{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
