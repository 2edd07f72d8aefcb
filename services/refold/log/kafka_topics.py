"""The topics of a namespace on Kafka: made, described, and held against what refold promises."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs forget to export
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from refold.log.port import Topic

REPLICATION_MAX = 3
TIMEOUT_S = 30.0
MADE_WITHIN_S = 30.0
"""How long after their creation all topics must have a leader for each partition."""
SNAPSHOT_SEGMENT_BYTES = 64 << 20
SNAPSHOT_SEGMENT_MS = 3_600_000
# The cleaner leaves the newest segment alone: with a broker's default of 1 GiB it would never come.
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SNAPSHOT_SEGMENT_BYTES),
    "segment.ms": str(SNAPSHOT_SEGMENT_MS),
}
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class TopicState(NamedTuple):
    """A topic as the cluster describes it."""

    topic_id: str
    partition_count: int
    replication: int
    settings: Mapping[str, str]
    led: bool
    """Whether each partition has a leader."""


class Cluster(NamedTuple):
    """Those of the namespace's topics that exist, and how many brokers answer."""

    topics: Mapping[Topic, TopicState]
    broker_count: int


class TopicsRefused(Exception):
    """The cluster did not do what was asked of its topics; the text says why."""


def topic_name(namespace: str, topic: Topic) -> str:
    """The name of a namespace's topic on the cluster."""
    return f"{namespace}.{topic.value}"


class Topics:
    """Topic administration for one namespace, with a librdkafka client of its own."""

    def __init__(self, settings: Mapping[str, Any], namespace: str) -> None:
        quiet = {"log_level": 0, "socket.timeout.ms": int(TIMEOUT_S * 1000)}
        self._admin = AdminClient({**settings, **quiet})
        self.namespace = namespace

    async def describe(self) -> Cluster:
        """The topics as they are. Raises TopicsRefused."""
        names = {topic_name(self.namespace, topic): topic for topic in Topic}
        described = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=TIMEOUT_S
        )
        cluster = self._admin.describe_cluster(request_timeout=TIMEOUT_S)
        found: dict[Topic, Any] = {}
        for name, answer in described.items():
            try:
                found[names[name]] = await _answer(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise TopicsRefused(error.args[0].str()) from error
        resources = {
            ConfigResource(ResourceType.TOPIC, topic_name(self.namespace, topic)): topic
            for topic in found
        }
        settings: dict[Topic, dict[str, str]] = {}
        try:
            broker_count = len((await _answer(cluster)).nodes)
            if resources:
                answers = self._admin.describe_configs(list(resources), request_timeout=TIMEOUT_S)
                for resource, answer in answers.items():
                    entries = await _answer(answer)
                    settings[resources[resource]] = {
                        name: entry.value or "" for name, entry in entries.items()
                    }
        except KafkaException as error:
            raise TopicsRefused(error.args[0].str()) from error
        topics = {
            topic: TopicState(
                str(description.topic_id),
                len(description.partitions),
                min((len(part.replicas) for part in description.partitions), default=0),
                settings[topic],
                all(part.leader is not None for part in description.partitions),
            )
            for topic, description in found.items()
        }
        return Cluster(topics, broker_count)

    async def make(self, partition_count: int, batch_size_max: int) -> Cluster:
        """Make what is missing and wait until it can be written. Raises TopicsRefused.

        Three replicas, of which two must acknowledge, where there are brokers enough.
        """
        cluster = await self.describe()
        missing = [topic for topic in Topic if topic not in cluster.topics]
        replication = min(REPLICATION_MAX, cluster.broker_count)
        wanted = [
            NewTopic(
                topic_name(self.namespace, topic),
                num_partitions=partition_count,
                replication_factor=replication,
                config=settings_of(topic, replication, batch_size_max),
            )
            for topic in missing
        ]
        answers = self._admin.create_topics(wanted, request_timeout=TIMEOUT_S) if wanted else {}
        for name, answer in answers.items():
            try:
                await _answer(answer)
            except KafkaException as error:
                # Another process makes the same ones at this moment: whoever comes first.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise TopicsRefused(f"{name}: {error.args[0].str()}") from error
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MADE_WITHIN_S
        while True:
            cluster = await self.describe()
            if len(cluster.topics) == len(Topic) and all(t.led for t in cluster.topics.values()):
                return cluster
            if loop.time() > deadline:
                raise TopicsRefused(f"no leader for each partition within {MADE_WITHIN_S:g} s")
            await asyncio.sleep(0.05)


async def _answer(future: "Future[Any]") -> Any:
    return await asyncio.wrap_future(future)


def settings_of(topic: Topic, replication: int, batch_size_max: int) -> dict[str, str]:
    """The settings with which a topic is made."""
    return {
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(batch_size_max),
        "min.insync.replicas": "2" if replication >= REPLICATION_MAX else "1",
        "unclean.leader.election.enable": "false",
        **(_COMPACTED if topic is Topic.SNAPSHOTS else _KEPT),
    }


def problems(namespace: str, cluster: Cluster) -> list[str]:
    """What of the topics cannot hold the promises: a worker must not own partitions of them.

    A cluster of less than three brokers is accepted: its acknowledgement survives a killed
    process, though not a lost disk.
    """
    found: list[str] = []
    counts = {
        topic: cluster.topics[topic].partition_count
        for topic in (Topic.COMMANDS, Topic.EVENTS, Topic.SNAPSHOTS)
        if topic in cluster.topics
    }
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{topic_name(namespace, t)} {count}" for t, count in counts.items())
        found.append(f"the partition counts differ ({told})")
    for topic, state in cluster.topics.items():
        name = topic_name(namespace, topic)
        settings = state.settings

        def unlike(setting: str, wanted: str, name: str = name, has: Any = settings) -> None:
            if has.get(setting) != wanted:
                found.append(f"{name} has {setting}={has.get(setting)}, not {wanted}")

        unlike("message.timestamp.type", "LogAppendTime")
        unlike("unclean.leader.election.enable", "false")
        if topic is Topic.SNAPSHOTS:
            unlike("cleanup.policy", "compact")
        elif topic is not Topic.DEAD_LETTERS:
            unlike("cleanup.policy", "delete")
            unlike("retention.ms", "-1")
            unlike("retention.bytes", "-1")
        if cluster.broker_count >= REPLICATION_MAX:
            if state.replication < REPLICATION_MAX:
                found.append(
                    f"{name} has {state.replication} replicas on {cluster.broker_count} brokers, "
                    f"not {REPLICATION_MAX}"
                )
            if int(settings.get("min.insync.replicas", "1")) < 2:
                found.append(f"{name} has min.insync.replicas=1, not 2")
    return found
