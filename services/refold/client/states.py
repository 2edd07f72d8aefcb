"""Folds run states out of one partition on demand, and keeps them for the next question."""

import asyncio
from collections.abc import Callable

from refold.client.reading import Meter, metered
from refold.engine import checkpoints
from refold.engine.learning import fold_all
from refold.log import Log, Topic
from refold_projections.fold import NO_CLAIM, PartitionFold, RunState
from refold_schemas.codec import Codec

READ_SIZE_MAX = 4 << 20


class StateReader:
    """The fold of one partition, advanced to the log's end at each question.

    For the first run that is asked for, only that run is kept, from the latest checkpoint on; with
    the second one all are. Each begins at a position that the log confirms, or at its start.
    """

    def __init__(self, log: Log, codec: Codec, partition: int, meter: Meter) -> None:
        self._log, self._codec, self._partition = metered(log, meter), codec, partition
        self._meter = meter
        self._lock = asyncio.Lock()
        self._only: str | None = None
        self._fold: PartitionFold | None = None

    async def of_run(self, run_id: str) -> tuple[RunState | None, PartitionFold]:
        """The run's state at the log's end (None: no such run), and the fold it is from."""
        async with self._lock:
            if self._fold is None:
                self._only = run_id
                self._fold = await self._begin(run_id.__eq__)
            elif self._only is not None and self._only != run_id:
                self._only, self._fold = None, await self._begin(None)
            await self._catch_up(self._fold)
            return self._fold.runs.get(run_id), self._fold

    async def of_all(self) -> PartitionFold:
        """The fold of all runs at the log's end."""
        async with self._lock:
            if self._fold is None or self._only is not None:
                self._only, self._fold = None, await self._begin(None)
            await self._catch_up(self._fold)
            return self._fold

    async def of_none(self) -> PartitionFold:
        """A fold of the claims alone at the log's end: no body of a run is read."""
        async with self._lock:
            fold = await self._begin(lambda _: False)
            await self._catch_up(fold)
            return fold

    async def _begin(self, keep: Callable[[str], bool] | None) -> PartitionFold:
        restored = await checkpoints.load(self._log, self._partition, self._codec, keep=keep)
        fold = restored.fold
        return fold

    async def _catch_up(self, fold: PartitionFold) -> None:
        start, end = await self._log.bounds(Topic.EVENTS, self._partition)
        offset = max(start, fold.position.offset_next)
        self._meter.expect(Topic.EVENTS, self._partition, offset, end)
        while offset < end:
            records = await self._log.read(
                Topic.EVENTS, self._partition, offset, size_max=READ_SIZE_MAX
            )
            if not records:
                break  # the rest are holes
            await fold_all(fold, records)
            offset = fold.position.offset_next
            await asyncio.sleep(0)  # folding is work: let others of this loop have their turn
        self._meter.done()


def claim_as_seen(fold: PartitionFold, *, owner_lives: bool | None) -> bytes:
    """The claim to compute a boundary with.

    The latest one that counts; none where its owner has released the partition or is certainly
    dead: then nothing can be under way, and what has no outcome is in doubt.
    """
    if fold.facts.released or owner_lives is False:
        return NO_CLAIM
    return fold.claim_id
