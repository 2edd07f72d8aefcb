"""What is asked: the command classes, their Avro schemas beside them, and how long texts may be."""

from refold_schemas.commands.limits import (
    SLOT_CHARS_MAX,
    TEXT_CHARS_MAX,
    WHY_CHARS_MAX,
    chars_max,
    check_texts,
    too_long,
)
from refold_schemas.commands.types import (
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
    StartRun,
)

__all__ = [
    "SLOT_CHARS_MAX",
    "TEXT_CHARS_MAX",
    "WHY_CHARS_MAX",
    "CancelRun",
    "Command",
    "RecordFinding",
    "ResolveStep",
    "RetryRun",
    "StartRun",
    "chars_max",
    "check_texts",
    "too_long",
]
