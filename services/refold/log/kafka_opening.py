"""Opening a namespace on Kafka: the cluster is reached, its topics are found, made or mended."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition

from refold.log.kafka_access import Access, access_from_settings, connect, told
from refold.log.kafka_fetch import Reader
from refold.log.kafka_settings import Cluster, plan, problems, size_max_of, telling, topic_name
from refold.log.kafka_topics import Topics, TopicsRefused
from refold.log.kafka_url import PARTITION_COUNT_DEFAULT, Place
from refold.log.port import LogFacts, Topic, Upgrade
from refold_schemas.errors.log import LogMissing, LogUnavailable, LogUrlInvalid, NotUpgradable

_COPIES = Topic.DEAD_LETTERS
_TRUTH = (Topic.COMMANDS, Topic.EVENTS)


class Reached(NamedTuple):
    """A cluster that answers: a client of it, and the settings for more of either library's."""

    client: AIOKafkaClient
    settings: dict[str, Any]
    admin_settings: dict[str, Any]
    topics: Topics


class Opening:
    """What opening the namespace of one URL takes. `batch_size_max` is for topics yet to be made.

    Without `access` the environment says how the cluster may be reached.
    """

    def __init__(
        self, place: Place, *, access: Access | None, batch_size_max: int, request_timeout_ms: int
    ) -> None:
        self._place, self._access = place, access
        self._batch_size_max, self._request_timeout_ms = batch_size_max, request_timeout_ms

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator[Reached]:
        """A connection, which is closed if what is done with it fails. Raises LogUnavailable."""
        url, servers = self._place.url, self._place.servers
        access = access_from_settings() if self._access is None else self._access
        try:
            settings = access.of_aiokafka(servers)
        except (OSError, ssl.SSLError) as error:
            raise LogUnavailable(
                url,
                f"the CA certificates in {access.cafile} cannot be read: {told(error)}",
                next="correct REFOLD_KAFKA_CAFILE",
            ) from error
        settings["request_timeout_ms"] = self._request_timeout_ms
        client: AIOKafkaClient | None = None
        try:
            # First of all a connection: it says in a moment whether there is a broker.
            client = await connect(settings)
            admin_settings = access.of_librdkafka(servers)
            topics = Topics(admin_settings, self._place.namespace)
            yield Reached(client, settings, admin_settings, topics)
        except BaseException as error:
            if client is not None:
                await client.close()
            refused = (errors.KafkaError, OSError, TimeoutError, TopicsRefused, ValueError)
            if isinstance(error, refused):
                reason = str(error) if isinstance(error, TopicsRefused) else told(error)
                raise LogUnavailable(
                    url,
                    reason,
                    next="check that the brokers run and that REFOLD_KAFKA_* fit them, "
                    "then start again; refold goes on from the log",
                ) from error
            raise

    async def find(self, reached: Reached, *, create: bool) -> tuple[Cluster, bool]:
        """The topics, and whether any was made. Raises LogMissing, TopicsRefused."""
        url = self._place.url
        cluster = await reached.topics.describe()
        missing = [topic for topic in Topic if topic not in cluster.topics]
        if not missing:
            return cluster, False
        if not create:
            if len(missing) == len(Topic):
                raise self._no_namespace()
            raise LogMissing(url, f"there is no topic {self._names(missing)}")
        lost = [topic for topic in missing if topic in _TRUTH]
        if lost and await self._was_used(reached.client, cluster):
            raise LogMissing(
                url,
                f"there is no topic {self._names(lost)}, and other topics of it hold records: an "
                "empty one in its place would have every command done again",
                next="find out who deleted it; a log that lost records is a matter of "
                "docs/errors/R013.md",
            )
        # Of those that are there one says how many: a process may have died while it made them.
        made = [one.partition_count for t, one in cluster.topics.items() if t is not _COPIES]
        count = max(made, default=self._place.partition_count or PARTITION_COUNT_DEFAULT)
        return await reached.topics.make(count, self._batch_size_max), True

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """Make and correct what can be. Raises LogMissing, LogUnavailable, NotUpgradable."""
        url = self._place.url
        async with self.reached() as reached:
            cluster = await reached.topics.describe()
            missing = [topic for topic in Topic if topic not in cluster.topics]
            if len(missing) == len(Topic):
                raise self._no_namespace()
            lost = [topic for topic in missing if topic in _TRUTH]
            if lost:
                raise NotUpgradable(url, f"there is no topic {self._names(lost)}")
            wanted = plan(self._place.namespace, cluster)
            if not dry_run:
                await reached.topics.carry_out(wanted, self._batch_size_max)
        await reached.client.close()
        return Upgrade(wanted.said, wanted.left)

    async def _was_used(self, client: AIOKafkaClient, cluster: Cluster) -> bool:
        """Whether anything was ever written into the topics that are there."""
        names = [topic_name(self._place.namespace, topic) for topic in cluster.topics]
        await client.set_topics(names)
        reader = Reader(client)
        for name, state in zip(names, cluster.topics.values(), strict=True):
            for partition in range(state.partition_count):
                _, end = await reader.bounds(TopicPartition(name, partition))
                if end:
                    return True
        return False

    def _no_namespace(self) -> LogMissing:
        return LogMissing(self._place.url, f"it has no namespace {self._place.namespace!r}")

    def _names(self, topics: list[Topic]) -> str:
        return ", ".join(topic_name(self._place.namespace, topic) for topic in topics)


def facts_of(place: Place, cluster: Cluster) -> LogFacts:
    """What the log is, where all topics are there.

    Raises LogUrlInvalid if the URL asks for another partition count than they have.
    """
    counts = tuple(cluster.topics[topic].partition_count for topic in Topic)
    # Of counts that differ the least is what every topic has; nobody owns such a log.
    count = min(n for n, topic in zip(counts, Topic, strict=True) if topic is not _COPIES)
    asked = place.partition_count
    if asked is not None and asked != count:
        raise LogUrlInvalid(
            place.url,
            f"it asks for {asked} partitions, the topics have {count}; leave ?partitions out, "
            "it counts only when a namespace is made",
        )
    return LogFacts(
        place.namespace,
        count,
        tuple(cluster.topics[topic].topic_id for topic in Topic),
        size_max_of(cluster),
        counts,
        tuple(problems(place.namespace, cluster)),
        tuple(telling(topic, cluster.topics[topic]) for topic in Topic),
        cluster.broker_count,
    )
