"""How large a batch is, the same for every adapter, so that a limit means the same everywhere."""

from collections.abc import Sequence
from typing import Final

from refold.log.port import Entry, Topic
from refold_schemas.errors.log import BatchRefused, BatchTooLarge

BATCH_SIZE_MAX: Final = 4 << 20
"""Default limit of a batch in bytes: `max.message.bytes` as refold creates its topics."""
BATCH_SIZE_MIN: Final = 64 << 10
"""A log that takes less is not served: what says that something was too large must fit."""

BATCH_OVERHEAD: Final = 61
# The most that a record of Kafka's format v2 adds to key, value and header: length (5), attributes
# (1), timestamp delta (10), offset delta (5), lengths of key and value (5 + 5), header count (1),
# length and name of the header `refold` (1 + 6), length of its value (5); 4 in reserve.
RECORD_OVERHEAD: Final = 48


def entry_size(entry: Entry) -> int:
    """Bytes that `entry` counts for in a batch, uncompressed; never less than Kafka needs."""
    key, value, header = entry
    return (
        RECORD_OVERHEAD
        + (0 if key is None else len(key))
        + (0 if value is None else len(value))
        + (0 if header is None else len(header))
    )


def batch_size(entries: Sequence[Entry]) -> int:
    """Bytes that `entries` count for as one batch; compare with `facts.batch_size_max`.

    An upper bound of a Kafka v2 record batch without compression (KIP-98: 61 bytes of batch
    header), so that what is accepted here is never refused by a broker with the same limit.

    >>> batch_size([Entry(b"run-1", b"x" * 100)])
    214
    """
    size = BATCH_OVERHEAD + RECORD_OVERHEAD * len(entries)
    for entry in entries:  # as `entry_size`, written out: this is done for every step
        for part in entry:
            if part is not None:
                size += len(part)
    return size


def gathered_max(wanted: int, batch_size_max: int) -> int:
    """Bytes up to which entries that need not be one batch are gathered into one.

    Never more than half of what the log takes: where it takes less than it tells, each batch that
    it refuses at least halves the limit that is learnt from it, and soon they fit.
    """
    return min(wanted, batch_size_max // 2)


def check_batch(topic: Topic, partition: int, batch: Sequence[Entry], size_max: int) -> int:
    """The size of a batch that a log may store, in bytes. Raises BatchRefused, BatchTooLarge."""
    if not batch:
        raise BatchRefused(topic=topic.value, partition=partition, reason="it is empty")
    if topic is Topic.SNAPSHOTS and any(entry.key is None for entry in batch):
        # Kafka refuses these too (INVALID_RECORD): what has no key can't be compacted.
        raise BatchRefused(
            topic=topic.value,
            partition=partition,
            reason="a record of a compacted topic has no key",
        )
    size = batch_size(batch)
    if size > size_max:
        raise BatchTooLarge(topic=topic.value, partition=partition, size=size, size_max=size_max)
    return size
