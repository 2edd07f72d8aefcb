"""Reads on where a record's schema has to be asked for first: a fold waits, it never guesses.

Where the registry cannot say, a reader stops in front of the record. Where it says that there is no
such schema, it is a wrong registry, or nobody's record: the claim in force tells (`PartitionFold`).
"""

from collections.abc import Iterable
from typing import Any

from refold_projections.fold import PartitionFold
from refold_projections.fold.partition import Applied, StoredRecord
from refold_schemas.codec import Codec
from refold_schemas.errors import SchemaUnavailable, UnknownSchemaId


async def learn(codec: Codec, unknown: SchemaUnavailable) -> None:
    """Return once the schema is known. Raises SchemaUnavailable, also for one that nobody has."""
    try:
        await codec.learn(unknown.schema_id)
    except UnknownSchemaId as error:
        raise SchemaUnavailable(unknown.schema_id, error.reason, mends=False) from error


async def decode(codec: Codec, data: bytes) -> Any:
    """The message, its schema learnt first if need be. Raises as `Codec.decode` and `learn`."""
    try:
        return codec.decode(data)
    except SchemaUnavailable as unknown:
        await learn(codec, unknown)
        return codec.decode(data)


async def name_of(codec: Codec, data: bytes) -> str | None:
    """The short record name by the frame's id, learnt first if need be; None if there is none."""
    try:
        return codec.name_of(data, strict=True)
    except SchemaUnavailable as unknown:
        await learn(codec, unknown)
        return codec.name_of(data)


async def fold_all(fold: PartitionFold, records: Iterable[StoredRecord]) -> None:
    """Fold several records; the fold stands in front of the first that cannot be read yet."""
    for record in records:
        try:
            fold.apply(record)
        except SchemaUnavailable as unknown:
            await learn_and_fold(fold, record, unknown)


async def learn_and_fold(
    fold: PartitionFold, record: StoredRecord, unknown: SchemaUnavailable
) -> Applied:
    """Learn what `fold.apply(record)` did not know, and fold the record."""
    try:
        await learn(fold.codec, unknown)
    except SchemaUnavailable as still:
        if still.mends:
            raise
        return fold.apply(record, unknown=still)
    return fold.apply(record)
