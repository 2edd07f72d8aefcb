"""RefoldError and the codes: every public error has a code and a page in docs/errors."""

from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.log import (
    AppendUnknown,
    BatchRefused,
    BatchTooLarge,
    LogAdapterMissing,
    LogClosed,
    LogCorrupted,
    LogForeign,
    LogFull,
    LogLocked,
    LogMissing,
    LogReadOnly,
    LogUnavailable,
    LogUrlInvalid,
    OffsetOutOfRange,
    PartitionMissing,
)

__all__ = [
    "AppendUnknown",
    "BatchRefused",
    "BatchTooLarge",
    "LogAdapterMissing",
    "LogClosed",
    "LogCorrupted",
    "LogForeign",
    "LogFull",
    "LogLocked",
    "LogMissing",
    "LogReadOnly",
    "LogUnavailable",
    "LogUrlInvalid",
    "OffsetOutOfRange",
    "PartitionMissing",
    "RefoldError",
]
