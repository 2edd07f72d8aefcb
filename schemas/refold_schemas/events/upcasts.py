"""From an older version of a record to the next one: how released shapes are read for ever.

A new shape of a class is a new version: its `.avsc`, its id, and here the step from the version
before. `record` is the older record as plain data (nested records as dicts, arrays as lists);
what comes out has to fit the next version exactly.
"""

from collections.abc import Callable, Mapping
from typing import Any

Record = dict[str, Any]
Upcast = Callable[[Record], Record]

UPCASTS: Mapping[tuple[str, int], Upcast] = {}
"""`(full record name, version) -> step to version + 1`, events, commands and snapshots alike.

Empty: every released shape is at version 1.
"""
