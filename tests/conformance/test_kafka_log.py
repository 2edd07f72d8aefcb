"""The log on Kafka against the suite on a real broker, and what is a matter of Kafka alone."""

import asyncio
import random
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs forget to export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from refold.log import (
    Entry,
    Topic,
    batch_size,
    kafka_fetch,
    kafka_watch,
    open_log,
    partition_for,
)
from refold.log.kafka import KafkaLog
from refold.log.kafka_access import Access
from refold.log.kafka_settings import Cluster, TopicState, changes, problems, settings_of
from refold.log.kafka_topics import Topics, TopicsRefused
from refold.testing.log_conformance import CHECKS, NEEDS, Check, LogConformance, MakeLog
from refold_schemas.errors import (
    BatchTooLarge,
    LogMissing,
    LogUnavailable,
    LogUnsafe,
    LogUrlInvalid,
    PartitionsRaised,
    RefoldError,
)
from support.kafka_broker import Broker, free_port
from support.kafka_maker import CUT, MakeKafkaLog, client_of

APPLICABLE = [check for check in CHECKS if NEEDS[check] <= MakeKafkaLog.can]


class TestKafkaLog(LogConformance):
    @pytest.fixture
    def log(self, make_log: MakeLog) -> KafkaLog:
        made = make_log()
        assert isinstance(made, KafkaLog)
        return made

    @pytest.fixture
    def make_log(self, broker: Broker) -> MakeLog:
        return MakeKafkaLog(broker)

    @pytest.mark.parametrize("check", APPLICABLE, ids=lambda check: check.__name__)
    def test_conforms(self, check: Check, make_log: MakeLog) -> None:
        super().test_conforms(check, make_log)


def test_of_the_suite_one_check_is_not_for_a_broker() -> None:
    """It cleans on demand; below is a test that waits for the cleaner."""
    [left_out] = [check.__name__ for check in CHECKS if check not in APPLICABLE]
    assert left_out == "check_compaction_takes_old_snapshots"


@pytest.fixture
def make(broker: Broker) -> MakeKafkaLog:
    return MakeKafkaLog(broker, partitions=3)


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.server, "log_level": 0})


def entries(count: int, name: str = "run-1", size: int = 20) -> list[Entry]:
    return [Entry(name.encode(), b"%d" % at + b"." * size, bytes(50)) for at in range(count)]


def alter(admin: AdminClient, topic: str, **settings: str) -> None:
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result()


