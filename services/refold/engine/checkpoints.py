"""Where a reader's fold begins: at a checkpoint that the log confirms, or where the log does.

Source: design, section 3.3. What cannot be used is left aside; the fold does without it, as long
as the log holds what it would need: docs/adr/0022.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from refold.engine.archives import Archives
from refold.engine.bases import Base, base_of
from refold.engine.marks import Marks
from refold.engine.stored import RUNS_AT_ONCE, Kept, Stored, read_stored
from refold.log.port import Log, Topic
from refold_projections.fold import Armed, Mark, Orders, PartitionFold, RunStates
from refold_schemas.codec import Codec
from refold_schemas.codec.learning import decode
from refold_schemas.errors import (
    EventsGone,
    OffsetOutOfRange,
    RefoldError,
    UndecodableRecord,
)
from refold_schemas.snapshots import Checkpoint, RunSnapshot

TRIMMED_UNDER_US_MAX: Final = 3
"""So often a reader begins again because the log was trimmed while it looked."""


class Restored(NamedTuple):
    """What was read: a fold at a checkpoint (or at the start), its keys, and who needs what next.

    `base` is where the fold begins. Of the runs that are packed in the fold: their timers
    (`armed`), and those that need somebody now (`active`). `archives`: what is in files.
    `unused` says why the newest checkpoint is not where the fold begins; empty where it is, and
    where none stands. `topic_ids`: of the log that the newest one was written beside, if it says.
    """

    fold: PartitionFold
    base: Base
    kept: Kept
    armed: list[Armed]
    active: list[str]
    archives: Archives
    unused: str = ""
    topic_ids: tuple[str, ...] = ()


async def load(
    log: Log, partition: int, codec: Codec, *, keep: Callable[[str], bool] | None = None
) -> Restored:
    """A fold from which a reader can go on: at the best checkpoint that the log confirms.

    Without one it is at the log's start: empty where that is offset 0, else with the runs whose
    records were archived, from their snapshots. `keep` limits the runs that the fold keeps;
    snapshots of others are not even decoded. Raises EventsGone where events are gone that nothing
    stands in for: never a fold with a gap in it.
    """
    for _ in range(TRIMMED_UNDER_US_MAX):
        stored = await read_stored(log, partition, codec, keep)
        start, _ = await log.bounds(Topic.EVENTS, partition)
        try:
            return await _Restoring(log, partition, codec, keep, stored, start).best()
        except OffsetOutOfRange as error:
            gone = error  # trimmed while we looked: behind a newer checkpoint
    raise gone


async def archives_of(log: Log, partition: int, codec: Codec) -> Archives:
    """What was archived of a partition; nothing else of its snapshots is looked at."""
    return (await read_stored(log, partition, codec, lambda _: False)).archives


async def base_behind(archives: Archives, codec: Codec, start: int) -> Base | None:
    """Where a reader stands that has read all of an archive which ends at `start`.

    None where none ends there. Raises SchemaUnavailable where its schema cannot be learnt.
    """
    archived = archives.ending_at(start)
    if archived is None:
        if archives.unknown is not None:
            raise archives.unknown
        return None
    try:
        position = await decode(codec, archived.position)
    except UndecodableRecord:
        return None
    return base_of(position) if isinstance(position, Checkpoint) else None


class _Restoring:
    """Chooses where a fold begins. The log begins at `start`."""

    def __init__(
        self,
        log: Log,
        partition: int,
        codec: Codec,
        keep: Callable[[str], bool] | None,
        stored: Stored,
        start: int,
    ) -> None:
        self._log, self._partition, self._codec, self._keep = log, partition, codec, keep
        self._stored, self._start = stored, start

    async def best(self) -> Restored:
        """See `load`."""
        at_checkpoint, why = await self._at_a_checkpoint()
        if at_checkpoint is not None:
            return at_checkpoint
        restored = self._nothing() if self._start == 0 else await self._behind_the_archive()
        newest = max(self._stored.checkpoints.values(), key=lambda c: c.offset_next, default=None)
        topic_ids = () if newest is None else tuple(newest.topic_ids)
        return restored._replace(unused=why, topic_ids=topic_ids)

    async def _at_a_checkpoint(self) -> tuple[Restored | None, str]:
        """The fold at the newest checkpoint that stands; else None, and why, if there is one."""
        stored = self._stored
        if stored.unreadable:
            keys = sorted(key.decode("utf-8", "replace") for key in stored.unreadable)
            why = f"{len(keys)} snapshots cannot be read, the first has the key {keys[0]!r}"
            return None, why if stored.checkpoints else ""
        found = sorted(stored.checkpoints.items(), key=lambda c: c[1].offset_next, reverse=True)
        why = "" if not found else "the records that it names do not stand in the log"
        for key, checkpoint in found:
            if checkpoint.redo_offset != checkpoint.offset_next:
                continue
            if not await self._stands(checkpoint):
                continue
            if stored.lacks_runs(key, checkpoint):
                return None, "snapshots that it counts on are gone"
            restored, refused = await self._restore(base_of(checkpoint))
            if refused:
                return None, f"the log lacks what {len(refused)} snapshots name as read"
            if self._missing(restored, set()):
                return None, "runs that were archived have no snapshot"
            return restored, ""
        return None, why

    async def _stands(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.offset_next < self._start:
            return False  # what follows it is gone
        if checkpoint.last_offset < self._start:
            return True  # the log begins right behind it
        last = Mark(checkpoint.last_offset, checkpoint.last_claim_id, checkpoint.last_n)
        return await self._marks().stands(last)

    async def _behind_the_archive(self) -> Restored:
        """The fold of what the log still holds, with the runs that it does not begin with."""
        stored = self._stored
        unreadable = {self._run_of(key) for key in stored.unreadable}
        base = await base_behind(stored.archives, self._codec, self._start)
        if base is None or stored.archives.runs_before(self._start) is None:
            raise self._gone(unreadable | self._unended())
        restored, _ = await self._restore(base)
        missing = self._missing(restored, unreadable)
        if missing:
            raise self._gone(missing)
        return restored

    def _missing(self, restored: Restored, unreadable: set[str]) -> set[str]:
        """The runs of which the log holds records no more, and `ns.snapshots` nothing either.

        Where a record about a file cannot be read nobody knows which they are: none are named.
        """
        if self._start == 0:
            return set()
        needed = self._stored.archives.runs_before(self._start) or set()
        known = restored.fold.marks.keys() - unreadable  # an older snapshot may lack what is gone
        return {r for r in needed if r not in known and (self._keep is None or self._keep(r))}

    def _gone(self, concerned: set[str]) -> RefoldError:
        """What to stop with: events are gone, or what stands in for them is in unknown schemas."""
        if self._stored.unknown is not None:
            return self._stored.unknown
        return EventsGone(self._partition, self._gone_from(), self._start, sorted(concerned))

    def _gone_from(self) -> int:
        """The first offset that is in the log no more and in no snapshot either, as far as known.

        Of a checkpoint that cannot be used nobody knows how much is true.
        """
        if self._stored.unreadable:
            return 0
        found = (c.offset_next for c in self._stored.checkpoints.values())
        return max((offset for offset in found if offset < self._start), default=0)

    def _unended(self) -> set[str]:
        """The runs that may have gone on in what is gone."""
        snapshots = (
            (r, self._codec.decode(found.value)) for r, found in self._stored.newest.items()
        )
        return {r for r, one in snapshots if isinstance(one, RunSnapshot) and one.ended is None}

    async def _restore(self, base: Base) -> tuple[Restored, set[str]]:
        """The fold at `base` with every snapshot that stands, and the runs of those that do not."""
        stored, reader = self._stored, self._marks()
        restored = self._nothing()._replace(base=base)
        fold, states = restored.fold, RunStates(self._codec)
        fold.runs = states
        refused: set[str] = set()
        order = sorted(stored.newest, key=lambda run_id: stored.newest[run_id].mark.offset)
        for at, run_id in enumerate(order):
            if at % RUNS_AT_ONCE == RUNS_AT_ONCE - 1:
                await asyncio.sleep(0)
            mark, value, idle, armed, _ = stored.newest[run_id]
            # What was before the start was looked at by whoever trimmed the log.
            if mark.offset >= self._start and not await reader.stands(mark):
                refused.add(run_id)
                continue
            states.put_packed(run_id, value)
            fold.marks[run_id] = mark
            restored.armed.extend(armed)
            if not idle:
                restored.active.append(run_id)
        stored.kept.large = stored.large
        fold.position, fold.facts = base.position, base.facts
        fold.orders = Orders(base.orders)
        return restored, refused

    def _nothing(self) -> Restored:
        fold = PartitionFold(self._codec, keep=self._keep)
        fold.runs = RunStates(self._codec)
        base = Base(fold.position, fold.facts)
        return Restored(fold, base, self._stored.kept, [], [], self._stored.archives)

    def _marks(self) -> Marks:
        return Marks(self._log, self._partition)

    @staticmethod
    def _run_of(key: bytes) -> str:
        return key.decode("utf-8", "replace").rpartition("/")[0]
