"""The fold: the claim rule, the state of a run, its boundary and the sentence. Pure."""

from refold_projections.fold.boundary import FOR_A_PERSON, Boundary, boundary, is_under_way
from refold_projections.fold.evidence import conflicts
from refold_projections.fold.evolve import evolve
from refold_projections.fold.orders import Orders, OrdersKept, ParkedCommand
from refold_projections.fold.packed import Armed, RunStates, is_idle, snapshot_pieces
from refold_projections.fold.partition import Applied, Facts, Mark, PartitionFold, stamp_of
from refold_projections.fold.position import NO_CLAIM, Position, Verdict, judge
from refold_projections.fold.sentence import moment, moment_near, sentence
from refold_projections.fold.slots import in_parallel_branch
from refold_projections.fold.snapshot import from_snapshot, state_hash, to_snapshot
from refold_projections.fold.state import (
    ABSENT,
    DENIED,
    DONE,
    FAILED,
    IN_DOUBT,
    NEVER_STARTED,
    OPEN,
    UNSETTLED,
    Attempt,
    Cancel,
    Cursor,
    Ended,
    Outcome,
    Parked,
    RunState,
    Slot,
    Stamp,
    Timer,
)

__all__ = [
    "ABSENT",
    "DENIED",
    "DONE",
    "FAILED",
    "FOR_A_PERSON",
    "IN_DOUBT",
    "NEVER_STARTED",
    "NO_CLAIM",
    "OPEN",
    "UNSETTLED",
    "Applied",
    "Armed",
    "Attempt",
    "Boundary",
    "Cancel",
    "Cursor",
    "Ended",
    "Facts",
    "Mark",
    "Orders",
    "OrdersKept",
    "Outcome",
    "Parked",
    "ParkedCommand",
    "PartitionFold",
    "Position",
    "RunState",
    "RunStates",
    "Slot",
    "Stamp",
    "Timer",
    "Verdict",
    "boundary",
    "conflicts",
    "evolve",
    "from_snapshot",
    "in_parallel_branch",
    "is_idle",
    "is_under_way",
    "judge",
    "moment",
    "moment_near",
    "sentence",
    "snapshot_pieces",
    "stamp_of",
    "state_hash",
    "to_snapshot",
]
