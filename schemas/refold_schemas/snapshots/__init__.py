"""What is kept between folds: run snapshots, checkpoints, what was archived; their Avro schemas."""

from refold_schemas.snapshots.types import (
    Archived,
    AttemptKept,
    Checkpoint,
    CursorKept,
    EarlyKept,
    OutcomeKept,
    ParkedKept,
    RunSnapshot,
    RunSnapshotPart,
    SlotKept,
    StrayKept,
    TimerKept,
)

__all__ = [
    "Archived",
    "AttemptKept",
    "Checkpoint",
    "CursorKept",
    "EarlyKept",
    "OutcomeKept",
    "ParkedKept",
    "RunSnapshot",
    "RunSnapshotPart",
    "SlotKept",
    "StrayKept",
    "TimerKept",
]
