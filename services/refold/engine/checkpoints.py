"""Checkpoints and run snapshots as they are read: verified against the log, or left aside.

Source: design, section 3.3. What cannot be used is left aside; the fold does without it, as long
as the log holds what it would need: docs/adr/0022.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from refold.engine.archives import LABEL as ARCHIVED
from refold.engine.archives import Archives
from refold.engine.learning import decode, learn
from refold.engine.marks import Marks
from refold.log.port import Entry, Log, Record, Topic
from refold_projections.fold import (
    Armed,
    Facts,
    Mark,
    Orders,
    OrdersKept,
    ParkedCommand,
    PartitionFold,
    Position,
    RunStates,
    is_idle,
)
from refold_schemas.codec import Codec
from refold_schemas.errors import (
    EventsGone,
    OffsetOutOfRange,
    RefoldError,
    SchemaUnavailable,
    UndecodableRecord,
)
from refold_schemas.snapshots import Checkpoint, ParkedKept, RunSnapshot, RunSnapshotPart

READ_BYTES = 1 << 20
RUNS_AT_ONCE = 2_000
"""So many snapshots are read before others of the loop have their turn."""
LABELS_MAX = 16
"""Of so many snapshots of one run that may stand it is known that they have to be deleted."""
LARGE_BYTES = 64 * 1024
"""From this size on a snapshot is not written again at each checkpoint."""
TRIMMED_UNDER_US_MAX = 3
"""So often a reader begins again because the log was trimmed while it looked."""
PART_BYTES = 512 * 1024
"""A larger snapshot is cut into parts: no run is too large to have one."""


class Base(NamedTuple):
    """From where a fold goes on: a position, what the claims before it say, what is still owed."""

    position: Position
    facts: Facts
    orders: OrdersKept = OrdersKept()


class Large(NamedTuple):
    """The latest snapshot of a large run: its size, and the bytes of the run's log in it.

    None where it was written packed: nobody unpacks it to know.
    """

    size: int
    byte_count: int | None


def checkpoint_of(partition: int, base: Base) -> Checkpoint:
    """The record of a durable position. Every run's snapshot reaches up to it or beyond."""
    position, facts, orders = base
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
        published_to=orders.published_to,
        outbox=tuple(offset for offset in orders.outbox if offset >= orders.published_to),
        parked=tuple(ParkedKept(*one) for one in orders.parked),
    )


