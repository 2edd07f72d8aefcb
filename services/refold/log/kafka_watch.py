"""Whether the topics on Kafka are still those that were opened: what an owner must know in time."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiokafka.client import AIOKafkaClient

from refold.log.kafka_settings import Cluster, changes, topic_name
from refold.log.kafka_topics import Topics
from refold.log.port import LogFacts, Topic
from refold.log.routing import are_equal, told_counts
from refold_schemas.errors.log import LogUnsafe, PartitionsRaised

COUNTS_LOOK_S = 5.0
"""How often an owner looks whether somebody has raised a partition count."""
TOPICS_LOOK_S = 30.0
"""How often an owner looks whether the topics are those that it opened, and still keep all."""


class Watch:
    """Looks at the topics of one handle, never while somebody waits: a later call sees the answer.

    `admin_settings` are those of a librdkafka client; `client` has all topics in its metadata.
    """

    def __init__(
        self, url: str, facts: LogFacts, client: AIOKafkaClient, admin_settings: Mapping[str, Any]
    ) -> None:
        self._url, self._facts, self._client = url, facts, client
        self._admin_settings = admin_settings
        self._counts_look_s = 0.0
        self._topics_look_s = asyncio.get_running_loop().time() + TOPICS_LOOK_S
        self._looking: asyncio.Task[list[str]] | None = None

    def check(self) -> None:
        """Raise LogUnsafe or PartitionsRaised where nobody may own partitions of the topics."""
        facts = self._facts
        if facts.unsafe:
            raise LogUnsafe(self._url, facts.unsafe)
        if not are_equal(facts):
            known = "a run's records are in the same partition of all three"
            raise PartitionsRaised(self._url, told_counts(facts), known)
        self.check_counts()
        self._check_topics()

    def check_counts(self) -> None:
        """Raise PartitionsRaised where topics have more partitions than when they were opened."""
        now = asyncio.get_running_loop().time()
        if now >= self._counts_look_s:
            self._counts_look_s = now + COUNTS_LOOK_S
            self._client.force_metadata_update()  # its answer is seen at a later call
        facts = self._facts
        counts: list[int] = []
        for topic, before in zip(Topic, facts.partition_counts, strict=True):
            name = topic_name(facts.namespace, topic)
            known = self._client.cluster.partitions_for_topic(name)
            counts.append(max(before, len(known or ())))
        if counts != list(facts.partition_counts):
            now_there = told_counts(replace(facts, partition_counts=tuple(counts)))
            known = f"there were {facts.partition_count} when this process opened it"
            raise PartitionsRaised(self._url, now_there, known)

    async def describe(self) -> Cluster:
        """The topics as they are now. Raises TopicsRefused."""
        return await Topics(self._admin_settings, self._facts.namespace).describe()

    async def close(self) -> None:
        """End a look under way."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])
            if not looking.cancelled():
                looking.exception()  # nobody reads any more what it ended with

    def _check_topics(self) -> None:
        """Raise LogUnsafe where topics were made anew, or told to forget, since they were opened.

        Offsets do not tell: a topic that was made anew soon has those of the old one.
        """
        now, looking = asyncio.get_running_loop().time(), self._looking
        if looking is None:
            if now >= self._topics_look_s:
                self._looking = asyncio.create_task(self._changed())
            return
        if looking.done():
            self._looking, self._topics_look_s = None, now + TOPICS_LOOK_S
            # One that failed says nothing of the topics; the next one will.
            if not looking.cancelled() and looking.exception() is None and looking.result():
                raise LogUnsafe(self._url, looking.result())

    async def _changed(self) -> list[str]:
        facts = self._facts
        ids = dict(zip(Topic, facts.topic_ids, strict=True))
        return changes(facts.namespace, ids, await self.describe())
