"""What is kept between folds: run snapshots and partition checkpoints, Avro schemas beside them."""

from refold_schemas.snapshots.types import (
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
