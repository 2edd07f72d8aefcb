"""Who owns a partition and with what: its claims alone, without the runs."""

from typing import NamedTuple

from refold.client.reading import Meter
from refold.client.states import StateReader
from refold.log import Log, Topic
from refold_projections.fold import NO_CLAIM, PartitionFold
from refold_schemas.codec import KIND_CLAIM, Codec, RecordHeader
from refold_schemas.codec.learning import decode
from refold_schemas.errors import UndecodableRecord
from refold_schemas.events import PartitionClaimed

READ_BYTES = 1 << 20
STEP = 256
"""So many records are looked through first, from the end; then ever more."""


class ClaimSeen(NamedTuple):
    """A partition at the log's end. `claimed` is None where nobody has claimed it, or the latest
    claim cannot be read. `lag` counts commands that are not decided."""

    partition: int
    fold: PartitionFold
    claimed: PartitionClaimed | None
    owner_lives: bool | None
    lag: int


async def claim_of(log: Log, codec: Codec, partition: int, meter: Meter) -> ClaimSeen:
    """Read what stands behind the newest checkpoint, and back to the latest claim."""
    fold = await StateReader(log, codec, partition, meter).of_none()
    _, command_end = await log.bounds(Topic.COMMANDS, partition)
    claimed = None
    if fold.claim_id != NO_CLAIM:
        claimed = await _latest(log, codec, partition, fold.claim_id)
    return ClaimSeen(
        partition,
        fold,
        claimed,
        await log.owner_lives(partition),
        max(0, command_end - fold.position.command_next),
    )


async def _latest(
    log: Log, codec: Codec, partition: int, claim_id: bytes
) -> PartitionClaimed | None:
    start, end = await log.bounds(Topic.EVENTS, partition)
    step = STEP
    while end > start:
        begin = offset = max(start, end - step)
        while offset < end:
            records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_BYTES)
            if not records:
                break
            for record in records:
                header = RecordHeader.read(record.header)
                if header and header.kind == KIND_CLAIM and header.claim_id == claim_id:
                    try:
                        claimed = await decode(codec, record.value or b"")
                    except UndecodableRecord:
                        return None
                    return claimed if isinstance(claimed, PartitionClaimed) else None
            offset = records[-1].offset + 1
        end, step = begin, step * 4
    return None  # trimmed: the checkpoint knows of it
