"""Adopts partitions that the topics have got: in each a claim that records the old count.

It is given back at once. From then on workers own these partitions too, and forward what foreign
producers send there; runs stay where they are. Source: decision 0025.
"""

import secrets
from typing import Final

from refold.engine import checkpoints
from refold.engine.claiming import Claiming
from refold.engine.clock import SystemClock
from refold.engine.settings import WorkerSettings
from refold.log.port import Log, Topic
from refold.log.routing import recorded_count, routing_count
from refold_projections.fold import Facts
from refold_projections.fold.learning import fold_all
from refold_schemas.codec import Codec
from refold_schemas.events import PartitionClaimed, PartitionReleased

READ_BYTES: Final = 4 << 20


async def to_adopt(log: Log, codec: Codec) -> tuple[int, ...]:
    """The partitions that nobody has adopted, rising; none where the count was not raised.

    The last one is adopted last, so it tells of all of them. Partitions that not every topic has
    yet are among them.
    """
    facts = log.facts
    routed = await routing_count(log, codec)
    if not facts.partition_counts:
        return ()
    counts = zip(Topic, facts.partition_counts, strict=True)
    count = max(n for topic, n in counts if topic is not Topic.DEAD_LETTERS)
    return tuple(
        [
            partition
            for partition in range(routed, count)
            if partition >= facts.partition_count
            or await recorded_count(log, codec, partition) is None
        ]
    )


async def adopt(log: Log, codec: Codec, *, by: str, engine: str) -> tuple[int, ...]:
    """Adopt them: `by` whom, and with which version of refold, for the record.

    Raises what `Claiming.claim` and `Codec.ready` raise. Whoever repeats it after an error goes
    on where it ended.
    """
    partitions = await to_adopt(log, codec)
    if not partitions:
        return ()
    await codec.ready(PartitionClaimed, PartitionReleased)
    routed, facts = await routing_count(log, codec), log.facts
    said = await _latest(log, codec, routed)
    settings = WorkerSettings(format_level=said.format_level)
    claimed = PartitionClaimed(
        by,
        secrets.token_hex(8),
        said.app,
        engine,
        (),
        facts.topic_ids,
        routed,
        said.format_level,
    )
    for partition in partitions:
        claiming = Claiming(
            log, partition, codec, SystemClock(), settings, claimed, secrets.token_bytes
        )
        claim = await claiming.claim()
        why = f"adopted: {facts.partition_count} partitions, runs are routed over {routed}"
        await claiming.give_back(why, claim.restored.fold.position)
    return partitions


async def _latest(log: Log, codec: Codec, routed: int) -> Facts:
    """What the latest claim says of one of the partitions that runs are routed over."""
    for partition in range(routed):
        fold = (await checkpoints.load(log, partition, codec, keep=lambda _: False)).fold
        offset, end = await log.bounds(Topic.EVENTS, partition)
        offset = max(offset, fold.position.offset_next)
        while offset < end:
            records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_BYTES)
            if not records:
                break  # the rest are holes
            await fold_all(fold, records)
            offset = fold.position.offset_next
        if fold.facts.app:
            return fold.facts
    raise AssertionError("a count is recorded, so there is a claim")
