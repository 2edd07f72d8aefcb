"""The log on Kafka: one handle has a client, and asks by requests.

Who owns a partition is no matter of this adapter: the consumer group only suggests.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition

from refold.log.kafka_access import Access, told
from refold.log.kafka_batches import (
    AGAIN,
    MOVED,
    NOT_STORED,
    REFUSED,
    Sender,
    SenderClosed,
    build_batch,
)
from refold.log.kafka_fetch import OutOfRange, Reader, refreshed
from refold.log.kafka_group import HAND_OVER_MS, SESSION_MS, Coordinator, Member
from refold.log.kafka_opening import Opening, Reached, facts_of
from refold.log.kafka_owners import Owners
from refold.log.kafka_settings import size_max_of, topic_name
from refold.log.kafka_topics import TopicsRefused
from refold.log.kafka_url import parse_url
from refold.log.kafka_watch import Watch
from refold.log.port import Ack, Entry, LogFacts, Record, Suggestion, Topic, Upgrade
from refold.log.sizes import BATCH_SIZE_MAX, check_batch
from refold_schemas.errors.log import (
    AppendUnknown,
    BatchTooLarge,
    LogClosed,
    LogUnavailable,
    OffsetOutOfRange,
    PartitionMissing,
)

RETRY_PAUSE_S = 0.05
REQUEST_TIMEOUT_MS = 30_000
"""How long one request may be without an answer; a JoinGroup waits for the other members."""
APPEND_TIMEOUT_MS = 8_000
"""How long an append looks for a leader with replicas enough before it says that there is none."""

Answer = TypeVar("Answer")
_ERRORS = (errors.KafkaError, OSError, TimeoutError)


class KafkaLog:
    """A handle on the topics of a namespace. One for each process is enough.

    `batch_size_max` counts only when the topics are made. `session_ms` is how long an owner that
    is not heard of keeps its partitions, `hand_over_ms` how long one that must give some has them.
    """

    def __init__(
        self,
        url: str,
        *,
        access: Access | None = None,
        batch_size_max: int = BATCH_SIZE_MAX,
        session_ms: int = SESSION_MS,
        hand_over_ms: int = HAND_OVER_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._place = parse_url(url)
        self._opening = Opening(
            self._place,
            access=access,
            batch_size_max=batch_size_max,
            request_timeout_ms=request_timeout_ms,
        )
        self._session_ms, self._hand_over_ms = session_ms, hand_over_ms
        self._request_timeout_ms = request_timeout_ms
        self._settings: dict[str, Any] = {}
        self._group = f"{self._place.namespace}.owners"
        self._facts: LogFacts | None = None
        self._places: dict[tuple[Topic, int], TopicPartition] = {}
        self._client: AIOKafkaClient | None = None
        self._reader: Reader | None = None
        self._sender: Sender | None = None
        self._coordinator: Coordinator | None = None
        self._watch: Watch | None = None
        self._owners: Owners | None = None
        self._readers: dict[str, Owners] = {}
        self._open = False
        self._closing: asyncio.Future[None] | None = None

    @property
    def url(self) -> str:
        """The URL it was opened with; it holds no secrets."""
        return self._place.url

    @property
    def facts(self) -> LogFacts:
        """Facts as the cluster described them when it was opened; raises LogClosed before `open`.

        `batch_size_max` falls where a broker takes less than that.
        """
        if self._facts is None:
            raise LogClosed(self.url)
        return self._facts

    # Opening and closing

    async def open(self, *, create: bool) -> bool:
        """Connect; with `create` make the topics that are missing, and say so.

        Raises LogUnavailable, LogMissing, and LogUrlInvalid if the URL asks for another partition
        count than the topics have. Commands and events of a namespace that was used are never made
        (LogMissing). Topics whose settings cannot hold the promises may be read, but not owned: see
        `facts.unsafe`.
        """
        async with self._opening.reached() as reached:
            cluster, made = await self._opening.find(reached, create=create)
            facts = facts_of(self._place, cluster)
            names = [topic_name(facts.namespace, topic) for topic in Topic]
            await reached.client.set_topics(names)
            self._start(reached, facts)
        return made

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """Make and correct what can be; see the port.

        Raises NotUpgradable where commands or events are missing: no empty topic replaces them.
        """
        return await self._opening.upgrade(dry_run=dry_run)

    def _start(self, reached: Reached, facts: LogFacts) -> None:
        client = self._client = reached.client
        self._facts, self._settings = facts, reached.settings
        self._places = {
            (topic, partition): TopicPartition(topic_name(facts.namespace, topic), partition)
            for topic, count in zip(Topic, facts.partition_counts, strict=True)
            for partition in range(count)
        }
        self._reader = Reader(client)
        self._coordinator = Coordinator(client, self._group)
        self._sender = Sender(client, self._request_timeout_ms)
        self._watch = Watch(self.url, facts, client, reached.admin_settings)
        self._closing = asyncio.get_running_loop().create_future()
        self._open = True

    async def close(self) -> None:
        """Leave the group and close all connections. Appends under way end as unknown."""
        await self._end(leave=True)

    async def kill(self) -> None:
        """End the handle as SIGKILL ends its process: its sessions stay until they expire."""
        await self._end(leave=False)

    async def _end(self, *, leave: bool) -> None:
        if not self._open:
            return
        self._open = False
        assert self._closing is not None
        self._closing.set_result(None)
        await self._give_back(leave=leave)

    async def _give_back(self, *, leave: bool = False) -> None:
        # From the last one on, each of them also where closing another fails.
        async with contextlib.AsyncExitStack() as closing:
            if self._client is not None:
                closing.push_async_callback(self._client.close)
            if self._sender is not None:
                closing.push_async_callback(self._sender.close)
            if self._reader is not None:
                closing.push_async_callback(self._reader.close)
            if self._watch is not None:
                closing.push_async_callback(self._watch.close)
            for readers in self._readers.values():
                closing.push_async_callback(readers.close, leave=leave)
            if self._owners is not None:
                closing.push_async_callback(self._owners.close, leave=leave)
            self._watch = self._owners = None
            self._readers = {}
        self._client = self._sender = None

    # What the port asks for

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append one batch; see the port.

        A LogUnavailable raised here says in `stored` that the batch is known not to be stored.
        """
        place = self._at(topic, partition)
        size_max = self.facts.batch_size_max
        size = check_batch(topic, partition, entries, size_max)
        sender, watch = self._sender, self._watch
        assert sender is not None, "there is a sender while the handle is open"
        batch = build_batch(entries, size)
        try:
            try:
                ack = await sender.send(place, batch)
            except AGAIN as error:
                ack = await self._until_closed(self._append_again(sender, place, batch, error))
            if ack.offset is not None and ack.offset >= 0:
                self._read_by().acknowledged(place, ack.offset + len(entries))
            return ack
        except (LogClosed, SenderClosed):
            reason = "the handle was closed"
        except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
            lowered = await self._lowered(topic, len(batch), watch)
            raise BatchTooLarge(
                topic=topic.value, partition=partition, size=size, size_max=lowered
            ) from error
        except (*NOT_STORED, *REFUSED) as error:
            raise LogUnavailable(self.url, told(error), stored=False) from error
        except _ERRORS as error:
            reason = told(error)
        raise AppendUnknown(topic=topic.value, partition=partition, reason=reason)

    async def _append_again(
        self, sender: Sender, place: TopicPartition, batch: bytes, first: errors.KafkaError
    ) -> Ack:
        """Append it until there is a leader, or the time is over.

        Raises the error that leaves its fate open, if there was one, else the last.
        """
        assert self._client is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_TIMEOUT_MS / 1000
        in_doubt = first if isinstance(first, MOVED) else None
        while True:
            await refreshed(self._client, deadline)
            await asyncio.sleep(RETRY_PAUSE_S)
            try:
                return await sender.send(place, batch)
            except errors.KafkaError as error:
                if in_doubt is None and isinstance(error, MOVED):
                    in_doubt = error
                if isinstance(error, AGAIN) and loop.time() <= deadline:
                    continue
                if in_doubt is None or in_doubt is error:
                    raise
                raise in_doubt from error

    async def _lowered(self, topic: Topic, refused: int, watch: Watch | None) -> int:
        """What a batch may have from now on, in bytes: a broker has refused one of `refused`.

        As the topics say now, if that explains it: somebody has lowered it since they were opened.
        Else a byte less: what brokers have beside their topics' limits they need not tell.
        """
        size_max = refused - 1
        if topic is Topic.DEAD_LETTERS:
            return size_max  # copies for people: the truth goes by the limits of its own topics
        self._lower(size_max)
        assert watch is not None, "the topics are watched while the handle is open"
        with contextlib.suppress(TopicsRefused):
            size_max = min(size_max, size_max_of(await watch.describe()))
        self._lower(size_max)
        return size_max

    def _lower(self, size_max: int) -> None:
        facts = self.facts
        self._facts = replace(facts, batch_size_max=min(facts.batch_size_max, size_max))

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """Nothing here holds a loop up."""

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """Stored records from `offset` on, whole batches until `size_max`; see the port."""
        place, reader = self._at(topic, partition), self._read_by()
        try:
            return await self._asked(reader.read(place, offset, size_max))
        except OutOfRange:
            start, end = await self._asked(reader.bounds(place))
            if offset >= start:
                return []  # behind the end
            raise OffsetOutOfRange(
                topic=topic.value, partition=partition, offset=offset, start=start, end=end
            ) from None

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """`(start, end)` of the partition."""
        place = self._at(topic, partition)
        return await self._asked(self._read_by().bounds(place))

    async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
        """Wait until a record at or after `offset` is there (or `offset` is not kept any more).

        The broker answers as soon as there is one; it is asked again every five seconds.
        """
        place = self._at(topic, partition)
        try:
            return await self._asked(self._read_by().wait(place, offset, timeout_ms / 1000))
        except LogClosed:
            return False

    async def suggest(self, owner: str) -> Suggestion:
        """The partitions that the group gives to `owner` now: it joins at the first call.

        Raises LogUnsafe where the topics' settings cannot hold the promises, or a topic was made
        anew since it was opened; PartitionsRaised where somebody has raised a partition count since
        then; LogUnavailable where the group cannot be asked and has given the partitions away.
        """
        self._check_open()
        self._watching().check()
        if self._owners is None:
            self._owners = Owners(self._settings, self._group, self._member)
        partitions, failure = await self._asked(self._owners.suggest(owner))
        if failure is not None and not partitions:
            reason = f"the group of owners cannot be asked: {told(failure)}"
            raise LogUnavailable(self.url, reason)
        return Suggestion(partitions)

    async def share(self, readers: str, member: str) -> frozenset[int]:
        """The partitions of events that the group `NAMESPACE.readers` gives to this member now.

        Raises PartitionsRaised where there are more than this handle knows: nobody would read them.
        """
        self._check_open()
        self._watching().check_counts()
        if readers not in self._readers:
            group = f"{self._place.namespace}.{readers}"
            self._readers[readers] = Owners(self._settings, group, self._reading_member)
        partitions, failure = await self._asked(self._readers[readers].suggest(member))
        if failure is not None and not partitions:
            raise LogUnavailable(self.url, f"the group of readers cannot be asked: {told(failure)}")
        return partitions

    async def leave_share(self, readers: str, member: str) -> None:
        """Leave the group of readers."""
        self._check_open()
        if readers in self._readers:
            await self._asked(self._readers[readers].give_up(member))

    async def note_read(self, readers: str, member: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets of the group; what it refuses (it shares anew) is said again later."""
        self._check_open()
        if readers in self._readers and offsets:
            with contextlib.suppress(LogUnavailable):
                await self._asked(self._readers[readers].commit(member, offsets))

    def _reading_member(self, coordinator: Coordinator, member: str) -> Member:
        return self._member(coordinator, member, Topic.EVENTS)

    def _member(
        self, coordinator: Coordinator, owner: str, topic: Topic = Topic.COMMANDS
    ) -> Member:
        return Member(
            coordinator,
            owner,
            topic_name(self._place.namespace, topic),
            self.facts.partition_count,
            session_ms=self._session_ms,
            hand_over_ms=self._hand_over_ms,
        )

    async def owner_lives(self, partition: int) -> bool | None:
        """Whether a member of the group has the partition; None while the group shares anew.

        Who is killed is said to live until its session has expired.
        """
        place = self._at(Topic.COMMANDS, partition)
        assert self._coordinator is not None
        try:
            return await self._until_closed(self._coordinator.is_held(place.topic, partition))
        except _ERRORS:
            return None

    async def give_up(self, owner: str) -> None:
        """Leave the group, so that another member gets the partitions at once."""
        self._check_open()
        if self._owners is not None:
            await self._asked(self._owners.give_up(owner))

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Delete the records before `before_offset` (DeleteRecords); see the port.

        It needs the right to Delete on the topic, which no other method does.
        """
        place = self._at(topic, partition)
        _, end = await self._asked(self._read_by().bounds(place))
        with contextlib.suppress(OutOfRange):  # it starts further on already
            await self._asked(self._read_by().trim(place, min(before_offset, end)))
        start, _ = await self._asked(self._read_by().bounds(place))
        return start

    # What they have in common

    def _check_open(self) -> None:
        if not self._open:
            raise LogClosed(self.url)

    def _at(self, topic: Topic, partition: int) -> TopicPartition:
        self._check_open()
        place = self._places.get((topic, partition))
        if place is None:
            raise PartitionMissing(
                self.url,
                topic=topic.value,
                partition=partition,
                partition_count=self.facts.partition_count,
            )
        return place

    def _read_by(self) -> Reader:
        assert self._reader is not None, "there is a reader while the handle is open"
        return self._reader

    def _watching(self) -> Watch:
        assert self._watch is not None, "the topics are watched while the handle is open"
        return self._watch

    async def _asked(self, asking: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return await self._until_closed(asking)
        except _ERRORS as error:
            raise LogUnavailable(self.url, told(error)) from error

    async def _until_closed(self, asking: Coroutine[Any, Any, Answer]) -> Answer:
        """What is asked for, or LogClosed as soon as the handle is closed."""
        assert self._closing is not None
        task = asyncio.ensure_future(asking)
        try:
            either: list[asyncio.Future[Any]] = [task, self._closing]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(_forget)
            raise
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, *_ERRORS):
                await task
            raise LogClosed(self.url)
        return task.result()


def _forget(task: "asyncio.Task[Any]") -> None:
    """Nobody waits for it any more, so nobody reads what it ended with."""
    if not task.cancelled():
        task.exception()
