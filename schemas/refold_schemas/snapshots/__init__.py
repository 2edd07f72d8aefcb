"""What is kept between folds: run snapshots, checkpoints, what was archived; their Avro schemas."""

from refold_schemas.snapshots.types import (
    AmountsKept,
    Archived,
    AttemptKept,
    Checkpoint,
    CursorKept,
    EarlyKept,
    FindingKept,
    FormerKeyKept,
    OutcomeKept,
    ParkedKept,
    RunSnapshot,
    RunSnapshotPart,
    SlotKept,
    StrayKept,
    TimerKept,
)

__all__ = [
    "AmountsKept",
    "Archived",
    "AttemptKept",
    "Checkpoint",
    "CursorKept",
    "EarlyKept",
    "FindingKept",
    "FormerKeyKept",
    "OutcomeKept",
    "ParkedKept",
    "RunSnapshot",
    "RunSnapshotPart",
    "SlotKept",
    "StrayKept",
    "TimerKept",
]
