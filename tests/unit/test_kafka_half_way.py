"""The Kafka log where a broker, a group or an earlier process has left things half-way."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import NodeNotReadyError, NotLeaderForPartitionError
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
from aiokafka.structs import TopicPartition

from refold.log import Topic
from refold.log.kafka import KafkaLog
from refold.log.kafka_fetch import Fetched, OutOfRange, Reader
from refold.log.kafka_group import Coordinator, Member
from refold.log.kafka_opening import Opening, Reached
from refold.log.kafka_settings import Cluster, TopicState
from refold.log.kafka_topics import Topics
from refold.log.kafka_url import parse_url

PLACE = TopicPartition("ns.events", 0)


class Lost(Reader):
    """Its broker is gone once everybody has stopped waiting."""

    def __init__(self) -> None:
        super().__init__(None)
        self._ends[PLACE] = 0
        self.gone = asyncio.Event()

    async def _poll(self, place: TopicPartition) -> None:
        await self.gone.wait()
        raise NodeNotReadyError


def test_a_poll_that_fails_when_nobody_waits_is_forgotten_in_silence() -> None:
    unheard: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
        reader = Lost()
        assert not await reader.wait(PLACE, 0, 0.001)
        reader.gone.set()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        await reader.close()

    asyncio.run(main())
    assert unheard == []


class Cut(Reader):
    """The log ends before what was known of it."""

    def __init__(self) -> None:
        super().__init__(None)
        self._ends[PLACE] = 100

    async def _fetch(
        self, place: TopicPartition, offset: int, size_max: int, *, wait_ms: int = 0
    ) -> Fetched:
        await asyncio.sleep(0)
        raise OutOfRange

    async def _offset_at(self, place: TopicPartition, which: int) -> int:
        await asyncio.sleep(0)
        return 7


def test_two_who_ask_where_a_cut_log_ends_are_both_told() -> None:
    async def main() -> list[tuple[int, int]]:
        reader = Cut()
        return await asyncio.gather(*(reader.bounds(PLACE) for _ in range(2)))

    assert asyncio.run(main()) == [(7, 7), (7, 7)]


def test_a_poll_that_fails_tells_who_waits() -> None:
    async def main() -> None:
        reader = Lost()
        waiting = asyncio.create_task(reader.wait(PLACE, 0, 60))
        await asyncio.sleep(0)
        reader.gone.set()
        with pytest.raises(NodeNotReadyError):
            await waiting

    asyncio.run(main())


class Moved(Reader):
    """Its leader is another one, and no broker says which."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(force_metadata_update=asyncio.Event().wait))

    async def _fetch(
        self, place: TopicPartition, offset: int, size_max: int, *, wait_ms: int = 0
    ) -> Fetched:
        raise NotLeaderForPartitionError


def test_metadata_that_never_comes_does_not_hold_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.log.kafka_fetch.RETRY_MS", 50)

    async def main() -> None:
        async with asyncio.timeout(10):
            with pytest.raises(NotLeaderForPartitionError):
                await Moved().read(PLACE, 0, 1)

    asyncio.run(main())


class Group(Coordinator):
    """One where another program is a member too; the first answer is none that can be read."""

    def __init__(self, said: bytes) -> None:
        super().__init__(None, "ns.owners")
        self.said, self.garbled = said, 1

    async def ask(self, request: object, connection: object) -> object:
        if self.garbled:
            self.garbled -= 1
            raise IndexError("a defect of the library")
        if isinstance(request, JoinGroupRequest):
            other = ConsumerProtocol.METADATA(0, ["ns.commands"], self.said).encode()
            ours = ConsumerProtocol.METADATA(0, ["ns.commands"], b"[]").encode()
            members = [("m", "a", ours), ("other", None, other)]
            return SimpleNamespace(
                error_code=0, member_id="m", leader_id="m", generation_id=1, members=members
            )
        if isinstance(request, SyncGroupRequest):
            shares: dict[str, bytes] = dict(_shares_in(request))
            return SimpleNamespace(error_code=0, member_assignment=shares["m"])
        return SimpleNamespace(error_code=0)


def _shares_in(request: Any) -> list[tuple[str, bytes]]:
    return list(request._group_assignment)


def test_a_member_joins_whatever_it_met_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.log.kafka_group.RETRY_S", 0.0)

    async def main() -> frozenset[int]:
        group = Group(b"[" * 100_000)  # deeper than a reader of JSON goes
        member = Member(group, "a", "ns.commands", 4)
        async with asyncio.timeout(10):
            while not member.partitions:  # noqa: ASYNC110 - the group says nothing by itself
                await asyncio.sleep(0.001)
        await member.stop()
        return member.partitions

    assert len(asyncio.run(main())) == 2


@pytest.mark.parametrize(
    ("there", "url", "count"),
    [
        ({Topic.COMMANDS: 8, Topic.SNAPSHOTS: 8}, "kafka://b/ns", 8),
        ({Topic.DEAD_LETTERS: 1}, "kafka://b/ns?partitions=4", 4),
    ],
)
def test_topics_that_a_process_left_half_made_get_the_count_of_those_that_are_there(
    there: dict[Topic, int], url: str, count: int
) -> None:
    made: list[int] = []

    class HalfMade(Topics):
        """What the cluster has of them."""

        def __init__(self) -> None:
            """Asks nobody."""

        async def describe(self) -> Cluster:
            topics = {topic: TopicState("id", n, 1, {}, led=True) for topic, n in there.items()}
            return Cluster(topics, 1)

        async def make(self, partition_count: int, batch_size_max: int) -> Cluster:
            made.append(partition_count)
            return await self.describe()

    class Unused(Opening):
        """Nothing was written into them yet."""

        async def _was_used(self, client: object, cluster: Cluster) -> bool:
            return False

    opening = Unused(parse_url(url), access=None, batch_size_max=1, request_timeout_ms=1)
    asyncio.run(opening.find(Reached(None, {}, {}, HalfMade()), create=True))
    assert made == [count]


def test_a_group_that_cannot_be_left_keeps_no_connection_open() -> None:
    closed: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self, **_: bool) -> None:
            closed.append(self.name)
            if self.name == "owners":
                raise OSError("the group does not answer")

    async def main() -> None:
        log: Any = KafkaLog("kafka://127.0.0.1:1/ns")
        log._owners, log._reader = Part("owners"), Part("reader")
        log._sender, log._client = Part("sender"), Part("client")
        with pytest.raises(OSError, match="does not answer"):
            await log._give_back()

    asyncio.run(main())
    assert closed == ["owners", "reader", "sender", "client"]
