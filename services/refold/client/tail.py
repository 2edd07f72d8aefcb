"""Follows one partition of `ns.events` for everybody who waits in this process, at headers' cost.

The claim rule needs headers only. Of the bodies only those are decoded that somebody waits for: a
decision (it carries its `command_id`) and the end of a run. So one reader serves any number of
handles and costs next to nothing beside the owner that writes what it reads.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from refold.engine import checkpoints
from refold.log import Log, Record, Topic
from refold_projections.fold import Cancel, Ended, Position, Verdict, judge
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.codec.learning import learn
from refold_schemas.errors import RefoldError, SchemaUnavailable, UndecodableRecord
from refold_schemas.errors.cli import ClientClosed
from refold_schemas.errors.log import (
    LogClosed,
    LogCorrupted,
    LogForeign,
    LogMissing,
    LogShorter,
    LogUnavailable,
    OffsetOutOfRange,
)
from refold_schemas.events import (
    CommandRejected,
    FindingRecorded,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    StepResolved,
)

PACE_S = 0.002
"""How long the tail rests after a read that had nothing for anybody."""
WAIT_MS = 1_000
"""How long one wait for new records lasts before the tail looks whether it is still needed."""
LOOK_S = 5.0
"""How often a tail to which nothing comes looks whether the log still holds what it has read."""
OUTAGE_MS = 30_000
"""How long reads may fail in a row before those who wait are told."""
READ_SIZE_MAX = 4 << 20
REST_S = 10.0
"""One that was not used for so long asks where the log begins before it goes on. Not each time: a
caller that sends one command after the other would pay for it with each."""

DECISIONS = (
    *(RunStarted, CommandRejected, StepResolved),
    *(RunCancelRequested, RunResumed, FindingRecorded),
)
ENDS = (RunCompleted, RunFailed, RunCancelled, RunCancelRequested, RunResumed)
FINAL = (LogClosed, LogCorrupted, LogForeign, LogMissing, LogShorter)
"""Errors of the log that waiting does not mend."""

Deciding = (
    RunStarted | CommandRejected | StepResolved | RunCancelRequested | RunResumed | FindingRecorded
)


class Decision(NamedTuple):
    """What became of a command, and where that stands."""

    event: Deciding
    offset: int
    life: "RunLife | None"


class _Expected:
    """A decision that somebody waits for: the future that all of them share, and how many."""

    __slots__ = ("count", "future")

    def __init__(self) -> None:
        self.future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self.count = 0


class RunLife:
    """What the tail knows of one run's end, for the handles that ask for it.

    `offset` is that of the last record that told something of it, -1 for none; `known` says
    whether everything before is known too (the run was seen to start, or its state was read).
    """

    __slots__ = ("__weakref__", "cancel", "ended", "known", "offset", "problem", "waiters")

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self.cancel: Cancel | None = None
        self.problem: RefoldError | None = None
        self.known = False
        self.offset = -1
        self.waiters: set[asyncio.Future[None]] = set()

    def told(self) -> None:
        """Wake those who wait for the end."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class PartitionTail:
    """Reads one partition while somebody waits, and tells decisions and ends as they come."""

    def __init__(self, log: Log, codec: Codec, partition: int) -> None:
        self._log, self._codec, self._partition = log, codec, partition
        self.position = Position()
        self._begun = False
        self._read_s = 0.0
        """When the log was read last, on the loop's clock."""
        self._beginning: asyncio.Event | None = None
        """While somebody takes the position."""
        self._decisions: dict[tuple[bytes, str], _Expected] = {}
        """By the run's key too: an id is its run's own, others may have used it for theirs."""
        self._lives: WeakValueDictionary[str, RunLife] = WeakValueDictionary()
        self._waiting = 0
        self._told = 0
        self._caught_up = False
        self._looked_s = 0.0
        self._touches: dict[asyncio.Future[None], tuple[bytes, int]] = {}
        self._names: dict[bytes, type | None] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def life(self, run_id: str) -> RunLife:
        """The run's life; it is followed as long as somebody holds it."""
        life = self._lives.get(run_id)
        if life is None:
            life = self._lives[run_id] = RunLife()
        return life

    async def begin(self) -> None:
        """Take a position: everything that is appended from now on will be read.

        Once, and again where the log was trimmed beyond it while nobody waited for anything.
        Await it before a state is read or a command published whose sequel is waited for. From a
        checkpoint the claim rule goes on as if everything before it had been read.
        """
        self._check_open()
        while not self._begun or self._may_be_trimmed:
            if self._beginning is not None:
                # No lock: it lets in one of those who wait at each turn of the loop, and what they
                # then send would leave in as many pieces.
                await self._beginning.wait()
                continue
            self._beginning = asyncio.Event()
            try:
                await self._begin()
            finally:
                beginning, self._beginning = self._beginning, None
                beginning.set()

    @property
    def _reads(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def _may_be_trimmed(self) -> bool:
        """Nobody has read for so long that the log may begin behind the position by now."""
        return not self._reads and asyncio.get_running_loop().time() - self._read_s > REST_S

    async def _begin(self) -> None:
        """Take a position that the log still holds. One at a time."""
        if self._begun:
            start, _ = await self._log.bounds(Topic.EVENTS, self._partition)
            if start <= self.position.offset_next:
                self._read_s = asyncio.get_running_loop().time()
                return
        restored = await checkpoints.load(
            self._log, self._partition, self._codec, keep=lambda _: False
        )
        if self._reads:
            return  # somebody waits for a run's end since: whoever reads moves the position
        self.position = restored.fold.position
        self._begun, self._read_s = True, asyncio.get_running_loop().time()
        for life in self._lives.values():
            life.known = False  # its end may stand in what was passed over

    def expect(self, run_id: str, command_id: str) -> "asyncio.Future[Decision]":
        """A future for the first decision of the run that carries `command_id`.

        Call it after `begin` and before publishing, and `forget` it once for each call. Whoever
        asks for the same id shares the future: wait for it under a shield. Raises ClientClosed.
        It ends with OffsetOutOfRange where the log was trimmed unread: the decision may be there.
        """
        self._check_open()
        name = (run_id.encode(), command_id)
        expected = self._decisions.get(name)
        if expected is None:
            expected = self._decisions[name] = _Expected()
        expected.count += 1
        self._run()
        return expected.future

    def forget(self, run_id: str, command_id: str, future: "asyncio.Future[Decision]") -> None:
        """One of those who wait for this decision does so no more."""
        name = (run_id.encode(), command_id)
        expected = self._decisions.get(name)
        if expected is None or expected.future is not future:
            return
        expected.count -= 1
        if expected.count == 0:
            del self._decisions[name]

    async def end_of(self, life: RunLife) -> None:
        """Return when something was told of the run's end since the call."""
        self._check_open()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        life.waiters.add(waiter)
        self._waiting += 1
        self._run()
        try:
            await waiter
        finally:
            self._waiting -= 1
            life.waiters.discard(waiter)

    async def touched(self, run_id: str, offset: int) -> None:
        """Return when a record of the run, or a claim, was read at or after `offset`."""
        await self.begin()
        if self.position.last_offset >= offset:
            return  # read already: the caller's view is older, it looks again
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._touches[waiter] = (run_id.encode(), offset)
        self._run()
        try:
            await waiter
        finally:
            self._touches.pop(waiter, None)

    async def close(self) -> None:
        """Stop reading; those who wait get ClientClosed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})  # not awaited itself: our own cancellation is kept
        self._fail(ClientClosed())

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    @property
    def _wanted(self) -> bool:
        return bool(self._decisions or self._waiting or self._touches) and not self._closed

    def _run(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name=f"tail-{self._partition}")

    async def _follow(self) -> None:
        failing_since: float | None = None
        loop = asyncio.get_running_loop()
        self._caught_up = False
        while self._wanted:
            try:
                told = self._told
                await self._read_on()
                failing_since, self._read_s = None, loop.time()
                if told == self._told:
                    # Nobody was waiting for what came: a busy log is not read record by record.
                    await asyncio.sleep(PACE_S)
            except OffsetOutOfRange as error:
                self._begun = False  # whoever comes next begins behind what was trimmed
                self._pass_over(error)
                return
            except FINAL as error:
                self._fail(error)
                return
            except (LogUnavailable, SchemaUnavailable) as error:
                if isinstance(error, SchemaUnavailable) and not error.mends:
                    self._fail(error)
                    return
                now = loop.time()
                failing_since = now if failing_since is None else failing_since
                if (now - failing_since) * 1000 >= OUTAGE_MS:
                    self._fail(error)
                    return
                await asyncio.sleep(0.2)
            except Exception as error:  # the adapter's defect: whoever waits must hear of it
                self._fail(error)
                return

    async def _read_on(self) -> None:
        log, partition = self._log, self._partition
        offset = self.position.offset_next
        # A read asks whether there is anything, a wait and the read behind it ask once for both. So
        # what lies behind is read first, and once its end was come to, what is new is waited for.
        records: Sequence[Record] = ()
        if not self._caught_up:
            records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_SIZE_MAX)
            self._caught_up = not records
        if self._caught_up:
            if not await log.wait(Topic.EVENTS, partition, offset, timeout_ms=WAIT_MS):
                await self._look()
                return
            records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_SIZE_MAX)
        try:
            self._apply(records)
        except SchemaUnavailable as unknown:  # it may be what somebody waits for
            await learn(self._codec, unknown)

    async def _look(self) -> None:
        """Notice that the log was cut: whoever waits for what is gone would wait for ever."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        offset = self.position.offset_next
        _, end = await self._log.bounds(Topic.EVENTS, self._partition)
        if end < offset:
            raise LogShorter(self._partition, offset, end)

    def _apply(self, records: Sequence[Record]) -> None:
        """Raises SchemaUnavailable in front of a record: the next read begins with it."""
        position = self.position
        try:
            for record in records:
                header = RecordHeader.read(record.header)
                after, verdict = judge(position, record.offset, header)
                if verdict is Verdict.COUNTS and header is not None:
                    kind = self._kind(record.value)
                    if kind is not None:
                        self._tell(kind, record, header)
                if self._touches and verdict <= Verdict.REPORT:
                    self._touch(record, verdict)
                position = after
        finally:
            self.position = position

    def _kind(self, value: bytes | None) -> type | None:
        """The class of a body that somebody may wait for, by its schema id; None for any other.

        Raises SchemaUnavailable while somebody waits and the id is not known yet.
        """
        frame = (value or b"")[:5]
        try:
            return self._names[frame]
        except KeyError:
            name = self._codec.name_of(value or b"", strict=True)
            kinds = {kind.__name__: kind for kind in (*DECISIONS, *ENDS)}
            kind = None if name is None else kinds.get(name)
            if len(self._names) < 1024:  # hostile frames must not fill the memory
                self._names[frame] = kind
            return kind

    def _tell(self, kind: type, record: Record, header: RecordHeader) -> None:
        life = None
        if kind in ENDS and record.key is not None and self._lives:
            life = self._lives.get(record.key.decode("utf-8", "replace"))
        if life is None and (kind not in DECISIONS or not self._decisions):
            return
        self._told += 1
        try:
            event = self._codec.decode(record.value or b"")
        except UndecodableRecord as error:
            if life is not None:
                life.problem = error.at(Topic.EVENTS.value, self._partition, record.offset)
                life.offset = max(life.offset, record.offset)
                life.told()
            return
        if life is not None and record.offset > life.offset:  # else its state has it, and more
            _follow_life(life, event, record, header)
        key = record.key
        if isinstance(event, DECISIONS) and event.command_id is not None and key is not None:
            expected = self._decisions.pop((key, event.command_id), None)
            if expected is not None and not expected.future.done():
                born = None
                if isinstance(event, RunStarted):
                    # The decision holds it until the caller has made its handle.
                    born = self.life(key.decode("utf-8", "replace"))
                    born.known, born.offset = True, max(born.offset, record.offset)
                expected.future.set_result(Decision(event, record.offset, born))

    def _touch(self, record: Record, verdict: Verdict) -> None:
        for waiter, (key, offset) in self._touches.items():
            self._told += 1
            concerns = verdict is Verdict.CLAIM or record.key in (key, None)
            if concerns and record.offset >= offset and not waiter.done():
                waiter.set_result(None)

    def _pass_over(self, error: OffsetOutOfRange) -> None:
        """Records were trimmed unread: whoever waits looks at what the log still tells.

        A decision may have stood among them, so those who wait for one get the error, and ask.
        """
        self._fail_decisions(error)
        for life in list(self._lives.values()):
            life.known = False
            life.told()
        for waiter in list(self._touches):
            if not waiter.done():
                waiter.set_result(None)

    def _fail_decisions(self, error: BaseException) -> None:
        for expected in self._decisions.values():
            decision = expected.future
            if not decision.done():
                decision.set_exception(error)
                decision.exception()  # whoever awaits it gets it; nobody is no fault
        self._decisions.clear()

    def _fail(self, error: BaseException) -> None:
        self._fail_decisions(error)
        for life in list(self._lives.values()):
            for waiter in life.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
            life.waiters.clear()
        for waiter in list(self._touches):
            if not waiter.done():
                waiter.set_exception(error)


def _follow_life(life: RunLife, event: object, record: Record, header: RecordHeader) -> None:
    """What `event` tells of the run's end, as the fold would have it."""
    life.offset = record.offset
    match event:
        case RunCompleted(result=result):
            life.ended = Ended("completed", header.at_ms, result)
        case RunFailed(error=error):
            life.ended = Ended("failed", header.at_ms, error=error)
        case RunCancelled():
            life.ended = Ended("cancelled", header.at_ms)
        case RunResumed():
            if life.ended is not None and life.ended.status == "failed":
                life.ended = None
            return
        case RunCancelRequested(by=by, why=why):
            life.cancel = life.cancel or Cancel(by, why)
            return
        case _:
            return
    life.told()
