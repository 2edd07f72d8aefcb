"""One partition of the log, followed into the tables of one set."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from refold.engine.marks import Marks
from refold.log import Log, Record, Topic
from refold.projector.seeding import seed
from refold.projector.settings import ProjectorSettings, Tell, event
from refold.projector.stats import ProjectorStats
from refold_projections.fold import Applied, Mark
from refold_projections.tables.book import Rows
from refold_projections.tables.database import Pool, is_refused, told
from refold_projections.tables.following import At, Following
from refold_projections.tables.shapes import TABLES
from refold_projections.tables.store import Store, Token
from refold_schemas.codec.learning import learn
from refold_schemas.errors import OffsetOutOfRange, SchemaUnavailable
from refold_schemas.errors.tables import LogShorterThanTables, RowRefused, TablesBehindLog

FOLD_AT_ONCE = 250
"""So many records are folded before others of the loop have their turn."""
STATE_BYTES = 2_000
"""What a run's state takes beside what stands in its events, about."""

Observe = Callable[[int, Sequence[Applied]], None]
"""Told of each batch once it is in the tables: the partition, and what its records were."""


class Progress(NamedTuple):
    """How far a partition is: the next offset, and the log's end when it was looked at last."""

    offset_next: int
    log_end: int

    @property
    def lag(self) -> int:
        """Records that are not in the tables yet."""
        return max(0, self.log_end - self.offset_next)


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel them and wait for their end, whatever it is.

    Not by awaiting one and passing over its CancelledError: ours would be lost with it (F39).
    """
    for one in tasks:
        one.cancel()
    await asyncio.wait(tasks)
    for one in tasks:
        if not one.cancelled():
            one.exception()  # somebody has looked at it


class PartitionProjector:
    """Follows one partition until it is stopped; what it raises says why it cannot go on.

    Nothing in memory is needed to go on: whoever starts next reads the rows. While one batch is on
    its way to Postgres the next one is folded.
    """

    def __init__(
        self,
        log: Log,
        partition: int,
        store: Store,
        pool: Pool,
        writer: bytes,
        settings: ProjectorSettings,
        *,
        share: Callable[[], int] = lambda: 1,
        tell: Tell = lambda _: None,
        observe: Observe | None = None,
        stats: ProjectorStats | None = None,
    ) -> None:
        """`share`: among how many partitions the memory is divided; `stats`: where it counts."""
        self._log, self._partition, self._store, self._pool = log, partition, store, pool
        self._writer, self._settings, self._share = writer, settings, share
        self._tell, self._observe = tell, observe
        self._following = Following(store.codec, partition)
        self._token = Token(writer, 0)
        self._writing: asyncio.Task[None] | None = None
        self._recent: dict[str, int] = {}
        """Runs in memory by when they were touched last, with about what they take."""
        self._bytes = 0
        self.progress = Progress(0, 0)
        self._stats = stats or ProjectorStats()
        self._looked_s = 0.0
        self.generation = 0
        """That of the live set, as the last batch saw it."""

    # ---- from the rows

    async def load(self) -> None:
        """Read back where the rows are, and begin them where there are none.

        Raises LogShorterThanTables, TablesBehindLog; Superseded where somebody begins just now.
        """
        async with self._pool.connection() as connection:
            found = await self._store.position(connection, self._partition)
            if found is None:
                self._token = Token(self._writer, 0)
                at, count = await seed(
                    connection, self._store, self._log, self._partition, self._token
                )
                if count:
                    text = f"{count} run(s) from snapshots: their events are archived"
                    self._tell(event("seeded", self._partition, text))
            else:
                at, self._token = found
            open_runs = await self._store.open_runs(connection, self._partition)
        await self._check(at)
        self._following = Following(self._store.codec, self._partition, at)
        self._following.open_runs = open_runs
        self._recent, self._bytes = {}, 0

    async def _check(self, at: At) -> None:
        """The log still holds what the rows were made from."""
        position = at.position
        start, end = await self._log.bounds(Topic.EVENTS, self._partition)
        if end < position.offset_next:
            raise LogShorterThanTables(self._partition, position.offset_next, f"it ends at {end}")
        if position.offset_next < start:
            raise TablesBehindLog(self._partition, position.offset_next, start)
        if position.last_offset >= start:
            last = Mark(position.last_offset, position.last_claim_id, position.last_n)
            if last.n >= 0 and not await Marks(self._log, self._partition).stands(last):
                raise LogShorterThanTables(
                    self._partition,
                    position.offset_next,
                    f"at offset {last.offset} stands another record than was applied",
                )
        self.progress = Progress(position.offset_next, end)

    # ---- following

    async def follow(
        self, stopping: asyncio.Event, *, until: int | None = None, wait: bool = True
    ) -> None:
        """Apply records as they come, until `stopping` is set; what was begun is written.

        With `until` it ends once everything before that offset is applied; without `wait` at the
        log's end. Raises Superseded, and whatever log and database raise.
        """
        try:
            while not stopping.is_set():
                offset = self._following.fold.position.offset_next
                if until is not None and offset >= until:
                    break
                try:
                    records = await self._log.read(
                        Topic.EVENTS,
                        self._partition,
                        offset,
                        size_max=self._settings.read_bytes_max,
                    )
                except OffsetOutOfRange as error:
                    raise TablesBehindLog(self._partition, offset, error.start) from error
                if records:
                    await self._apply(records, stopping, until)
                    await self._look_now_and_then()
                    continue
                await self._written()
                end = await self.look_at_end()
                if end > offset:  # the rest are holes
                    if until is not None or not wait:
                        break
                elif not wait:
                    break
                await self._wait(max(offset, end), stopping)
            await self._written()
        finally:
            await self._drop()

    async def look_at_end(self) -> int:
        """Where the log ends now. Raises LogShorterThanTables where that is before our position."""
        _, end = await self._log.bounds(Topic.EVENTS, self._partition)
        offset = self._following.fold.position.offset_next
        if end < offset:
            raise LogShorterThanTables(self._partition, offset, f"it ends at {end}")
        self.progress = Progress(offset, end)
        return end

    async def _look_now_and_then(self) -> None:
        """Look where the log ends while it is being read: else who never catches up has no lag."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._settings.look_every_s:
            return
        self._looked_s = now_s
        _, end = await self._log.bounds(Topic.EVENTS, self._partition)
        self.progress = Progress(self.progress.offset_next, max(end, self.progress.log_end))

    async def _wait(self, offset: int, stopping: asyncio.Event) -> None:
        waiting = asyncio.ensure_future(
            self._log.wait(Topic.EVENTS, self._partition, offset, timeout_ms=self._settings.wait_ms)
        )
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            await _ended(waiting, stopped)

    async def _apply(
        self, records: Sequence[Record], stopping: asyncio.Event, until: int | None
    ) -> None:
        size = self._settings.batch_events_max
        for first in range(0, len(records), size):
            chunk = records[first : first + size]
            if until is not None and chunk[-1].offset >= until:
                chunk = [one for one in chunk if one.offset < until]
            if not chunk or stopping.is_set():
                return
            await self._batch(chunk)

    async def _batch(self, chunk: Sequence[Record]) -> None:
        following = self._following
        lacking = following.lacks(chunk)
        if lacking:
            async with self._pool.connection() as connection:
                following.take_back(await self._store.runs(connection, self._partition, lacking))
        seen: list[Applied] = []
        for at, record in enumerate(chunk):
            if at % FOLD_AT_ONCE == FOLD_AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                applied = following.apply(record)
            except SchemaUnavailable as unknown:
                applied = await self._learn(record, unknown)
            if self._observe is not None:
                seen.append(applied)
        owed = following.owes()
        if owed:
            async with self._pool.connection() as connection:
                following.take_back(await self._store.runs(connection, self._partition, owed))
        rows = following.rows()
        shown = following.shown
        await self._written()
        following.forget(lacking.difference(shown))  # read back, and not touched after all
        self._forget(shown)
        before, after = self._token, Token(self._writer, self._token.batch + 1)
        self._token = after
        work = self._write(rows, following.at, before, after, len(chunk), seen)
        self._writing = asyncio.create_task(work)
        # Its first statement leaves now, not when the next records are folded.
        await asyncio.sleep(0)

    async def _learn(self, record: Record, unknown: SchemaUnavailable) -> Applied:
        """Learn the record's schema and fold it. Raises SchemaUnavailable while nobody says."""
        try:
            await learn(self._store.codec, unknown)
        except SchemaUnavailable as still:
            if still.mends:
                raise
            return self._following.apply(record, unknown=still)
        return self._following.apply(record)

    async def _write(
        self,
        rows: Rows,
        at: At,
        before: Token,
        after: Token,
        count: int,
        seen: Sequence[Applied],
    ) -> None:
        end = max(self.progress.log_end, at.position.offset_next)
        async with self._pool.connection() as connection:
            began_s = time.monotonic()
            try:
                self.generation = await self._store.put(
                    connection, self._partition, rows, at, before, after, end
                )
            except Exception as error:
                if is_refused(error):
                    raise RowRefused(
                        self._partition, at.position.offset_next, told(error)
                    ) from error
                raise
        self.progress = Progress(at.position.offset_next, max(end, self.progress.log_end))
        counts = ((table, len(getattr(rows, table))) for table in TABLES)
        self._stats.batch(count, time.monotonic() - began_s, counts)
        if self._observe is not None:
            self._observe(self._partition, seen)

    async def _written(self) -> None:
        """Wait for the batch that is under way."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def _drop(self) -> None:
        """Let the batch under way end, whatever its end: the rows will tell."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await _ended(writing)

    def _forget(self, changed: Sequence[str]) -> None:
        """Let the runs go that were idle longest; all but the changed ones are written by now."""
        fold = self._following.fold
        for run_id in changed:
            self._bytes -= self._recent.pop(run_id, 0)
            size = STATE_BYTES + 3 * fold.runs[run_id].byte_count
            self._recent[run_id] = size
            self._bytes += size
        size_max = self._settings.memory_bytes_max // max(1, self._share())
        if self._bytes <= size_max:
            return
        going: list[str] = []
        newest = set(changed)
        for run_id, size in self._recent.items():
            if self._bytes <= size_max:
                break
            if run_id not in newest:
                going.append(run_id)
                self._bytes -= size
        for run_id in going:
            del self._recent[run_id]
        self._following.forget(going)
