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
from refold_schemas.errors.records import (
    HeaderUnreadable,
    RegistryUnreadable,
    SchemaMismatch,
    UndecodableRecord,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.errors.values import BadRunId, ValueRefused, ValueUnreadable

__all__ = [
    "AppendUnknown",
    "BadRunId",
    "BatchRefused",
    "BatchTooLarge",
    "HeaderUnreadable",
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
    "RegistryUnreadable",
    "SchemaMismatch",
    "UndecodableRecord",
    "UnknownSchemaId",
    "UnknownSchemaName",
    "ValueRefused",
    "ValueUnreadable",
]
