"""Archives one partition: file, its record in the log, and only then the deletion.

Whoever dies in between has lost nothing: a file without a record is written again, and a record
without a deletion names what the log still holds. Source: docs/adr/0022.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

from refold.engine import checkpoints
from refold.engine.archives import key_of
from refold.engine.bases import Base, checkpoint_of
from refold.engine.checkpoints import Restored, base_behind
from refold.engine.trimming import commands_trimmable, events_trimmable
from refold.log.port import Entry, Log, Record, Topic
from refold_projections.fold import Orders, PartitionFold
from refold_projections.fold.learning import learn_and_fold
from refold_schemas.codec import Codec
from refold_schemas.errors import AppendUnknown, SchemaUnavailable
from refold_schemas.snapshots import Archived, Checkpoint
from refold_tools.archive.errors import ArchiveRefused
from refold_tools.archive.files import ArchiveFile, Header, Writer

READ_BYTES = 4 << 20
FILE_RECORDS_MAX = 1_000_000
FILE_RUNS_BYTES_MAX = 512 * 1024
"""The ids of a file's runs are in one record of `ns.snapshots`."""
APPEND_S = 30.0
FILES_MAX = 10_000
"""So many files at most are made of one partition in one go."""


class Plan(NamedTuple):
    """What to archive. Times in milliseconds since 1970 UTC.

    Events of runs that ended before `before_ms`, commands appended before `commands_before_ms`.
    `past_live`: go on beyond live runs, as far as their snapshots reach. `dry`: only say it.
    """

    folder: Path
    before_ms: int
    commands_before_ms: int
    past_live: bool = False
    dry: bool = False


class Report(NamedTuple):
    """What was done, or would be. `held_by` is the run that keeps the events behind it, if any."""

    partition: int
    events_from: int
    events_next: int
    record_count: int
    run_count: int
    files: tuple[ArchiveFile, ...]
    held_by: str | None
    commands_from: int
    commands_next: int


class _Stretch(NamedTuple):
    """What one file would hold."""

    offset_next: int
    record_count: int
    runs: frozenset[str]
    file: ArchiveFile | None
    more: bool


