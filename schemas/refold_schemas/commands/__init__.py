"""What is asked: the command classes, their Avro schemas beside them."""

from refold_schemas.commands.types import (
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
    StartRun,
)

__all__ = ["CancelRun", "Command", "RecordFinding", "ResolveStep", "RetryRun", "StartRun"]