async def described(make: MakeKafkaLog, until: Callable[[Cluster], bool]) -> Cluster:
    """The topics, once a change of them is known to the broker."""
    topics = Topics(Access().of_librdkafka(make.broker.server), make.namespace)
    async with asyncio.timeout(20):
        while not until(cluster := await topics.describe()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return cluster


# ---- topics


def test_topics_are_made_with_settings_that_hold_the_promises(make: MakeKafkaLog) -> None:
    async def main() -> None:
        log = make()
        assert await log.open(create=True)
        cluster = await described(make, lambda found: len(found.topics) == len(Topic))
        assert problems(make.namespace, cluster) == []
        assert log.facts.unsafe == ()
        assert {state.partition_count for state in cluster.topics.values()} == {3}
        assert log.facts.topic_ids == tuple(cluster.topics[topic].topic_id for topic in Topic)
        assert log.facts.batch_size_max == 128 * 1024
        assert cluster.topics[Topic.SNAPSHOTS].settings["cleanup.policy"] == "compact"
        await log.close()

    asyncio.run(main())


def test_without_another_word_a_namespace_gets_32_partitions_and_batches_of_4_mib(
    broker: Broker,
) -> None:
    async def main() -> None:
        log = KafkaLog(f"kafka://{broker.server}/default-{uuid.uuid4().hex}", access=Access())
        assert await log.open(create=True)
        assert (log.facts.partition_count, log.facts.batch_size_max) == (32, 4 << 20)
        whole = [Entry(b"run-1", bytes(range(256)) * 4 * 4_000)]
        assert (await log.append(Topic.EVENTS, 31, whole)).offset == 0
        assert (await log.read(Topic.EVENTS, 31, 0))[0].value == whole[0].value
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("topic", "settings", "told"),
    [
        ("events", {"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable"),
        ("events", {"retention_ms": "604800000"}, "retention.ms=604800000, not -1"),
        ("events", {"cleanup_policy": "compact"}, "cleanup.policy=compact, not delete"),
        ("commands", {"message_timestamp_type": "CreateTime"}, "message.timestamp.type"),
        ("snapshots", {"cleanup_policy": "delete"}, "cleanup.policy=delete, not compact"),
    ],
)
def test_settings_that_cannot_hold_the_promises_may_be_read_but_not_owned(
    make: MakeKafkaLog, admin: AdminClient, topic: str, settings: dict[str, str], told: str
) -> None:
    """F19."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, entries(2))
        await log.close()
        alter(admin, f"{make.namespace}.{topic}", **settings)
        await described(make, lambda found: bool(problems(make.namespace, found)))
        log = make()
        await log.open(create=False)
        assert len(await log.read(Topic.EVENTS, 0, 0)) == 2
        with pytest.raises(LogUnsafe, match=told) as refused:
            await log.suggest("owner")
        assert refused.value.exit_code == 4
        await log.close()

    asyncio.run(main())


def test_partition_counts_that_differ_are_not_owned(make: MakeKafkaLog, admin: AdminClient) -> None:
    """F21: one of the topics was expanded; nothing is routed by the new count in silence."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, entries(2))
        await log.close()
        wanted = NewPartitions(f"{make.namespace}.commands", 6)
        for answer in admin.create_partitions([wanted]).values():
            answer.result()
        await described(make, lambda found: found.topics[Topic.COMMANDS].partition_count == 6)
        log = KafkaLog(f"kafka://{make.broker.server}/{make.namespace}", access=Access())
        await log.open(create=False)
        assert log.facts.partition_count == 3
        assert len(await log.read(Topic.EVENTS, 0, 0)) == 2
        with pytest.raises(PartitionsRaised, match=r"commands 6, .*events 3, .*snapshots 3"):
            await log.suggest("owner")
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["made anew", "retention", "limit"])
def test_an_owner_notices_topics_that_are_not_what_they_were(
    what: str, make: MakeKafkaLog, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets may be as before: nothing that is read or appended tells it."""
    monkeypatch.setattr(kafka_watch, "TOPICS_LOOK_S", 0.05)
    name = f"{make.namespace}.commands"

    async def suggested(log: KafkaLog, times: int) -> None:
        for _ in range(times):
            await log.suggest("owner")
            await asyncio.sleep(0.02)

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await suggested(log, 20)
        if what == "retention":
            alter(admin, name, retention_ms="60000")
            told = f"{name} has retention.ms=60000, not -1"
        elif what == "limit":
            alter(admin, name, max_message_bytes="3000")
            told = "takes batches of 3000 bytes at most, not 65536 or more"
        else:
            for answer in admin.delete_topics([name]).values():
                answer.result()
            await described(make, lambda found: Topic.COMMANDS not in found.topics)
            await suggested(log, 5)  # who reads it is told that it is missing
            again = make()
            await again.open(create=True)
            await again.close()
            told = f"{name} was deleted and made anew"
        with pytest.raises(LogUnsafe, match=re.escape(told)):
            await suggested(log, 500)
        await log.close()

    asyncio.run(main())


def test_a_broker_that_joins_a_small_cluster_stops_no_owner() -> None:
    ids = {topic: topic.value for topic in Topic}
    topics = {
        topic: TopicState(topic.value, 1, 1, settings_of(topic, 1, 1 << 20), True)
        for topic in Topic
    }
    assert problems("shop", Cluster(topics, 3))
    assert changes("shop", ids, Cluster(topics, 3)) == []


def test_a_namespace_of_which_one_topic_is_missing_is_said(
    make: MakeKafkaLog, admin: AdminClient
) -> None:
    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.close()
        for answer in admin.delete_topics([f"{make.namespace}.snapshots"]).values():
            answer.result()
        await described(make, lambda found: Topic.SNAPSHOTS not in found.topics)
        with pytest.raises(LogMissing, match=rf"no topic {make.namespace}\.snapshots"):
            await make().open(create=False)
        url = f"kafka://{make.broker.server}/{make.namespace}?partitions=7"
        with pytest.raises(LogUrlInvalid, match="asks for 7 partitions"):
            await KafkaLog(url, access=Access()).open(create=True)

    asyncio.run(main())


def test_no_empty_topic_replaces_one_of_a_namespace_that_was_used(
    make: MakeKafkaLog, admin: AdminClient
) -> None:
    """The commands would all be taken again, and done."""

    async def delete() -> None:
        for answer in admin.delete_topics([f"{make.namespace}.events"]).values():
            answer.result()
        await described(make, lambda found: Topic.EVENTS not in found.topics)

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.close()
        await delete()
        log = make()
        assert await log.open(create=True)  # as one whose making was cut short
        await log.append(Topic.COMMANDS, 1, entries(1))
        await log.close()
        await delete()
        for create in (False, True):
            with pytest.raises(LogMissing, match=rf"no topic {make.namespace}\.events"):
                await make().open(create=create)

    asyncio.run(main())


def test_compaction_leaves_the_latest_of_each_key(make: MakeKafkaLog, admin: AdminClient) -> None:
    """F18, F23: what the cleaner leaves behind is read to its end, holes and all."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        settings = {"segment_ms": "50", "min_cleanable_dirty_ratio": "0.01"}
        alter(admin, f"{make.namespace}.snapshots", **settings)
        for turn in range(20):
            batch = [Entry(key, b"%d" % turn) for key in (b"a", b"b", b"c")]
            await log.append(Topic.SNAPSHOTS, 0, batch)
        wanted = [(b"a", b"19"), (b"b", b"19"), (b"c", b"19"), (b"last", b"")]
        deadline = time.monotonic() + 60
        kept: list[tuple[bytes | None, bytes | None]] = []
        while kept[:4] != wanted:
            assert time.monotonic() < deadline, kept
            # Each closes the segment before it, once the broker has heard of the short segments.
            end = await log.append(Topic.SNAPSHOTS, 0, [Entry(b"last", b"")])
            await asyncio.sleep(0.5)
            found = list(await log.read(Topic.SNAPSHOTS, 0, 0))
            while found[-1].offset < (end.offset or 0):  # a read ends at the end of a segment
                found += await log.read(Topic.SNAPSHOTS, 0, found[-1].offset + 1)
            kept = [(record.key, record.value) for record in found]
        assert [record.offset for record in found[:3]] == [57, 58, 59]
        assert await log.bounds(Topic.SNAPSHOTS, 0) == (0, found[-1].offset + 1)
        assert await log.wait(Topic.SNAPSHOTS, 0, 3, timeout_ms=1_000)
        await log.close()

    asyncio.run(main())


# ---- reads


@pytest.mark.parametrize(("handed_on_s", "asks"), [(60.0, [0, 1]), (0.0, [1, 1])])
def test_what_a_wait_has_found_is_given_once_to_the_read_behind_it(
    make: MakeKafkaLog, monkeypatch: pytest.MonkeyPatch, handed_on_s: float, asks: list[int]
) -> None:
    monkeypatch.setattr(kafka_fetch, "HANDED_ON_S", handed_on_s)

    async def main() -> None:
        reader, writer = make(), make()
        await reader.open(create=True)
        await writer.open(create=False)
        fetches = 0
        client = client_of(reader)
        send = client.send

        async def counted(node_id: int, request: object, **group: object) -> object:
            nonlocal fetches
            fetches += isinstance(request, FetchRequest)
            return await send(node_id, request, **group)

        assert await reader.bounds(Topic.EVENTS, 0) == (0, 0)
        client.send = counted
        waiting = asyncio.create_task(reader.wait(Topic.EVENTS, 0, 0, timeout_ms=30_000))
        while not fetches:  # noqa: ASYNC110 - the poll is under way
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await writer.append(Topic.EVENTS, 0, entries(2))
        assert await waiting
        for expected in asks:
            before = fetches
            assert len(await reader.read(Topic.EVENTS, 0, 0)) == 2
            assert fetches - before == expected
        await reader.close()
        await writer.close()

    asyncio.run(main())


# ---- appends


def test_a_batch_without_an_answer_is_not_sent_again(make: MakeKafkaLog) -> None:
    """F15: the client by itself would repeat it for half a minute, behind the back of its owner."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        client = client_of(log)
        sent: list[object] = []
        send = client.send

        async def counted(node_id: int, request: object, **group: object) -> object:
            if isinstance(request, ProduceRequest):
                sent.append(request)
            return await send(node_id, request, **group)

        client.send = counted
        with pytest.raises(RefoldError):
            await make.append_unanswered(CUT, log, Topic.EVENTS, 0, entries(3))
        await asyncio.sleep(0.5)
        assert len(sent) == 1
        assert (await log.append(Topic.EVENTS, 0, entries(2))).offset in (0, 3)
        assert len(sent) == 2
        await log.close()

    asyncio.run(main())


def test_a_limit_that_was_lowered_meanwhile_refuses_the_batch_whole(
    make: MakeKafkaLog, admin: AdminClient
) -> None:
    """F25."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        alter(admin, f"{make.namespace}.events", max_message_bytes="2000")
        await described(
            make, lambda found: found.topics[Topic.EVENTS].settings["max.message.bytes"] == "2000"
        )
        await asyncio.sleep(0.2)  # described by one part of the broker, obeyed by another
        large = [Entry(b"run-1", uuid.uuid4().bytes * 500)]
        large += [Entry(b"run-1", uuid.uuid4().bytes) for _ in range(200)]
        with pytest.raises(BatchTooLarge, match="at most 2000"):
            await log.append(Topic.EVENTS, 0, large)
        assert await log.bounds(Topic.EVENTS, 0) == (0, 0)
        assert (await log.append(Topic.EVENTS, 0, entries(2))).offset == 0
        assert log.facts.batch_size_max == 2_000
        await log.close()

    asyncio.run(main())


def test_a_limit_that_nobody_tells_is_learnt_from_what_is_refused(
    make: MakeKafkaLog, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where brokers of one cluster have limits of their own, or another one poses as Kafka."""

    async def refused(topics: Topics) -> Cluster:
        raise TopicsRefused("nobody may ask")

    async def main() -> None:
        log = make()
        await log.open(create=True)
        for topic in (Topic.EVENTS, Topic.DEAD_LETTERS):
            alter(admin, f"{make.namespace}.{topic.value}", max_message_bytes="2000")
            await described(
                make,
                lambda found, topic=topic: (  # type: ignore[misc]
                    found.topics[topic].settings["max.message.bytes"] == "2000"
                ),
            )
        await asyncio.sleep(0.2)  # described by one part of the broker, obeyed by another
        monkeypatch.setattr(Topics, "describe", refused)
        batch = [Entry(b"run-1", random.Random(1).randbytes(60_000))]
        with pytest.raises(BatchTooLarge):
            await log.append(Topic.DEAD_LETTERS, 0, batch)
        assert log.facts.batch_size_max == 128 * 1024, "copies for people lower nothing"
        for _ in range(2):  # the first one is refused by the broker, the second one before that
            with pytest.raises(BatchTooLarge) as why:
                await log.append(Topic.EVENTS, 0, batch)
            limit = log.facts.batch_size_max
            assert 60_000 <= limit == why.value.size_max < batch_size(batch)
        assert why.value.__cause__ is None, "what is known to be too large is not sent"
        await log.close()

    asyncio.run(main())


def test_a_batch_is_no_larger_than_a_segment(make: MakeKafkaLog, admin: AdminClient) -> None:
    async def main() -> None:
        url = f"kafka://{make.broker.server}/{make.namespace}?partitions=1"
        log = KafkaLog(url, access=Access(), batch_size_max=4 << 20)
        await log.open(create=True)
        assert log.facts.batch_size_max == 4 << 20
        alter(admin, f"{make.namespace}.events", segment_bytes=str(1 << 20))
        await described(
            make, lambda found: found.topics[Topic.EVENTS].settings["segment.bytes"] == str(1 << 20)
        )
        await asyncio.sleep(0.2)  # described by one part of the broker, obeyed by another
        large = [Entry(b"run-1", random.Random(1).randbytes(2 << 20))]
        with pytest.raises(BatchTooLarge, match=f"at most {1 << 20}"):
            await log.append(Topic.EVENTS, 0, large)
        await log.close()
        again = KafkaLog(url, access=Access(), batch_size_max=4 << 20)
        await again.open(create=False)
        assert again.facts.batch_size_max == 1 << 20
        await again.close()

    asyncio.run(main())


def test_large_batches_are_compressed(make: MakeKafkaLog) -> None:
    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, batch := entries(64, size=1_000))
        found = await log.read(Topic.EVENTS, 0, 0)
        assert [Entry(r.key, r.value, r.header) for r in found] == batch
        await log.close()

    asyncio.run(main())
    stored = make.broker.directory / "data" / f"{make.namespace}.events-0"
    assert sum(path.stat().st_size for path in stored.glob("*.log")) < 5_000


def test_a_new_leader_that_is_behind_hides_nothing_that_was_acknowledged(
    make: MakeKafkaLog,
) -> None:
    """KIP-207: after an election a leader shows less for a moment, to fetches without an error."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, entries(4))
        client: Any = log._client
        send = client.send

        async def behind(node_id: int, request: object, **group: object) -> Any:
            response = await send(node_id, request, **group)
            if isinstance(request, FetchRequest):
                client.send = send
                [(topic, [answer])] = response.topics
                partition, code, _, _, start, *rest = answer
                response.topics = [(topic, [(partition, code, 1, 1, start, *rest[:-1], b"")])]
            return response

        client.send = behind
        assert len(await log.read(Topic.EVENTS, 0, 1)) == 3
        client.send = behind
        assert await log.bounds(Topic.EVENTS, 0) == (0, 4)
        client.send = behind
        assert await log.wait(Topic.EVENTS, 0, 3, timeout_ms=1_000)
        assert client.send is send
        await log.close()

    asyncio.run(main())


def test_a_broker_that_sends_nothing_of_what_it_has_ends_a_read(
    make: MakeKafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the end, and no error, and no records: as often as it is asked."""
    monkeypatch.setattr(kafka_fetch, "RETRY_MS", 300)

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, entries(4))
        client: Any = log._client
        send = client.send

        async def bare(node_id: int, request: object, **group: object) -> Any:
            response = await send(node_id, request, **group)
            if isinstance(request, FetchRequest):
                [(topic, [answer])] = response.topics
                response.topics = [(topic, [(*answer[:-1], b"")])]
            return response

        client.send = bare
        with pytest.raises(LogUnavailable, match=r"events partition 0 ends at 4, .*from 1 on"):
            async with asyncio.timeout(60):
                await log.read(Topic.EVENTS, 0, 1)
        client.send = send
        assert len(await log.read(Topic.EVENTS, 0, 1)) == 3
        await log.close()

    asyncio.run(main())


# ---- producers that are not ours


def test_a_command_of_another_client_is_read_and_its_partitioner_known(
    make: MakeKafkaLog,
) -> None:
    """F20: librdkafka's default is not murmur2; a header of another name is not ours."""

    async def main() -> tuple[int, int]:
        log = make()
        await log.open(create=True)
        ours = default = 0
        topic = f"{make.namespace}.commands"
        for partitioner in ("consistent_random", "murmur2_random"):
            settings: dict[str, Any] = {
                "bootstrap.servers": make.broker.server,
                "partitioner": partitioner,
                "log_level": 0,
            }
            producer = Producer(settings)
            for at in range(100):
                producer.produce(topic, f"{partitioner}-{at}".encode(), key=f"run-{at}")
            producer.produce(topic, b"no key", headers={"other": b"x"})
            producer.produce(topic, b"empty", key=b"")
            assert producer.flush(10) == 0
        for partition in range(3):
            for record in await log.read(Topic.COMMANDS, partition, 0):
                assert record.header is None
                if not record.key or record.value is None:
                    continue
                fits = partition_for(record.key.decode(), 3) == partition
                ours += fits and record.value.startswith(b"murmur2")
                default += fits and record.value.startswith(b"consistent")
        await log.close()
        return ours, default

    ours, default = asyncio.run(main())
    assert ours == 100
    assert 10 < default < 60


# ---- owners


def test_a_rebalance_alone_takes_nothing_from_anybody(make: MakeKafkaLog) -> None:
    async def main() -> None:
        logs = [make() for _ in range(3)]
        await logs[0].open(create=True)
        for log in logs[1:]:
            await log.open(create=False)

        async def settled(count: int) -> list[frozenset[int]]:
            while True:
                answers = [
                    (await log.suggest(f"owner-{at}")).partitions
                    for at, log in enumerate(logs[:count])
                ]
                assert answers[0], "the first one served on through every rebalance"
                if sum(map(len, answers)) == 3 and all(answers):
                    return answers
                await asyncio.sleep(0.02)

        while not (await logs[0].suggest("owner-0")).partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        one = (await settled(1))[0]
        two = (await settled(2))[0]
        three = (await settled(3))[0]
        assert one > two >= three, "it only gives away"
        for log in logs:
            await log.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_who_comes_back_under_its_name_has_its_partitions_at_once(make: MakeKafkaLog) -> None:
    """Static membership: nobody waits for the session of the one that died, nothing moves."""

    async def main() -> None:
        make.session_ms = 300_000
        logs = [make(), make()]
        await logs[0].open(create=True)
        await logs[1].open(create=False)
        shares: list[frozenset[int]] = [frozenset(), frozenset()]
        while len(shares[0] | shares[1]) < 3 or not all(shares):
            shares = [(await log.suggest(f"owner-{at}")).partitions for at, log in enumerate(logs)]
            await asyncio.sleep(0.02)
        await logs[1].kill()
        again = make()
        await again.open(create=False)
        while (await again.suggest("owner-1")).partitions != shares[1]:
            assert (await logs[0].suggest("owner-0")).partitions == shares[0]
            await asyncio.sleep(0.02)
        await logs[0].close()
        await again.close()

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_blocked_loop_keeps_its_partitions(make: MakeKafkaLog) -> None:
    """Run code that blocks the loop does not lose them: the group is told by another thread."""
    held: list[frozenset[int]] = []

    async def other() -> None:
        log = make()
        await log.open(create=False)
        for _ in range(12):
            held.append((await log.suggest("other")).partitions)
            await asyncio.sleep(0.3)
        await log.close()

    async def main() -> None:
        make.partitions = 1
        log = make()
        await log.open(create=True)
        while not (await log.suggest("blocked")).partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        while thread.is_alive():
            time.sleep(0.05)  # noqa: ASYNC251 - the fault that is tested
        assert held == [frozenset()] * 12
        assert (await log.suggest("blocked")).partitions == {0}
        await log.close()

    asyncio.run(main())


def test_who_was_frozen_has_nothing_until_the_group_says_so(make: MakeKafkaLog) -> None:
    """It has given the partitions to others meanwhile, and the one that wakes knows nothing yet."""

    async def main() -> None:
        make.partitions = 1
        log = make()
        await log.open(create=True)
        while not (await log.suggest("frozen")).partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        owners = log._owners
        assert owners is not None
        member, woke = owners._members["frozen"], asyncio.Event()
        loop, seen = asyncio.get_running_loop(), list[object]()

        def freeze() -> None:
            time.sleep(2 * make.session_ms / 1000)
            seen.extend((member.partitions, member.failure))
            loop.call_soon_threadsafe(woke.set)

        owners._loop.call_soon_threadsafe(freeze)
        await woke.wait()
        partitions, failure = seen
        assert (partitions, type(failure)) == (frozenset(), TimeoutError)
        found: frozenset[int] = frozenset()
        while not found:
            with suppress(LogUnavailable):
                found = (await log.suggest("frozen")).partitions
            await asyncio.sleep(0.02)
        await log.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_positions_are_never_committed_to_the_group(make: MakeKafkaLog, admin: AdminClient) -> None:
    """F22: a position is part of the fold; there is none that the broker could lose or reset."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.COMMANDS, 0, entries(5))
        while not (await log.suggest("owner")).partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await log.read(Topic.COMMANDS, 0, 0)
        await log.close()

    asyncio.run(main())
    from confluent_kafka import ConsumerGroupTopicPartitions

    request = ConsumerGroupTopicPartitions(f"{make.namespace}.owners")
    [answer] = admin.list_consumer_group_offsets([request]).values()
    assert answer.result().topic_partitions == []


# ---- URLs


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://", "names no broker"),
        ("kafka:///ns", "names no broker"),
        ("kafka://host:9092", "names no namespace"),
        ("kafka://host:9092/", "names no namespace"),
        ("kafka://host:x/ns", "no host:port"),
        ("kafka://host:99999/ns", "no host:port"),
        ("kafka://a,,b/ns", "no host:port"),
        ("kafka://host/a/b", "namespace 'a/b'"),
        ("kafka://host/ns?partitions=0", "partitions=0"),
        ("kafka://host/ns?ns=x", "unknown setting 'ns'"),
    ],
)
def test_a_url_that_does_not_parse_is_refused_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(LogUrlInvalid, match=reason):
        open_log(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(LogUrlInvalid, match="REFOLD_KAFKA_PASSWORD") as refused:
        open_log("kafka://me:hunter2@host/ns")
    assert "hunter2" not in str(refused.value) + repr(refused.value.url)


def test_a_cluster_that_is_not_there_is_said_soon() -> None:
    async def main() -> None:
        log = KafkaLog(f"kafka://127.0.0.1:{free_port()}/ns", access=Access())
        with pytest.raises(LogUnavailable, match="Connect call failed") as away:
            await log.open(create=False)
        assert away.value.exit_code == 4

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 5
