"""Checkpoints and run snapshots: written from durable state only, verified when read.

Source: design, section 3.3. What cannot be used is left aside; the fold does without it.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from refold.log.port import Entry, Log, Record, Topic
from refold.log.sizes import batch_size
from refold_projections.fold import (
    Armed,
    Facts,
    Mark,
    PartitionFold,
    Position,
    RunStates,
    is_idle,
)
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.errors import BatchTooLarge, HeaderUnreadable, UndecodableRecord
from refold_schemas.snapshots import Checkpoint, RunSnapshot, TimerKept

READ_BYTES = 4 << 20
BATCH_BYTES = 512 * 1024


def checkpoint_of(partition: int, position: Position, facts: Facts) -> Checkpoint:
    """The record of a durable position. Every run's snapshot reaches up to it."""
    return Checkpoint(
        partition=partition,
        offset_next=position.offset_next,
        claim_epoch=position.claim_epoch,
        claim_id=position.claim_id,
        n_next=position.n_next,
        claim_broken=position.claim_broken,
        command_next=position.command_next,
        time_last_ms=position.time_last_ms,
        last_offset=position.last_offset,
        last_claim_id=position.last_claim_id,
        last_n=position.last_n,
        redo_offset=position.offset_next,
        process=facts.process,
        owner=facts.owner,
        app=facts.app,
        topic_ids=facts.topic_ids,
        partition_count=facts.partition_count,
        format_level=facts.format_level,
        released=facts.released,
        unclean_total=facts.unclean_total,
        unclean_row=facts.unclean_row,
    )


def snapshot_batches(
    label: str, runs: Iterable[tuple[str, bytes]], batch_size_max: int
) -> Iterable[list[Entry]]:
    """The snapshots of `runs` (run_id, encoded) as batches, keyed `run_id/label`.

    Raises BatchTooLarge for a run that does not fit into one: a position that does not have all
    runs beside it would lose them.
    """
    batch: list[Entry] = []
    size = 0
    for run_id, value in runs:
        key = f"{run_id}/{label}".encode()
        if (whole := batch_size([Entry(key, value)])) > batch_size_max:
            raise BatchTooLarge(
                topic=Topic.SNAPSHOTS.value, partition=-1, size=whole, size_max=batch_size_max
            )
        if batch and size + len(value) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(Entry(key, value))
        size += len(key) + len(value)
    if batch:
        yield batch


class Kept:
    """The keys in `ns.snapshots` that stand: each is deleted once a newer one stands in its place.

    No key is written twice (`label`): a copy of an older write that is stored late, or one whose
    answer was lost, would else replace a newer snapshot, and the run would fall back behind the
    position. Kept are the ends of the keys, which many runs share.
    """

    def __init__(self) -> None:
        self.snapshots: dict[str, tuple[str, ...]] = {}
        self.checkpoints: list[bytes] = []
        self._count = 0
        self._labels: dict[str, tuple[str, ...]] = {}

    def stands(self, run_id: str, label: str) -> None:
        """A snapshot of the run stands under this label."""
        alone = self._labels.setdefault(label, (label,))
        before = self.snapshots.get(run_id)
        self.snapshots[run_id] = alone if before is None else (*before, label)

    def label(self, claim_id: bytes) -> str:
        """The end of the keys of the next checkpoint of this claim."""
        self._count += 1
        return f"{claim_id.hex()}.{self._count}"

    def failed(self, run_ids: Iterable[str], label: str) -> None:
        """These may or may not have been written; nobody needs them, a later one deletes them."""
        self.checkpoints.append(f"/{label}".encode())
        for run_id in run_ids:
            self.stands(run_id, label)

    def replaced(self, run_ids: Iterable[str], label: str) -> list[bytes]:
        """Keys that are not needed any more, now that these runs and the position were written."""
        keys = self.checkpoints
        self.checkpoints = [f"/{label}".encode()]
        alone = self._labels.setdefault(label, (label,))
        for run_id in run_ids:
            keys += (f"{run_id}/{old}".encode() for old in self.snapshots.get(run_id, ()))
            self.snapshots[run_id] = alone
        return keys


class Restored(NamedTuple):
    """What was read: a fold at a checkpoint (or at the start), its keys, and who needs what next.

    Of the runs that are packed in the fold: their timers (`armed`), and those that need somebody
    now (`active`).
    """

    fold: PartitionFold
    kept: Kept
    armed: list[Armed]
    active: list[str]


class _Found(NamedTuple):
    """A run's newest snapshot, as far as it is needed unpacked."""

    mark: Mark
    value: bytes
    idle: bool
    timers: tuple[TimerKept, ...]