def base_of(checkpoint: Checkpoint) -> Base:
    """What `checkpoint_of` was given."""
    position = Position(
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
    facts = Facts(
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
    parked = tuple(
        ParkedCommand(one.offset, one.key, one.schema_id, one.since_ms, one.unknown_ms)
        for one in checkpoint.parked
    )
    orders = OrdersKept(checkpoint.published_to, tuple(checkpoint.outbox), parked)
    return Base(position, facts, orders)


def entries_of(
    codec: Codec, run_id: str, snapshot: bytes, label: str, size_max: int
) -> Iterator[Entry]:
    """A run's encoded snapshot as records, keyed `run_id/label`, or `run_id/label.part`.

    One record, or as many parts as `size_max` bytes go into it.
    """
    if len(snapshot) <= size_max:
        yield Entry(f"{run_id}/{label}".encode(), snapshot)
        return
    count = -(-len(snapshot) // size_max)
    for number in range(count):
        piece = snapshot[number * size_max : (number + 1) * size_max]
        part = RunSnapshotPart(run_id, number, count, piece)
        yield Entry(f"{run_id}/{label}.{number}".encode(), codec.encode(part))


class Kept:
    """The keys in `ns.snapshots` that stand: each is deleted once a newer one stands in its place.

    No key is written twice (`label`): a copy of an older write that is stored late, or one whose
    answer was lost, would else replace a newer snapshot, and the run would fall back behind the
    position. Kept are the ends of the keys, which many runs share.
    """

    def __init__(self) -> None:
        self.snapshots: dict[str, tuple[str, ...]] = {}
        self.checkpoints: list[bytes] = []
        self.large: dict[str, Large] = {}
        """Of the runs whose latest snapshot is large."""
        self._count = 0
        self._labels: dict[str, tuple[str, ...]] = {}

    def stands(self, run_id: str, label: str) -> None:
        """A record of the run's stands under this label."""
        before = self.snapshots.get(run_id)
        self.snapshots[run_id] = self._alone(label) if before is None else (*before, label)

    def is_gone(self, run_id: str, label: str) -> None:
        """It was deleted already; logs keep what was deleted for a while."""
        before = self.snapshots.get(run_id)
        if before is not None and label in before:
            left = tuple(other for other in before if other != label)
            if left:
                self.snapshots[run_id] = left
            else:
                del self.snapshots[run_id]

    def label(self, claim_id: bytes) -> str:
        """The end of the keys of the next checkpoint of this claim."""
        self._count += 1
        return f"{claim_id.hex()}.{self._count}"

    def failed(self, tried: Iterable[str], label: str) -> None:
        """Snapshots of these runs may stand; nobody needs them, a later one deletes them.

        Of more than `LABELS_MAX` for one run the next owner knows, who reads them all.
        """
        if len(self.checkpoints) < LABELS_MAX:
            self.checkpoints.append(f"/{label}".encode())
        for run_id in tried:
            if len(self.snapshots.get(run_id, ())) < LABELS_MAX:
                self.stands(run_id, label)

    def replaced(self, written: Iterable[tuple[str, int]], label: str) -> list[bytes]:
        """Keys that are not needed any more, now that these runs and the position were written.

        `written` has for each run of how many records its snapshot is.
        """
        # The position first: whoever still reads it has read the snapshots that it needs.
        keys = self.checkpoints
        self.checkpoints = [f"/{label}".encode()]
        for run_id, count in written:
            keys += (f"{run_id}/{old}".encode() for old in self.snapshots.get(run_id, ()))
            self.snapshots[run_id] = (
                self._alone(label) if count == 1 else tuple(f"{label}.{i}" for i in range(count))
            )
        return keys

    def _alone(self, label: str) -> tuple[str, ...]:
        return self._labels.setdefault(label, (label,))


class Restored(NamedTuple):
    """What was read: a fold at a checkpoint (or at the start), its keys, and who needs what next.

    `base` is where the fold begins. Of the runs that are packed in the fold: their timers
    (`armed`), and those that need somebody now (`active`). `archives`: what is in files.
    """

    fold: PartitionFold
    base: Base
    kept: Kept
    armed: list[Armed]
    active: list[str]
    archives: Archives


class _Found(NamedTuple):
    """A run's newest snapshot, and what of it is needed unpacked: no more, there are many."""

    mark: Mark
    value: bytes
    idle: bool
    armed: tuple[Armed, ...]
    label: str


class _Stored:
    """What stands in `ns.snapshots`, read in order."""

    def __init__(self, codec: Codec) -> None:
        self.kept = Kept()
        self.checkpoints: dict[bytes, Checkpoint] = {}
        self.newest: dict[str, _Found] = {}
        self.large: dict[str, Large] = {}
        self.archives = Archives(codec)
        self.unreadable: set[bytes] = set()
        """Keys of snapshots that cannot be read: nobody knows whether a position counts on them."""
        self.unknown: SchemaUnavailable | None = None
        """Why, where a record was left aside for a schema that nobody has."""
        self._codec = codec
        self._parts: dict[tuple[str, str], dict[int, bytes]] = {}
        self._claims: dict[bytes, bytes] = {}

    def add(self, run_id: str, label: str, key: bytes, value: bytes | None) -> None:
        """Take one record in. After SchemaUnavailable the same one may be given again."""
        if not run_id and label.startswith(ARCHIVED):
            self.archives.add(label, value)
            return
        if value is None:
            self._deleted(run_id, label, key)
            return
        try:
            stored = self._codec.decode(value)
        except UndecodableRecord:  # of another version, or damaged
            self.cannot_read(run_id, label, key)
            return
        if isinstance(stored, Checkpoint):
            self.checkpoints[key] = stored
        elif isinstance(stored, RunSnapshotPart):
            self._part(run_id, label, key, stored)
        elif isinstance(stored, RunSnapshot):
            self._snapshot(run_id, label, value, stored)
        if run_id:
            self.kept.stands(run_id, label)

    def cannot_read(self, run_id: str, label: str, key: bytes) -> None:
        """Note a record that nobody can read: it stands, and may have been needed."""
        if run_id:
            self.unreadable.add(key)
            self.kept.stands(run_id, label)
            self._replaced(run_id, label)
        elif label.startswith(ARCHIVED):
            self.archives.cannot_read(label, self.unknown)

    def _replaced(self, run_id: str, label: str) -> None:
        """A later record of the same key stands, whether or not the cleaner was there already."""
        found = self.newest.get(run_id)
        if found is not None and found.label in (label, label.rpartition(".")[0]):
            del self.newest[run_id]

    def _deleted(self, run_id: str, label: str, key: bytes) -> None:
        if run_id:
            self.kept.is_gone(run_id, label)
            self.unreadable.discard(key)
            self._replaced(run_id, label)
        else:
            self.checkpoints.pop(key, None)

    def _part(self, run_id: str, label: str, key: bytes, part: RunSnapshotPart) -> None:
        name = (run_id, label.rpartition(".")[0])
        parts = self._parts.setdefault(name, {})
        parts[part.part] = part.body
        if len(parts) < part.part_count:
            return  # if the rest never comes, its writer died: no position counts on it
        value = b"".join(parts[number] for number in sorted(parts))
        try:
            snapshot = self._codec.decode(value)
        except UndecodableRecord:
            self.unreadable.add(key)
            return
        del self._parts[name]
        if isinstance(snapshot, RunSnapshot):
            self._snapshot(run_id, name[1], value, snapshot)

    def _snapshot(self, run_id: str, label: str, value: bytes, snapshot: RunSnapshot) -> None:
        other = self.newest.get(run_id)
        if snapshot.run_id != run_id or (other and snapshot.offset < other.mark.offset):
            return
        # Thousands of runs share a claim and the names of their timers: one object for all of them.
        claim_id = self._claims.setdefault(snapshot.record_claim_id, snapshot.record_claim_id)
        armed: tuple[Armed, ...] = ()
        if snapshot.timers:
            armed = tuple(
                [
                    Armed(timer.deadline_ms, run_id, sys.intern(timer.timer_id), timer.generation)
                    for timer in snapshot.timers
                ]
            )
        mark = Mark(snapshot.offset, claim_id, snapshot.record_n)
        self.newest[run_id] = _Found(mark, value, is_idle(snapshot), armed, label)
        if len(value) >= LARGE_BYTES:
            self.large[run_id] = Large(len(value), snapshot.byte_count)
        elif other:
            self.large.pop(run_id, None)


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
        stored = await _read_stored(log, partition, codec, keep)
        start, _ = await log.bounds(Topic.EVENTS, partition)
        try:
            return await _Restoring(log, partition, codec, keep, stored, start).best()
        except OffsetOutOfRange as error:
            gone = error  # trimmed while we looked: behind a newer checkpoint
    raise gone


async def archives_of(log: Log, partition: int, codec: Codec) -> Archives:
    """What was archived of a partition; nothing else of its snapshots is looked at."""
    return (await _read_stored(log, partition, codec, lambda _: False)).archives


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


async def _read_stored(
    log: Log, partition: int, codec: Codec, keep: Callable[[str], bool] | None
) -> _Stored:
    stored = _Stored(codec)
    read = 0
    async for records in _all(log, partition):
        for _, key, value, _, _ in records:
            run_id, _, label = (key or b"").decode("utf-8", "replace").rpartition("/")
            if not run_id or keep is None or keep(run_id):
                try:
                    stored.add(run_id, label, key or b"", value)
                except SchemaUnavailable as unknown:
                    await _learn_and_add(stored, unknown, codec, run_id, label, key or b"", value)
        read += len(records)
        if read >= RUNS_AT_ONCE:
            read = 0
            await asyncio.sleep(0)
    stored.kept.checkpoints = list(stored.checkpoints)
    return stored


async def _learn_and_add(
    stored: _Stored,
    unknown: SchemaUnavailable,
    codec: Codec,
    run_id: str,
    label: str,
    key: bytes,
    value: bytes | None,
) -> None:
    """Ask for the schema of a snapshot; one that nobody has is left aside.

    That is no reason to stop as long as the log is whole.
    """
    while True:  # a part may complete a snapshot under another schema: two turns at most
        try:
            await learn(codec, unknown)
            stored.add(run_id, label, key, value)
            return
        except SchemaUnavailable as still:
            if not still.mends:
                stored.unknown = still
                stored.cannot_read(run_id, label, key)
                return
            if still.schema_id == unknown.schema_id:
                raise
            unknown = still


class _Restoring:
    """Chooses where a fold begins. The log begins at `start`."""

    def __init__(
        self,
        log: Log,
        partition: int,
        codec: Codec,
        keep: Callable[[str], bool] | None,
        stored: _Stored,
        start: int,
    ) -> None:
        self._log, self._partition, self._codec, self._keep = log, partition, codec, keep
        self._stored, self._start = stored, start

    async def best(self) -> Restored:
        """See `load`."""
        stored = self._stored
        if not stored.unreadable:
            found = stored.checkpoints.values()
            for checkpoint in sorted(found, key=lambda c: c.offset_next, reverse=True):
                if checkpoint.redo_offset == checkpoint.offset_next and await self._stands(
                    checkpoint
                ):
                    restored, refused = await self._restore(base_of(checkpoint))
                    if not refused:
                        return restored
                    break
        if self._start == 0:
            return self._nothing()
        return await self._behind_the_archive()

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
        needed = stored.archives.runs_before(self._start)
        if base is None or needed is None:
            raise self._gone(unreadable | self._unended())
        restored, _ = await self._restore(base)
        known = restored.fold.marks.keys() - unreadable  # an older snapshot may lack what is gone
        missing = {r for r in needed if r not in known and (self._keep is None or self._keep(r))}
        if missing:
            raise self._gone(missing)
        return restored

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


async def _all(log: Log, partition: int) -> AsyncIterator[Sequence[Record]]:
    """Every record, in pieces, up to the end, also what was appended meanwhile.

    Where a key was deleted while we read, what replaces it stands before the end that we reach.
    """
    offset, end = await log.bounds(Topic.SNAPSHOTS, partition)
    while offset < end:
        while offset < end:
            records = await log.read(Topic.SNAPSHOTS, partition, offset, size_max=READ_BYTES)
            if not records:
                break
            yield records
            offset = records[-1].offset + 1
        offset = max(offset, end)
        _, end = await log.bounds(Topic.SNAPSHOTS, partition)
