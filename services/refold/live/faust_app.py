"""The Faust app: reads `ns.events`, keeps the figures of its partitions in one changelog topic.

One table for everything of a partition, because the order of its keys in one changelog partition
is what a restart relies on. Its windows are keyed by the event's own time and not by Faust's, so
that a record that is read again finds the window that has it.
"""

import asyncio
import logging
import ssl
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import faust
from faust.types import TP

from refold.live.keeping import Keeper, partition_of, restored
from refold.log.port import Record
from refold_projections.figures import CHUNK_EVENTS_MAX, RecordsChanged
from refold_projections.figures.stored import newer
from refold_schemas.codec import HEADER_NAME, Codec
from refold_schemas.codec.learning import learn
from refold_schemas.errors import RefoldError, SchemaUnavailable
from refold_schemas.errors.live import FiguresNotStored, FiguresOutOfStep

WRITE_EVERY_S = 0.5
"""How old what the page sees may be, beside its own reading."""
ASKED_AGAIN_S = 1.0
"""Between two questions for a schema that nobody could give."""
SEEK_S = 1.0
"""How long what was fetched before a seek may still come."""
TRIES = 5
"""So often a record is asked for that does not come, before it counts as not there."""
STALL_S = 5.0
"""A partition with records that does not go on for so long is read again from where it stands."""
SESSION_S = 6.0
"""How long the partitions of a process that is not heard of stay without one; brokers want 6."""
STOP_S = 20.0
"""How long a Faust app may take to end."""

logging.getLogger("faust").addHandler(logging.NullHandler())
logging.getLogger("mode").addHandler(logging.NullHandler())


class _Seek:
    """A place that a partition is to be read from. `is_anchor`: its record was counted already."""

    __slots__ = ("at_s", "is_anchor", "offset", "tries")

    def __init__(self, offset: int, is_anchor: bool, tries: int = 0) -> None:
        self.offset, self.is_anchor, self.tries = offset, is_anchor, tries
        self.at_s = time.monotonic()


