"""From an older version of a record to the next one: how released shapes are read for ever.

A new shape of a class is a new version: its `.avsc`, its id, and here the step from the version
before. `record` is the older record as plain data (nested records as dicts, arrays as lists);
what comes out has to fit the next version exactly.
"""

from collections.abc import Callable, Mapping
from typing import Any

Record = dict[str, Any]
Upcast = Callable[[Record], Record]


def checkpoint_v1_to_v2(record: Record) -> Record:
    """v2 adds what is parked or still to be sent: v1 parked nothing and sent nothing out."""
    return {**record, "published_to": record["offset_next"], "outbox": [], "parked": []}


def checkpoint_v2_to_v3(record: Record) -> Record:
    """v3 adds of how many runs a snapshot stood; None means not counted, which v2 never did."""
    return {**record, "run_count": None}


UPCASTS: Mapping[tuple[str, int], Upcast] = {
    ("refold.snapshots.Checkpoint", 1): checkpoint_v1_to_v2,
    ("refold.snapshots.Checkpoint", 2): checkpoint_v2_to_v3,
}
"""`(full record name, version) -> step to version + 1`, events, commands and snapshots alike."""
