"""How often each step was really executed: the vendors' own count against what the record has."""

from collections.abc import Mapping, Sequence
from typing import Any

from refold_projections.fold import Slot

MODEL = "POST /model/chat"


def executed_twice(
    slots: Mapping[str, Slot],
    routes: Mapping[str, Sequence[str]],
    suspects: Mapping[str, Sequence[str]],
    counters: Mapping[str, Any],
) -> list[str]:
    """Slots whose call reached the vendor more often than once, in the order of the run.

    `routes`: for each route the slots that call it, once for each call that is due. Which one of
    several was repeated is told by its key or its turn, where the vendor knows either, else by
    `suspects`: those that were under way when a process died.
    """
    repeated: set[str] = set()
    by_key: Mapping[str, int] = counters["calls_by_key"]
    by_turn: Mapping[str, int] = counters["model"]["calls_by_turn"]
    for route, due in routes.items():
        if counters["calls"].get(route, 0) <= len(due):
            continue
        told = [slot for slot in due if by_key.get(slots[slot].effect_key, 0) > 1]
        if route == MODEL:
            told = [slot for slot in due if by_turn.get(slot.rpartition("#")[2], 0) > 1]
        repeated.update(told or suspects.get(route) or due)
    return sorted(repeated, key=lambda slot: slots[slot].born)