class _Table(faust.Table):  # type: ignore[type-arg]
    """A table whose changelog may hold, behind a newer value, one that a frozen process wrote."""

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Restore: of two values of a key the one that includes more records."""
        for event in batch:
            key, value = event.message.key, event.message.value
            if value is None:
                self.data.pop(key, None)
            elif newer(self.data.get(key), value):
                self.data[key] = value


class LiveApp:
    """A Faust worker in this process. `failed` is told once why it cannot go on.

    `sent` is given the spans of a partition's new records and awaited before its position is
    stored; None: no spans are made.
    """

    def __init__(
        self,
        namespace: str,
        servers: str,
        topic: str,
        partition_count: int,
        codec: Codec,
        *,
        security: dict[str, Any],
        failed: Callable[[RefoldError], None],
        sent: Callable[[list[Any]], Awaitable[None]] | None = None,
    ) -> None:
        self.codec, self.partition_count = codec, partition_count
        self.keepers: dict[int, Keeper] = {}
        self._failed, self._sent = failed, sent
        self._seeks: dict[int, _Seek] = {}
        self._holes: dict[int, int] = {}
        """Of a partition the offset behind a hole that was looked at twice."""
        self._progress: dict[int, tuple[int, float]] = {}
        self._asking = False
        self._flights: dict[int, asyncio.Task[None]] = {}
        self._events = f"{namespace}.events"
        self._folder = tempfile.TemporaryDirectory(prefix="refold-live-")
        self._ending = False
        self._writing: asyncio.Task[None] | None = None
        self.app = faust.App(
            f"{namespace}.live",
            broker=[f"kafka://{server}" for server in servers.split(",")],
            broker_credentials=_credentials(security),
            broker_session_timeout=SESSION_S,
            broker_heartbeat_interval=SESSION_S / 4,
            # It never commits: where it is stands in the table. So nobody waits for a commit.
            broker_commit_livelock_soft_timeout=10**9,
            stream_processing_timeout=10**9,
            consumer_auto_offset_reset="earliest",
            producer_compression_type="gzip",
            producer_max_request_size=4 << 20,
            store="memory://",
            datadir=Path(self._folder.name),
            table_standby_replicas=0,
            topic_partitions=partition_count,
            topic_allow_declare=False,  # `service.py` makes the one that it needs
            topic_disable_leader=True,
            web_enabled=False,
            autodiscover=False,
            stream_recovery_delay=0.0,
            stream_wait_empty=False,
        )
        raw = {"key_serializer": "raw", "value_serializer": "raw"}
        types: dict[str, Any] = {"key_type": bytes, "value_type": bytes, **raw}
        events = self.app.topic(self._events, **types)
        changelog = self.app.topic(topic, partitions=partition_count, compacting=True, **types)
        table = _Table(
            self.app,
            name="figures",
            key_type=bytes,
            value_type=bytes,
            partitions=partition_count,
            changelog_topic=changelog,
        )
        self.table: Any = self.app.tables.add(table)
        self.app.agent(events, name="figures")(self._follow)
        complete: Any = self.app.on_rebalance_complete
        complete.connect(self._assigned)
        revoked: Any = self.app.on_partitions_revoked
        revoked.connect(self._revoked)

    async def start(self) -> None:
        """Begin. Returns when it is on its way."""
        await self.app.start()
        self._writing = asyncio.create_task(self._write_on(), name="live-writing")

    async def wait(self, stop: asyncio.Event) -> None:
        """Until `stop`, or until Faust has given up by itself."""
        stopped: Any = stop
        if await self.app.wait_for_stopped(stopped) and not stop.is_set() and not self._ending:
            reason = getattr(self.app, "_crash_reason", None)
            self._fail(f"Faust gave up: {reason!r}" if reason else "Faust gave up")

    async def stop(self) -> None:
        """Write what is left, leave the group and end."""
        self._ending = True
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})
        try:
            async with asyncio.timeout(STOP_S / 2):
                await asyncio.gather(*(k.write() for k in self.keepers.values()))
        except Exception:  # what is not stored is read again
            logging.getLogger(__name__).debug("the last write failed", exc_info=True)
        for keeper in self.keepers.values():
            keeper.given_up = True
        # Its thread cancels itself where a broker is away; nobody has to read that it did.
        threading.excepthook = _without_cancelled(threading.excepthook)
        try:
            async with asyncio.timeout(STOP_S):
                await self.app.stop()
        except TimeoutError:
            logging.getLogger(__name__).warning("Faust did not end in %s s", STOP_S)
        finally:
            self._folder.cleanup()

    def lag(self) -> dict[int, int]:
        """Of each partition held: records that the consumer knows of and that are not counted."""
        found = {}
        for partition, keeper in list(self.keepers.items()):
            end = self.app.consumer.highwater(TP(self._events, partition))
            if end is not None:
                found[partition] = max(end - keeper.figures.position.offset_next, 0)
        return found

    # ---- partitions come and go

    async def _revoked(self, app: Any, revoked: Iterable[Any], **_: Any) -> None:
        for tp in revoked:
            if tp.topic == self._events:
                self._give_up(tp.partition)

    def _give_up(self, partition: int) -> None:
        """Write nothing more. Its keys stay: of a partition that comes back Faust reads on only."""
        keeper = self.keepers.pop(partition, None)
        if keeper is not None:
            keeper.given_up = True

    def _forget(self, held: set[int]) -> None:
        """Drop what others hold: should it come back, Faust reads all of it again."""
        for packed in list(self.table.data):
            if partition_of(packed) not in held:
                self.table.data.pop(packed, None)

    async def _assigned(self, app: Any, **_: Any) -> None:
        """The table is restored: begin behind what it includes."""
        try:
            consumer: Any = self.app.consumer
            held = {tp for tp in consumer.assignment() if tp.topic == self._events}
            self._forget({tp.partition for tp in held})
            for tp in held:
                before = self.keepers.pop(tp.partition, None)
                if before is not None:
                    before.given_up = True
                figures = restored(
                    self.codec, tp.partition, self.table.data, traces=self._sent is not None
                )
                self.keepers[tp.partition] = Keeper(tp.partition, figures, self._store, self._sent)
                self._holes.pop(tp.partition, None)
                self._progress.pop(tp.partition, None)
                await self._seek(tp.partition)
            ends = await consumer.highwaters(*held) if held else {}
            for tp, end in ends.items():
                keeper = self.keepers.get(tp.partition)  # gone, if it was revoked meanwhile
                reached = 0 if keeper is None else keeper.figures.position.offset_next
                if end is not None and end < reached:
                    self._failed(
                        FiguresOutOfStep(
                            tp.partition, f"they count {reached} records, the log ends at {end}"
                        )
                    )
        except RefoldError as error:
            self._failed(error)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    # ---- reading

    async def _seek(self, partition: int, tries: int = 0) -> None:
        """Read on from the last record that was counted, to see that it is still there."""
        consumer: Any = self.app.consumer
        tp, keeper = TP(self._events, partition), self.keepers.get(partition)
        start = (await consumer.earliest_offsets(tp)).get(tp) or 0
        if keeper is None or self.keepers.get(partition) is not keeper:
            return  # it was revoked; whoever has it next seeks anew
        figures = keeper.figures
        if figures.position.last_offset < start:  # archived: what follows is counted alone
            figures.begin_at(start)
        position = figures.position
        is_anchor = position.last_offset >= 0
        offset = position.last_offset if is_anchor else position.offset_next
        self._seeks[partition] = _Seek(offset, is_anchor, tries)
        try:
            await consumer.seek(tp, offset)
        except Exception:
            if tp in consumer.assignment():
                raise
            return  # it went to another process at this moment
        # Faust drops what is not behind the offset "read", which the seek has set to this.
        consumer._read_offset[tp] = None

    async def _is_next(self, partition: int, offset: int) -> bool:
        """Whether a record may be counted now.

        Around a rebalance Faust drops what it has fetched already. So what comes behind a gap is
        fetched a second time; only what comes behind the same gap again stands behind a hole.
        Raises FiguresOutOfStep where a record that was counted is not there.
        """
        seek = self._seeks.get(partition)
        if seek is not None:
            if offset < seek.offset:
                return False
            if offset > seek.offset and (seek.tries < TRIES or seek.is_anchor):
                if time.monotonic() - seek.at_s >= SEEK_S:
                    if seek.tries >= TRIES:
                        told = f"the record at offset {seek.offset} was counted and is not there"
                        raise FiguresOutOfStep(partition, told)
                    await self._seek(partition, seek.tries + 1)
                return False
            del self._seeks[partition]
            if offset > seek.offset:
                self._holes[partition] = offset
        keeper = self.keepers.get(partition)
        if keeper is None:
            return False
        expected = keeper.figures.position.offset_next
        if offset > expected and self._holes.get(partition) != offset:
            self._holes[partition] = offset
            await self._seek(partition)
            return False
        return True

    async def _look_for_stalls(self) -> None:
        """A partition that has records and does not go on is read again from where it stands."""
        if self._asking:
            return  # it waits for a schema, and all the others behind it
        now = time.monotonic()
        for partition, lag in self.lag().items():
            keeper = self.keepers.get(partition)
            if keeper is None:
                continue
            offset = keeper.figures.position.offset_next
            before, since = self._progress.get(partition, (-1, now))
            if before != offset or not lag:
                self._progress[partition] = (offset, now)
            elif now - since >= STALL_S:
                self._progress[partition] = (offset, now)
                seek = self._seeks.get(partition)
                await self._seek(partition, 0 if seek is None else seek.tries)

    async def _follow(self, stream: Any) -> None:
        async for event in stream.noack().events():
            try:
                await self._took(event.message)
            except RefoldError as error:
                self._failed(error)
                return
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")
                return

    async def _took(self, message: Any) -> None:
        partition = message.partition
        keeper = self.keepers.get(partition)
        if keeper is None or keeper.given_up:
            return
        figures = keeper.figures
        if not await self._is_next(partition, message.offset):
            return
        record = Record(
            message.offset,
            message.key,
            message.value,
            _header(message.headers),
            round((message.timestamp or 0) * 1000),
        )
        while not keeper.given_up:
            try:
                figures.apply(record)
                break
            except SchemaUnavailable as unknown:
                self._asking = True
                try:
                    await learn(self.codec, unknown)
                except SchemaUnavailable as still:
                    if not still.mends:
                        figures.apply(record, unknown=still)
                        break
                    await asyncio.sleep(ASKED_AGAIN_S)
                finally:
                    self._asking = False
            except RecordsChanged as error:
                raise FiguresOutOfStep(partition, str(error)) from error
        if figures.unwritten >= CHUNK_EVENTS_MAX:
            # One write in the air, one chunk being counted: no more is ever read twice.
            before = self._flights.get(partition)
            if before is not None:
                await before
            self._flights[partition] = asyncio.create_task(self._write(keeper))

    # ---- writing

    async def _write_on(self) -> None:
        while not self._ending:
            await asyncio.sleep(WRITE_EVERY_S)
            await asyncio.gather(*(self._write(k) for k in list(self.keepers.values())))
            try:
                await self._look_for_stalls()
            except Exception as error:
                self._fail(f"{type(error).__name__}: {error}")

    async def _write(self, keeper: Keeper) -> None:
        try:
            await keeper.write()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not keeper.given_up:
                self._fail(f"a write was not acknowledged: {type(error).__name__}: {error}")

    async def _store(self, partition: int, key: bytes, value: bytes | None) -> object:
        if value is None:
            self.table.data.pop(key, None)
        else:
            self.table.data[key] = value
        stored: Awaitable[object] = self.table.send_changelog(
            partition, key, value, key_serializer="raw", value_serializer="raw"
        )
        return await stored

    def _fail(self, reason: str) -> None:
        if not self._ending:
            self._failed(FiguresNotStored(reason))


def _without_cancelled(told: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def hook(about: Any) -> None:
        if not issubclass(about.exc_type, asyncio.CancelledError):
            told(about)

    return hook


def _header(headers: Any) -> bytes | None:
    """The `refold` header of a message, as Faust gives headers: a mapping, or pairs."""
    pairs = headers.items() if hasattr(headers, "items") else headers or ()
    found = None
    for name, value in pairs:
        if name == HEADER_NAME:
            found = value
    return found


def _credentials(security: dict[str, Any]) -> Any:
    """Faust's own way to be told how a cluster is reached."""
    protocol = security.get("security_protocol", "PLAINTEXT")
    context: ssl.SSLContext | None = security.get("ssl_context")
    if protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=security["sasl_plain_username"],
            password=security["sasl_plain_password"],
            mechanism=security["sasl_mechanism"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None
