"""Folds on where a record's schema has to be asked for first: a fold waits, it never guesses.

Where the registry cannot say, it stops in front of the record. Where it says that there is no such
schema, it is a wrong registry, or nobody's record: the claim in force tells (`PartitionFold`).
"""

from collections.abc import Iterable

from refold_projections.fold.partition import Applied, PartitionFold, StoredRecord
from refold_schemas.codec.learning import learn
from refold_schemas.errors import SchemaUnavailable


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
