"""The same figures in a process that has the log open itself: for `refold dev`, without Kafka.

They begin with what the log still holds and live in memory; a restart counts anew. Either somebody
who reads the log anyway feeds them, or `run` reads it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from refold.live.metrics import figure_samples
from refold.live.service import now_ms
from refold.log import Log, Topic
from refold.log.port import Record
from refold.settings.registry import open_registry
from refold.telemetry import Sample
from refold.telemetry.tracing import SpanSender
from refold_projections.figures import Figures, PartitionFigures, RecordsChanged, Source
from refold_schemas.codec import Codec
from refold_schemas.codec.learning import learn
from refold_schemas.errors import OffsetOutOfRange, SchemaUnavailable
from refold_schemas.errors.log import LogUnavailable

READ_BYTES = 256 << 10
"""So much at once: between two reads others have the loop."""
WAIT_MS = 1_000
AGAIN_S = 1.0


class EmbeddedFigures:
    """Figures of all partitions of an open log. `figures` is what people read.

    `spans` is given the traces of what happens from now on: those of what the log holds already
    were sent by whoever counted it then.
    """

    def __init__(
        self,
        log: Log,
        *,
        codec: Codec | None = None,
        spans: SpanSender | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._log, self._spans = log, spans
        self._codec = codec or Codec(open_registry(log.url))
        self._partitions: dict[int, PartitionFigures] = {}
        self.figures = Figures(self._sources, clock)
        self.restarts = 0
        """How often a partition was counted anew because the log was cut or trimmed under it."""
        self._ends: dict[int, int] = {}

    def _sources(self) -> Mapping[int, Source]:
        return dict(self._partitions)

    def samples(self) -> Iterable[Sample]:
        """What `refold live` exports, of this process. Call it in the loop."""
        from refold import __version__

        yield Sample("refold_service_info", ("live", __version__, self._log.facts.namespace), 1)
        yield Sample("refold_live_partitions", (), len(self._partitions))
        read = sum(one.read for one in self._partitions.values())
        yield Sample("refold_live_records_total", (), read)
        for partition, end in self._ends.items():
            lag = max(end - self.of(partition).position.offset_next, 0)
            yield Sample("refold_live_lag_records", (str(partition),), lag)
        if self._spans is not None:
            yield Sample("refold_spans_sent_total", (), self._spans.sent)
            yield Sample("refold_spans_dropped_total", (), self._spans.dropped)
        yield from figure_samples(self.figures)

    def of(self, partition: int) -> PartitionFigures:
        """The figures of a partition."""
        found = self._partitions.get(partition)
        if found is None:
            found = PartitionFigures(self._codec, traces=self._spans is not None)
            self._partitions[partition] = found
        return found

    async def feed(self, partition: int, records: Iterable[Record]) -> None:
        """Count records that somebody has read, in their order; again or not.

        Raises SchemaUnavailable in front of one whose schema cannot be asked for now.
        """
        for record in records:
            figures = self.of(partition)
            try:
                figures.apply(record)
            except SchemaUnavailable as unknown:
                try:
                    await learn(self._codec, unknown)
                except SchemaUnavailable as still:
                    if still.mends:
                        raise
                    figures.apply(record, unknown=still)
                    continue
                figures.apply(record)
            except RecordsChanged:
                self._anew(partition)
                return
        figures = self.of(partition)
        if figures.unwritten:
            figures.changes()  # nobody stores them; it is what drops windows that are over

    async def run(self) -> None:
        """Read the whole log and follow it, until cancelled."""
        await self._codec.ready()
        count = self._log.facts.partition_count
        async with asyncio.TaskGroup() as tasks:
            for partition in range(count):
                tasks.create_task(self._follow(partition), name=f"figures-{partition}")

    def _anew(self, partition: int) -> None:
        self._partitions.pop(partition, None)
        self.restarts += 1

    async def _follow(self, partition: int) -> None:
        log = self._log
        present: int | None = None
        while True:
            figures = self.of(partition)
            offset = figures.position.offset_next
            try:
                start, end = await log.bounds(Topic.EVENTS, partition)
                self._ends[partition] = end
                if present is None:
                    present = end
                if end < offset:
                    self._anew(partition)
                    continue
                if start > offset:
                    figures.begin_at(start)
                    continue
                records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_BYTES)
                await self.feed(partition, records)
                if self._spans is not None and figures.spans:
                    spans, figures.spans = figures.spans, []
                    if offset >= present:
                        await self._spans.send(spans)
                if not records:
                    if end > offset:  # nothing but holes
                        figures.begin_at(end)
                    await log.wait(
                        Topic.EVENTS,
                        partition,
                        figures.position.offset_next,
                        timeout_ms=WAIT_MS,
                    )
                else:
                    await asyncio.sleep(0)
            except (LogUnavailable, OffsetOutOfRange, SchemaUnavailable):
                await asyncio.sleep(AGAIN_S)
