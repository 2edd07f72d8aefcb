"""The topics of a namespace on Kafka, on a librdkafka client: described, made, corrected."""

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs forget to export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from refold.log.kafka_settings import (
    REPLICATION_MAX,
    Cluster,
    Plan,
    TopicState,
    settings_of,
    topic_name,
)
from refold.log.port import Topic

TIMEOUT_S = 30.0
MADE_WITHIN_S = 30.0
"""How long after their creation all topics must have a leader for each partition."""


class TopicsRefused(Exception):
    """The cluster did not do what was asked of its topics; the text says why."""


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
                    topic = resources[resource]
                    try:
                        entries = await _answer(answer)
                    except KafkaException as error:
                        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                            raise
                        del found[topic]  # deleted between the two answers: it is missing
                        continue
                    settings[topic] = {name: entry.value or "" for name, entry in entries.items()}
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
        return await self._until(dict.fromkeys(Topic, 1), {})

    async def carry_out(self, plan: Plan, batch_size_max: int) -> None:
        """Do what a plan says, and wait until it can be seen. Raises TopicsRefused."""
        for topic, settings in plan.alter.items():
            changes = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in settings.items()
            ]
            name = topic_name(self.namespace, topic)
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
            answers = self._admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)
            await self._done(answers.values(), name)
        for topic, count in plan.grow.items():
            name = topic_name(self.namespace, topic)
            grown = self._admin.create_partitions(
                [NewPartitions(name, count)], request_timeout=TIMEOUT_S
            )
            await self._done(grown.values(), name)
        if plan.make:
            await self.make(plan.partition_count, batch_size_max)
        await self._until(plan.grow, plan.alter)

    async def make_side(self, name: str, partition_count: int, settings: Mapping[str, str]) -> bool:
        """Make a topic beside those of the namespace, if it is missing; whether it was.

        As many replicas as the namespace's own get. Raises TopicsRefused.
        """
        if await self.describe_side(name) is not None:
            return False
        cluster = await self.describe()
        replication = min(REPLICATION_MAX, cluster.broker_count)
        wanted = NewTopic(
            name,
            num_partitions=partition_count,
            replication_factor=replication,
            config=dict(settings),
        )
        answers = self._admin.create_topics([wanted], request_timeout=TIMEOUT_S)
        made = True
        for answer in answers.values():
            try:
                await _answer(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise TopicsRefused(f"{name}: {error.args[0].str()}") from error
                made = False
        deadline = asyncio.get_running_loop().time() + MADE_WITHIN_S
        while await self.describe_side(name) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise TopicsRefused(f"{name}: no leader within {MADE_WITHIN_S:g} s")
            await asyncio.sleep(0.05)
        return made

    async def describe_side(self, name: str) -> tuple[int, dict[str, str]] | None:
        """Partition count and settings; None where it is missing, or not led yet."""
        described = self._admin.describe_topics(TopicCollection([name]), request_timeout=TIMEOUT_S)
        try:
            found = await _answer(described[name])
            resource = ConfigResource(ResourceType.TOPIC, name)
            answers = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            entries = await _answer(answers[resource])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise TopicsRefused(f"{name}: {error.args[0].str()}") from error
        if any(part.leader is None for part in found.partitions):
            return None
        settings = {key: entry.value or "" for key, entry in entries.items()}
        return len(found.partitions), settings

    async def delete_side(self, name: str) -> None:
        """Delete a topic beside those of the namespace; none is no error. Raises TopicsRefused."""
        answers = self._admin.delete_topics([name], request_timeout=TIMEOUT_S)
        try:
            await _answer(answers[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicsRefused(f"{name}: {error.args[0].str()}") from error
        deadline = asyncio.get_running_loop().time() + MADE_WITHIN_S
        while await self.describe_side(name) is not None:
            if asyncio.get_running_loop().time() > deadline:
                raise TopicsRefused(f"{name}: it is still there after {MADE_WITHIN_S:g} s")
            await asyncio.sleep(0.05)

    @staticmethod
    async def _done(answers: "Iterable[Future[Any]]", name: str) -> None:
        for answer in answers:
            try:
                await _answer(answer)
            except KafkaException as error:
                raise TopicsRefused(f"{name}: {error.args[0].str()}") from error

    async def _until(
        self, counts: Mapping[Topic, int], settings: Mapping[Topic, Mapping[str, str]]
    ) -> Cluster:
        """The topics once they have so many partitions, each led, and these settings."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MADE_WITHIN_S
        while True:
            cluster = await self.describe()
            found = cluster.topics
            if all(
                topic in found and found[topic].led and found[topic].partition_count >= count
                for topic, count in counts.items()
            ) and all(
                wanted.items() <= found[t].settings.items() for t, wanted in settings.items()
            ):
                return cluster
            if loop.time() > deadline:
                raise TopicsRefused(f"no leader for each partition within {MADE_WITHIN_S:g} s")
            await asyncio.sleep(0.05)


async def _answer(future: "Future[Any]") -> Any:
    return await asyncio.wrap_future(future)
