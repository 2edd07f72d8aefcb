"""How large a batch is, the same for every adapter, so that a limit means the same everywhere."""

from collections.abc import Sequence

from refold.log.port import Entry

BATCH_SIZE_MAX = 4 << 20
"""Default limit of a batch in bytes: `max.message.bytes` as refold creates its topics."""

_BATCH_OVERHEAD = 61
# The most that a record of Kafka's format v2 adds to key, value and header: length (5), attributes
# (1), timestamp delta (10), offset delta (5), lengths of key and value (5 + 5), header count (1),
# length and name of the header `refold` (1 + 6), length of its value (5); 4 in reserve.
_RECORD_OVERHEAD = 48


def entry_size(entry: Entry) -> int:
    """Bytes that `entry` counts for in a batch, uncompressed; never less than Kafka needs."""
    key, value, header = entry
    return (
        _RECORD_OVERHEAD
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
    return _BATCH_OVERHEAD + sum(entry_size(entry) for entry in entries)
