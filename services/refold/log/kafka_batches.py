"""Appending to Kafka: one record batch for each call, sent once, and what its answer means."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer, errors
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import TopicPartition

from refold.log.kafka_fetch import HEADER
from refold.log.port import Ack, Entry

COMPRESS_FROM = 4 << 10
"""A smaller batch costs more time to compress than it saves."""
STOP_S = 0.5
RETRY_PAUSE_S = 0.05
_GZIP = 1
# Raised before anything is sent, or said by a broker that has not stored the batch.
NOT_STORED = (
    errors.LeaderNotAvailableError,
    errors.NodeNotReadyError,
    errors.NotEnoughReplicasError,
    errors.NotLeaderForPartitionError,
    errors.UnknownTopicOrPartitionError,
)
REFUSED = (
    errors.ClusterAuthorizationFailedError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
)
"""Not stored, and trying again is of no use."""


class Sender:
    """Sends batches of one handle: acks=all, no idempotence, and never the same one twice.

    An idempotent producer would add nothing but fatal states: the fold skips duplicates. Neither
    is a batch sent again after an error that leaves its fate open: that would store it late, and
    twice, where the caller has long begun a new claim.
    """

    def __init__(self, producer: AIOKafkaProducer, size_max: int) -> None:
        self.producer, self.size_max = producer, size_max
        # aiokafka repeats a batch until it is this old (seconds). It has no setting for never.
        producer._message_accumulator._batch_ttl = -1.0

    async def send(
        self, place: TopicPartition, entries: Sequence[Entry], size: int, timeout_s: float
    ) -> Ack:
        """Append `entries` as one batch. `size` is the most that they can take, uncompressed.

        Raises the errors of `NOT_STORED` after `timeout_s`, and at once any other of aiokafka's.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                answer = await self.producer.send_batch(
                    self._batch(entries, size), place.topic, partition=place.partition
                )
                metadata = await answer
            except NOT_STORED:
                if loop.time() > deadline:
                    raise
                await self.producer.client.force_metadata_update()
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            if metadata is None:
                return Ack(None)
            append_ms = metadata.timestamp
            return Ack(metadata.offset, None if append_ms is None or append_ms < 0 else append_ms)

    def _batch(self, entries: Sequence[Entry], size: int) -> BatchBuilder:
        if size >= COMPRESS_FROM:
            batch = BatchBuilder(self.size_max, _GZIP)
        else:
            batch = self.producer.create_batch()
        for key, value, header in entries:
            headers = [] if header is None else [(HEADER, header)]
            added = batch.append(timestamp=None, key=key, value=value, headers=headers)
            # None would mean: full, and everything from here on is left out.
            assert added is not None, f"{size} bytes do not fit into {self.size_max}"
        batch.close()
        return batch

    async def close(self) -> None:
        """Stop the producer; what has no answer by then never gets one."""
        stop = asyncio.create_task(self.producer.stop())
        while not stop.done():
            await asyncio.wait([stop], timeout=STOP_S)
            if not stop.done():
                await self.producer.client.close()
        stop.result()