class Archiving:
    """Archives partitions of one log. Any number of workers may serve it meanwhile."""

    def __init__(self, log: Log, codec: Codec, plan: Plan) -> None:
        self._log, self._codec, self._plan = log, codec, plan
        self.held_by: str | None = None
        self._over: dict[str, bool] = {}
        self._ready = False

    async def partition(self, partition: int) -> Report:
        """Archive what may go of one partition. What it writes is made ready first (a registry).

        Raises ArchiveUnwritable, ArchiveRefused, EventsGone, SchemaUnavailable, and what the log
        and `Codec.ready` raise; then nothing was deleted that is not in a file which was read back.
        """
        if not self._ready and not self._plan.dry:
            await self._codec.ready(Archived, Checkpoint)
            self._ready = True
        restored = await checkpoints.load(self._log, partition, self._codec)
        start, _ = await self._log.bounds(Topic.EVENTS, partition)
        self.held_by, self._over = None, {}
        offset, count = start, 0
        runs: set[str] = set()
        files: list[ArchiveFile] = []
        limit = events_trimmable(restored.base)
        reader = PartitionFold(self._codec, keep=lambda _: False)
        if limit > start:
            base = await self._base_at(partition, start, restored)
            reader.position, reader.facts = base.position, base.facts
            # Whatever had to be sent and stands before the limit was sent.
            reader.orders = Orders(base.orders._replace(published_to=limit, outbox=()))
        while offset < limit and len(files) < FILES_MAX:
            stretch = await self._copy(partition, offset, limit, reader, restored)
            if stretch is None:
                break
            offset, count = stretch.offset_next, count + stretch.record_count
            runs |= stretch.runs
            if stretch.file is not None:
                files.append(stretch.file)
            if not stretch.more:
                break
        commands = await self._commands(partition, restored.base)
        return Report(
            partition, start, offset, count, len(runs), tuple(files), self.held_by, *commands
        )

    async def _base_at(self, partition: int, start: int, restored: Restored) -> Base:
        """Where a reader of the whole log would stand before `start`."""
        nothing = PartitionFold(self._codec)
        if start == 0:
            return Base(nothing.position, nothing.facts)
        base = await base_behind(restored.archives, self._codec, start)
        if base is None:
            raise ArchiveRefused(partition, start)
        return base

    async def _copy(
        self, partition: int, start: int, limit: int, reader: PartitionFold, restored: Restored
    ) -> _Stretch | None:
        """One file's worth from `start` on: copied, told to the log, and deleted there."""
        base = self._encoded(partition, reader)
        facts = self._log.facts
        header = Header(
            facts.namespace, partition, facts.partition_count, facts.topic_ids, start, base
        )
        writer = None if self._plan.dry else Writer(self._plan.folder, header)
        try:
            return await self._fill(writer, partition, start, limit, reader, restored)
        finally:
            if writer is not None:
                writer.drop()

    async def _fill(
        self,
        writer: Writer | None,
        partition: int,
        start: int,
        limit: int,
        reader: PartitionFold,
        restored: Restored,
    ) -> _Stretch | None:
        runs: set[str] = set()
        offset, count, runs_bytes = start, 0, 0
        more, going = False, True
        while going and offset < limit:
            records = await self._log.read(Topic.EVENTS, partition, offset, size_max=READ_BYTES)
            if not records:
                break
            for record in records:
                full = count >= FILE_RECORDS_MAX or runs_bytes >= FILE_RUNS_BYTES_MAX
                if record.offset >= limit or full or not self._may_go(record, restored):
                    going, more = False, full
                    break
                if record.key is not None:
                    run_id = record.key.decode("utf-8", "replace")
                    # One that is not known has refusals there at most, and no snapshot.
                    if run_id not in runs and run_id in restored.fold.runs:
                        runs.add(run_id)
                        runs_bytes += len(record.key) + 2
                try:
                    reader.apply(record)
                except SchemaUnavailable as unknown:
                    await learn_and_fold(reader, record, unknown)
                if writer is not None:
                    writer.add(record)
                count += 1
                offset = record.offset + 1
            await asyncio.sleep(0)
        if not count:
            return None
        file = None
        if writer is not None:
            file = writer.finish(offset)
            await self._tell(partition, start, file, runs, reader)
            await self._log.trim(Topic.EVENTS, partition, offset)
        return _Stretch(offset, count, frozenset(runs), file, more)

    def _may_go(self, record: Record, restored: Restored) -> bool:
        """Whether nobody needs the record in the log: its run is over, long enough ago."""
        if record.append_ms >= self._plan.before_ms:
            return False
        if record.key is None or self._plan.past_live:
            return True
        run_id = record.key.decode("utf-8", "replace")
        over = self._over.get(run_id)
        if over is None:
            # Of one that is not known nothing counts: its start was refused, or never stored.
            state = restored.fold.runs.get(run_id)
            over = state is None or (
                state.ended is not None and state.ended.at_ms < self._plan.before_ms
            )
            self._over[run_id] = over
        if not over:
            self.held_by = run_id
        return over

    async def _tell(
        self,
        partition: int,
        start: int,
        file: ArchiveFile,
        runs: set[str],
        reader: PartitionFold,
    ) -> None:
        """Write down what the file holds: from now on the log may begin behind it."""
        archived = Archived(
            partition,
            start,
            file.offset_next,
            file.record_count,
            file.path.name,
            file.sha256,
            tuple(sorted(runs)),
            self._encoded(partition, reader),
        )
        entry = Entry(key_of(file.offset_next), self._codec.encode(archived))
        async with asyncio.timeout(APPEND_S):
            ack = await self._log.append(Topic.SNAPSHOTS, partition, [entry])
        if ack.stored_at is None:
            told = f"it was acknowledged with offset {ack.offset}"
            raise AppendUnknown(topic=Topic.SNAPSHOTS.value, partition=partition, reason=told)

    def _encoded(self, partition: int, reader: PartitionFold) -> bytes:
        """The framed position of the reader, with the commands that were parked there."""
        # No further than it has read: what is behind that, another log might hold otherwise.
        kept = reader.orders.kept()._replace(published_to=reader.position.offset_next)
        base = Base(reader.position, reader.facts, kept)
        return self._codec.encode(checkpoint_of(partition, base))

    async def _commands(self, partition: int, base: Base) -> tuple[int, int]:
        """Delete commands that were decided, and appended long enough ago: from, and up to."""
        start, _ = await self._log.bounds(Topic.COMMANDS, partition)
        limit = await commands_trimmable(self._log, self._codec, partition, base)
        offset = await self._first_since(partition, start, limit)
        if offset > start and not self._plan.dry:
            await self._log.trim(Topic.COMMANDS, partition, offset)
        return start, offset

    async def _first_since(self, partition: int, offset: int, limit: int) -> int:
        while offset < limit:
            records = await self._log.read(Topic.COMMANDS, partition, offset, size_max=READ_BYTES)
            if not records:
                return limit  # only holes
            for record in records:
                if record.offset >= limit:
                    return limit
                if record.append_ms >= self._plan.commands_before_ms:
                    return record.offset
            offset = records[-1].offset + 1
        return offset


__all__ = ["Archiving", "Plan", "Report"]
