"""A topic beside those of a namespace: made, read in bulk, deleted; what others keep in it.

Nothing in it is the truth of anything: it can be made again from the log.
"""

import ssl
from collections.abc import Mapping

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition

from refold.log.kafka_access import Access, access_from_settings, connect, told
from refold.log.kafka_fetch import OutOfRange, Reader
from refold.log.kafka_topics import Topics, TopicsRefused
from refold.log.kafka_url import parse_url
from refold.log.port import Record
from refold_schemas.errors.log import LogUnavailable

READ_SIZE = 4 << 20
_ERRORS = (errors.KafkaError, OSError, TimeoutError, TopicsRefused)


class SideTopic:
    """One such topic, on the cluster of a log. Every method raises LogUnavailable."""

    def __init__(self, url: str, suffix: str, *, access: Access | None = None) -> None:
        """`url` is the log's; the topic is named after its namespace and `suffix`."""
        place = parse_url(url)
        self.url, self.servers, self.namespace = place.url, place.servers, place.namespace
        self.name = f"{place.namespace}.{suffix}"
        self.access = access_from_settings() if access is None else access
        self._client: AIOKafkaClient | None = None
        self._reader: Reader | None = None

    async def make(self, partition_count: int, settings: Mapping[str, str]) -> bool:
        """Make it if it is missing; whether it was."""
        try:
            return await self._topics().make_side(self.name, partition_count, settings)
        except _ERRORS as error:
            raise self._unavailable(error) from error

    async def describe(self) -> tuple[int, dict[str, str]] | None:
        """Its partition count and settings; None where there is none."""
        try:
            return await self._topics().describe_side(self.name)
        except _ERRORS as error:
            raise self._unavailable(error) from error

    async def delete(self) -> None:
        """Delete it with all that is in it."""
        try:
            await self._topics().delete_side(self.name)
        except _ERRORS as error:
            raise self._unavailable(error) from error

    async def open(self) -> None:
        """Connect for reading."""
        try:
            self._client = await connect(self.access.of_aiokafka(self.servers))
            await self._client.set_topics([self.name])
            self._reader = Reader(self._client)
        except (*_ERRORS, ssl.SSLError, ValueError) as error:
            await self.close()
            raise self._unavailable(error) from error

    async def read(self, partition: int, offset: int) -> list[Record]:
        """Records from `offset` on, many at once; where that is gone, from the first one kept."""
        assert self._reader is not None
        place = TopicPartition(self.name, partition)
        try:
            try:
                return await self._reader.read(place, offset, READ_SIZE)
            except OutOfRange:
                start, _ = await self._reader.bounds(place)
                return await self._reader.read(place, start, READ_SIZE)
        except (*_ERRORS, OutOfRange) as error:
            raise self._unavailable(error) from error

    async def end(self, partition: int) -> int:
        """The offset of the next record to be written."""
        assert self._reader is not None
        try:
            _, end = await self._reader.bounds(TopicPartition(self.name, partition))
        except _ERRORS as error:
            raise self._unavailable(error) from error
        return int(end)

    async def close(self) -> None:
        """Give the connection back."""
        reader, self._reader = self._reader, None
        client, self._client = self._client, None
        if reader is not None:
            await reader.close()
        if client is not None:
            await client.close()

    def _topics(self) -> Topics:
        return Topics(self.access.of_librdkafka(self.servers), self.namespace)

    def _unavailable(self, error: BaseException) -> LogUnavailable:
        reason = str(error) if isinstance(error, TopicsRefused) else told(error)
        return LogUnavailable(self.url, f"{self.name}: {reason}")
