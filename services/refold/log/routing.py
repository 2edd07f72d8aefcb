"""Over how many partitions runs are routed: what the log's claims say, not today's topics.

Each claim records the count, and it never changes: runs live where their `run_id` hashed to when
the namespace was young. Topics that have got more partitions are served once somebody has adopted
that: then there is a claim in the last of the new partitions, which records the old count too.
"""

import asyncio

from refold.log.port import Log, LogFacts, Record, Topic
from refold_schemas.codec import KIND_CLAIM, Codec, RecordHeader
from refold_schemas.codec.learning import decode
from refold_schemas.errors import (
    LogUnavailable,
    PartitionsRaised,
    SchemaUnavailable,
    UndecodableRecord,
)
from refold_schemas.events import PartitionClaimed
from refold_schemas.snapshots import Checkpoint

FIRST_BYTES = 64 * 1024
READ_BYTES = 1 << 20
STEP = 256
"""So many records of the snapshots are looked through first, from their end; then ever more."""


async def routing_count(log: Log, codec: Codec) -> int:
    """Over how many partitions runs are routed: as many as the topics have, if nobody has claimed.

    A few small reads, and none where the count cannot be raised. Any partition's claims say it, so
    one that cannot be read is no hindrance. Raises what `Log.read` raises where no other says it.
    """
    facts = log.facts
    partitions = range(facts.partition_count if facts.partition_counts else 0)
    for partition in partitions:
        try:
            recorded = await recorded_count(log, codec, partition)
        except LogUnavailable:
            # All others at once: of a log that is away as a whole each would wait in its turn.
            rest = (recorded_count(log, codec, other) for other in partitions[partition + 1 :])
            for answer in await asyncio.gather(*rest, return_exceptions=True):
                if isinstance(answer, int):
                    return answer
            raise
        if recorded is not None:
            return recorded
    return facts.partition_count


async def check_adopted(log: Log, codec: Codec, routed: int) -> None:
    """Raise PartitionsRaised where the topics have not the partitions that the claims know."""
    facts = log.facts
    counts = facts.partition_counts
    if not counts:
        return
    if are_equal(facts):
        if facts.partition_count == routed:
            return
        if await recorded_count(log, codec, facts.partition_count - 1) is not None:
            return
    known = f"its claims record {routed}, and runs are routed over these"
    raise PartitionsRaised(log.url, told_counts(facts), known)


def are_equal(facts: LogFacts) -> bool:
    """Whether the topics that have to agree have the same number of partitions."""
    counts = dict(zip(Topic, facts.partition_counts, strict=True))
    del counts[Topic.DEAD_LETTERS]
    return len(set(counts.values())) == 1


def told_counts(facts: LogFacts) -> str:
    """The counts of the topics that have to agree, for a sentence."""
    counts = zip(Topic, facts.partition_counts, strict=True)
    told = (f"{facts.namespace}.{t.value} {n}" for t, n in counts if t is not Topic.DEAD_LETTERS)
    return ", ".join(told)


async def recorded_count(log: Log, codec: Codec, partition: int) -> int | None:
    """The count that the claims of one partition record; None where there is none.

    The first record of a partition is its first claim. Where it was trimmed a checkpoint says it.
    """
    start, end = await log.bounds(Topic.EVENTS, partition)
    if start == end == 0:
        return None
    size_max = FIRST_BYTES
    offset = start
    checkpoints_read = False
    while offset < end:
        records = await log.read(Topic.EVENTS, partition, offset, size_max=size_max)
        if not records:
            break  # the rest are holes
        for record in records:
            claimed = await _claim_in(record, codec)
            if claimed is not None:
                return claimed.partition_count
        offset, size_max = records[-1].offset + 1, READ_BYTES
        if not checkpoints_read:
            checkpoints_read = True
            recorded = await _checkpointed(log, codec, partition)
            if recorded is not None:
                return recorded
    return None if checkpoints_read else await _checkpointed(log, codec, partition)


async def _checkpointed(log: Log, codec: Codec, partition: int) -> int | None:
    """The count in the newest checkpoint: the snapshots are looked through from their end."""
    start, end = await log.bounds(Topic.SNAPSHOTS, partition)
    step = STEP
    while end > start:
        begin = max(start, end - step)
        offset, found = begin, None
        while offset < end:
            records = await log.read(Topic.SNAPSHOTS, partition, offset, size_max=READ_BYTES)
            if not records:
                break
            for record in records:
                if (record.key or b"").startswith(b"/") and record.value and record.offset < end:
                    stored = await _decoded(record.value, codec)
                    if isinstance(stored, Checkpoint):
                        found = stored.partition_count
            offset = records[-1].offset + 1
        if found is not None:
            return found
        end, step = begin, step * 4
    return None


async def _claim_in(record: Record, codec: Codec) -> PartitionClaimed | None:
    header = RecordHeader.read(record.header)
    if header is None or header.kind != KIND_CLAIM:
        return None
    claimed = await _decoded(record.value or b"", codec)
    return claimed if isinstance(claimed, PartitionClaimed) else None


async def _decoded(value: bytes, codec: Codec) -> object:
    """What a record says; None where it cannot be read. Raises SchemaUnavailable."""
    try:
        return await decode(codec, value)
    except UndecodableRecord:
        return None
    except SchemaUnavailable as unknown:
        if unknown.mends:
            raise
        return None  # the registry has no such schema: it is nobody's record
