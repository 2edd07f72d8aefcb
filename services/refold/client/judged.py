"""The events of a partition with what the claim rule says of each; nothing is folded."""

import asyncio
from collections.abc import AsyncIterator

from refold.engine import checkpoints
from refold.log import Log, Record, Topic
from refold_projections.fold import Position, Verdict, judge
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.errors import OffsetOutOfRange

READ_SIZE_MAX = 4 << 20


async def judged(
    log: Log, codec: Codec, partition: int
) -> AsyncIterator[tuple[Record, RecordHeader | None, Verdict]]:
    """Each record from the start of the partition to its end as of now.

    Where the log begins behind an archive, it is read from the position that the archive ends at.
    Raises OffsetOutOfRange where something else has trimmed it: what counts nobody could say.
    """
    offset, end = await log.bounds(Topic.EVENTS, partition)
    position = await position_at(log, codec, partition, offset, end)
    while offset < end:
        records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_SIZE_MAX)
        if not records:
            return  # the rest are holes
        for record in records:
            header = RecordHeader.read(record.header)
            position, verdict = judge(position, record.offset, header)
            yield record, header, verdict
        offset = records[-1].offset + 1
        await asyncio.sleep(0)  # a long log: others of this loop have their turn


async def position_at(log: Log, codec: Codec, partition: int, start: int, end: int) -> Position:
    """Where a reader stands that begins at the log's start. Raises as `judged`."""
    if start == 0:
        return Position()
    archives = await checkpoints.archives_of(log, partition, codec)
    base = await checkpoints.base_behind(archives, codec, start)
    if base is None:
        raise OffsetOutOfRange(
            topic=Topic.EVENTS.value, partition=partition, offset=0, start=start, end=end
        )
    return base.position
