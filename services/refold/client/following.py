"""A run's records as they come: one reader for each partition, however many follow its runs.

Whoever follows gets what is stored already, then what is appended, without a gap and without a
copy. What a follower has not taken yet waits in its queue, which has an end: one that is too slow
is cut off, and may go on behind the last record that it got. Nobody waits for it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

from refold.client.history import HistoryRecord, history_record
from refold.client.judged import position_at
from refold.engine import checkpoints
from refold.log import Log, Record, Topic
from refold_projections.fold import Position, Verdict, judge
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.errors.cli import ClientClosed
from refold_schemas.errors.log import LogUnavailable

READ_SIZE_MAX = 4 << 20
WAIT_MS = 1_000
PAUSE_S = 0.5
"""How long the reader rests while the log does not answer."""
OUTAGE_S = 30.0
"""After so long without an answer those who follow are told."""


class FollowerTooSlow(Exception):
    """More waited for a follower than may; what it has not got stands in the log."""


class Told(NamedTuple):
    """A record with the claim rule's word on it."""

    record: Record
    header: RecordHeader | None
    verdict: Verdict


class _Follower:
    """The queue of one who follows: so many records, so many bytes."""

    def __init__(self, key: bytes, count_max: int, size_max: int) -> None:
        self.key, self._count_max, self._size_max = key, count_max, size_max
        self._waiting: deque[Told] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self.problem: Exception | None = None

    def put(self, told: Told) -> None:
        """Add a record; one too many ends it."""
        if self.problem is not None:
            return
        self._size += len(told.record.value or b"")
        self._waiting.append(told)
        if len(self._waiting) > self._count_max or self._size > self._size_max:
            self._waiting.clear()
            self.end(FollowerTooSlow(f"{self._count_max} records waited for it"))
        self._wake.set()

    def end(self, problem: Exception) -> None:
        """No more will come; what waits is still handed out."""
        self.problem = self.problem or problem
        self._wake.set()

    async def take(self) -> Told:
        """The next one. Raises what it was ended with."""
        while not self._waiting:
            if self.problem is not None:
                raise self.problem
            self._wake.clear()
            await self._wake.wait()
        told = self._waiting.popleft()
        self._size -= len(told.record.value or b"")
        return told


class PartitionFeed:
    """Reads one partition on while somebody follows a run of it."""

    def __init__(self, log: Log, codec: Codec, partition: int) -> None:
        self._log, self._codec, self._partition = log, codec, partition
        self._followers: dict[bytes, set[_Follower]] = {}
        self._position: Position | None = None
        self._task: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._closed = False

    async def follow(
        self, run_id: str, *, after: int | None, count_max: int, size_max: int
    ) -> AsyncGenerator[HistoryRecord, None]:
        """The run's records behind the offset `after` (None: all), and those to come; claims too.

        It ends only with an error: FollowerTooSlow, ClientClosed, what the log raises, or with its
        caller. Of the claims that are stored already only the last one before each record of the
        run is told.
        """
        key = run_id.encode()
        follower = _Follower(key, count_max, size_max)
        begin = await self._join(follower)
        try:
            claim: Told | None = None
            begun = after is not None
            async for told in self._stored(after, begin.offset_next):
                if told.verdict is Verdict.CLAIM:
                    claim = told
                elif told.record.key == key:
                    if claim is not None and begun:
                        yield await self._shown(claim)
                    claim, begun = None, True
                    yield await self._shown(told)
            if claim is not None and begun:
                yield await self._shown(claim)
            while True:
                yield await self._shown(await follower.take())
        finally:
            self._leave(follower)

    async def close(self) -> None:
        """Stop reading; those who follow get ClientClosed behind what waits for them."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._end(ClientClosed())

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    async def _shown(self, told: Told) -> HistoryRecord:
        record, header, verdict = told
        return await history_record(self._codec, self._partition, record, header, verdict)

    async def _join(self, follower: _Follower) -> Position:
        """From where on the follower's queue is filled. Raises what the log raises."""
        async with self._beginning:
            self._check_open()
            if self._task is None or self._task.done() or self._position is None:
                # Nobody reads: begin at the newest checkpoint, the rest of the way is short.
                restored = await checkpoints.load(
                    self._log, self._partition, self._codec, keep=lambda _: False
                )
                position = restored.fold.position
                _, end = await self._log.bounds(Topic.EVENTS, self._partition)
                while position.offset_next < end:
                    position, found = await self._read(position)
                    if not found:
                        break  # the rest are holes
                    await asyncio.sleep(0)
                self._check_open()  # closed meanwhile: nobody would end the task
                self._position = position
                self._task = asyncio.create_task(self._run(), name=f"feed-{self._partition}")
            # No await between these: the reader cannot get ahead of the position that is returned.
            self._followers.setdefault(follower.key, set()).add(follower)
            return self._position

    def _leave(self, follower: _Follower) -> None:
        found = self._followers.get(follower.key, set())
        found.discard(follower)
        if not found:
            self._followers.pop(follower.key, None)

    async def _read(self, position: Position) -> tuple[Position, list[Told]]:
        """What stands behind a position, as much as one read gives."""
        records = await self._log.read(
            Topic.EVENTS, self._partition, position.offset_next, size_max=READ_SIZE_MAX
        )
        found: list[Told] = []
        for record in records:
            header = RecordHeader.read(record.header)
            position, verdict = judge(position, record.offset, header)
            found.append(Told(record, header, verdict))
        return position, found

    async def _stored(self, after: int | None, end: int) -> AsyncIterator[Told]:
        """What stands behind `after` and before `end`."""
        position = await self._start(after)
        while position.offset_next < end:
            position, found = await self._read(position)
            if not found:
                return  # the rest are holes
            for told in found:
                if told.record.offset >= end:
                    return
                if after is None or told.record.offset > after:
                    yield told
            await asyncio.sleep(0)

    async def _start(self, after: int | None) -> Position:
        """A position at or before `after`: a checkpoint if it is, else where the log begins."""
        log, partition, codec = self._log, self._partition, self._codec
        if after is not None:
            restored = await checkpoints.load(log, partition, codec, keep=lambda _: False)
            if restored.fold.position.offset_next <= after + 1:
                return restored.fold.position
        start, end = await log.bounds(Topic.EVENTS, partition)
        return await position_at(log, codec, partition, start, end)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failing_s: float | None = None
        while self._followers:
            position = self._position
            assert position is not None
            try:
                offset = position.offset_next
                if not await self._log.wait(
                    Topic.EVENTS, self._partition, offset, timeout_ms=WAIT_MS
                ):
                    continue
                position, found = await self._read(position)
            except LogUnavailable as error:
                failing_s = loop.time() if failing_s is None else failing_s
                if loop.time() - failing_s < OUTAGE_S:
                    await asyncio.sleep(PAUSE_S)
                    continue
                self._end(error)
                return
            except Exception as error:  # whoever follows must hear of it
                self._end(error)
                return
            failing_s = None
            self._position = position
            for told in found:
                if told.verdict is Verdict.CLAIM:
                    for everybody in self._followers.values():
                        for follower in everybody:
                            follower.put(told)
                elif told.record.key is not None:
                    for follower in self._followers.get(told.record.key, ()):
                        follower.put(told)
            if not found:
                await asyncio.sleep(0.01)  # only holes
        self._position = None

    def _end(self, error: Exception) -> None:
        self._position = None
        for everybody in self._followers.values():
            for follower in everybody:
                follower.end(error)