async def load(
    log: Log, partition: int, codec: Codec, *, keep: Callable[[str], bool] | None = None
) -> Restored:
    """A fold up to the best checkpoint that the log confirms; empty where there is none.

    `keep` limits the runs that the fold keeps; snapshots of others are not even decoded.
    """
    kept_keys = Kept()
    checkpoints: list[Checkpoint] = []
    newest: dict[str, _Found] = {}
    async for record in _all(log, partition):
        run_id, _, label = (record.key or b"").decode("utf-8", "replace").rpartition("/")
        unwanted = run_id and keep is not None and not keep(run_id)
        if record.value is None or unwanted:
            continue
        try:
            kept = codec.decode(record.value)
        except UndecodableRecord:
            continue  # of another version, or damaged: the fold does without it
        if isinstance(kept, Checkpoint):
            checkpoints.append(kept)
            kept_keys.checkpoints.append(record.key or b"")
        elif isinstance(kept, RunSnapshot):
            kept_keys.stands(run_id, label)
            other = newest.get(run_id)
            if kept.run_id == run_id and (other is None or kept.offset > other.mark.offset):
                mark = Mark(kept.offset, kept.record_claim_id, kept.record_n)
                newest[run_id] = _Found(mark, record.value, is_idle(kept), kept.timers)
    checkpoints.sort(key=lambda c: c.offset_next, reverse=True)
    reader = _Marks(log, partition)
    for checkpoint in checkpoints:
        if checkpoint.redo_offset != checkpoint.offset_next:
            continue
        last = Mark(checkpoint.last_offset, checkpoint.last_claim_id, checkpoint.last_n)
        if not await reader.stands(last):
            continue
        return await _restore(reader, checkpoint, newest, codec, kept_keys, keep)
    return _nothing(codec, kept_keys, keep)


def _nothing(codec: Codec, kept: Kept, keep: Callable[[str], bool] | None) -> Restored:
    fold = PartitionFold(codec, keep=keep)
    fold.runs = RunStates(codec)
    return Restored(fold, kept, [], [])


async def _restore(
    reader: "_Marks",
    checkpoint: Checkpoint,
    newest: dict[str, _Found],
    codec: Codec,
    kept: Kept,
    keep: Callable[[str], bool] | None,
) -> Restored:
    restored = _nothing(codec, kept, keep)
    fold, states = restored.fold, RunStates(codec)
    fold.runs = states
    for run_id, found in sorted(newest.items(), key=lambda item: item[1].mark.offset):
        if not await reader.stands(found.mark):
            return _nothing(codec, kept, keep)
        states.put_packed(run_id, found.value)
        fold.marks[run_id] = found.mark
        for timer in found.timers:
            name = sys.intern(timer.timer_id)  # runs of one function share their timers' names
            restored.armed.append(Armed(timer.deadline_ms, run_id, name, timer.generation))
        if not found.idle:
            restored.active.append(run_id)
    fold.position = Position(
        checkpoint.offset_next,
        checkpoint.claim_epoch,
        checkpoint.claim_id,
        checkpoint.n_next,
        checkpoint.claim_broken,
        checkpoint.command_next,
        checkpoint.time_last_ms,
        checkpoint.last_offset,
        checkpoint.last_claim_id,
        checkpoint.last_n,
    )
    fold.facts = Facts(
        checkpoint.process,
        checkpoint.owner,
        checkpoint.app,
        checkpoint.partition_count,
        checkpoint.topic_ids,
        checkpoint.format_level,
        checkpoint.released,
        checkpoint.unclean_total,
        checkpoint.unclean_row,
    )
    return restored


async def _all(log: Log, partition: int) -> AsyncIterator[Record]:
    offset, end = await log.bounds(Topic.SNAPSHOTS, partition)
    while offset < end:
        records = await log.read(Topic.SNAPSHOTS, partition, offset, size_max=READ_BYTES)
        if not records:
            return
        for record in records:
            yield record
        offset = records[-1].offset + 1


class _Marks:
    """Looks up records of `ns.events` by offset, rising, each stored batch read once."""

    def __init__(self, log: Log, partition: int) -> None:
        self._log, self._partition = log, partition
        self._chunk: dict[int, Record] = {}

    async def stands(self, mark: Mark) -> bool:
        """Whether the record at the mark's offset is the one that the mark names."""
        if mark.offset < 0:
            return True
        record = self._chunk.get(mark.offset)
        if record is None:
            start, end = await self._log.bounds(Topic.EVENTS, self._partition)
            if not start <= mark.offset < end:
                return False
            records = await self._log.read(
                Topic.EVENTS, self._partition, mark.offset, size_max=READ_BYTES
            )
            self._chunk = {r.offset: r for r in records}
            record = self._chunk.get(mark.offset)
        if record is None or record.header is None:
            return False
        try:
            header = RecordHeader.unpack(record.header)
        except HeaderUnreadable:
            return False
        return (header.claim_id, header.n) == (mark.claim_id, mark.n)
