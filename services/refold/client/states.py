"""Folds run states out of one partition on demand, and keeps them for the next question."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from refold.client.reading import Meter, metered
from refold.engine import checkpoints
from refold.engine.archives import Archives
from refold.log import Log, Topic
from refold_projections.fold import NO_CLAIM, Facts, PartitionFold, RunState
from refold_projections.fold.learning import fold_all
from refold_schemas.codec import Codec
from refold_schemas.errors import OffsetOutOfRange

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
        self._archives: Archives | None = None

    async def of_run(self, run_id: str) -> tuple[RunState | None, PartitionFold]:
        """The run's state at the log's end (None: no such run), and the fold it is from."""
        async with self._lock:
            if self._fold is None:
                self._only = run_id
            elif self._only is not None and self._only != run_id:
                self._only, self._fold = None, None
            fold = await self._at_the_end()
            return fold.runs.get(run_id), fold

    async def of_all(self) -> PartitionFold:
        """The fold of all runs at the log's end."""
        async with self._lock:
            if self._only is not None:
                self._only, self._fold = None, None
            return await self._at_the_end()

    async def of_none(self) -> PartitionFold:
        """A fold of the claims alone at the log's end: no body of a run is read."""
        async with self._lock:
            return await self._caught_up(lambda _: False)

    async def files_of(self, run_id: str) -> tuple[str, ...]:
        """The archive files that hold records of the run which the log holds no more."""
        start, _ = await self._log.bounds(Topic.EVENTS, self._partition)
        if start == 0:
            return ()
        if self._archives is None or self._archives.ending_at(start) is None:
            self._archives = await checkpoints.archives_of(self._log, self._partition, self._codec)
        files = (one.file for one in self._archives.before(start) if run_id in one.runs)
        return tuple(dict.fromkeys(files))

    async def _at_the_end(self) -> PartitionFold:
        """The fold, begun where there is none, caught up with the log."""
        if self._fold is not None:
            with suppress(OffsetOutOfRange):  # then it begins anew
                await self._catch_up(self._fold)
                return self._fold
        self._fold = None
        self._fold = await self._caught_up(None if self._only is None else self._only.__eq__)
        return self._fold

    async def _caught_up(self, keep: Callable[[str], bool] | None) -> PartitionFold:
        """A new fold at the log's end.

        Begun again where the log is trimmed beyond it: a newer checkpoint stands there then.
        """
        for left in range(checkpoints.TRIMMED_UNDER_US_MAX - 1, -1, -1):
            restored = await checkpoints.load(self._log, self._partition, self._codec, keep=keep)
            self._archives = restored.archives
            try:
                await self._catch_up(restored.fold)
            except OffsetOutOfRange:
                if not left:
                    raise
            else:
                return restored.fold
        raise AssertionError("the last try returns or raises")

    async def _catch_up(self, fold: PartitionFold) -> None:
        _, end = await self._log.bounds(Topic.EVENTS, self._partition)
        offset = fold.position.offset_next
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


def claim_as_seen(claim_id: bytes, facts: Facts, *, owner_lives: bool | None) -> bytes:
    """The claim to compute a boundary with.

    `claim_id` is that of the latest one that counts, `facts` are its own; none where its owner has
    released the partition or is certainly dead: then nothing can be under way, and what has no
    outcome is in doubt.
    """
    if facts.released or owner_lives is False:
        return NO_CLAIM
    return claim_id
