"""`refold live` as a process: topic, Faust app, what it answers with, and its end."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from refold.live.metrics import figure_samples
from refold.live.topic import SETTINGS, SUFFIX, check
from refold.log import Log
from refold.settings.registry import open_registry
from refold.telemetry import Sample
from refold_projections.figures import Figures
from refold_schemas.codec import Codec
from refold_schemas.errors import RefoldError
from refold_schemas.errors.live import LiveNeedsKafka, OptionalPartMissing

if TYPE_CHECKING:
    from refold.live.changelog import ChangelogView
    from refold.live.faust_app import LiveApp
    from refold.telemetry.tracing import SpanSender


def now_ms() -> int:
    """The wall clock, milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


class LiveService:
    """Counts the partitions that the group gives it, and answers for all of the namespace."""

    def __init__(self, log: Log, *, spans: "SpanSender | None" = None) -> None:
        """The log must be open. `spans` exports the traces of what is counted here."""
        self.log, self.spans = log, spans
        self._stopping = asyncio.Event()
        self.failure: RefoldError | None = None
        self.app: LiveApp | None = None
        self.view: ChangelogView | None = None

    @property
    def figures(self) -> Figures:
        """The read API over all processes. Raises RuntimeError before it is there."""
        if self.view is None:
            raise RuntimeError("the figures are not open yet")
        return self.view.figures

    def stop(self) -> None:
        """Begin a graceful end."""
        self._stopping.set()

    async def run(
        self, *, rebuild: bool = False, ready: Callable[[bool], None] = lambda made: None
    ) -> None:
        """Serve until `stop()`. `ready` is told whether the topic was made.

        Raises LiveNeedsKafka, OptionalPartMissing, FiguresTopicUnfit, FiguresOutOfStep,
        FiguresNotStored, LogUnavailable.
        """
        if not self.log.url.startswith("kafka://"):
            raise LiveNeedsKafka(self.log.url)
        quiet()
        try:
            from refold.live.faust_app import LiveApp
        except ModuleNotFoundError as error:
            missing = error.name or "faust"
            raise OptionalPartMissing("`refold live`", missing, extra="live") from error
        from refold.live.changelog import ChangelogView
        from refold.log.kafka_side import SideTopic

        codec = Codec(open_registry(self.log.url))
        await codec.ready()
        count = self.log.facts.partition_counts[1]  # of the events
        topic = SideTopic(self.log.url, SUFFIX)
        if rebuild:
            await topic.delete()
        made = await topic.make(count, SETTINGS)
        check(topic.name, await topic.describe(), count)
        self.view = ChangelogView(topic, count, clock=now_ms, failed=self._fail)
        self.app = LiveApp(
            topic.namespace,
            topic.servers,
            topic.name,
            count,
            codec,
            security=topic.access.of_aiokafka(topic.servers),
            failed=self._fail,
            sent=None if self.spans is None else self.spans.send,
        )
        try:
            await self.view.start()
            ready(made)
            starting = asyncio.create_task(self.app.start(), name="live-start")
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self.app.wait(self._stopping)
            else:
                starting.cancel()
                await asyncio.wait({starting})
            stopping.cancel()
        finally:
            await self.app.stop()
            await self.view.close()
        if self.failure is not None:
            raise self.failure

    def _fail(self, error: RefoldError) -> None:
        if self.failure is None:
            self.failure = error
        self._stopping.set()

    def samples(self) -> Iterable[Sample]:
        """What metrics are made of: the figures, and this process. Call it in the loop."""
        from refold import __version__

        yield Sample("refold_service_info", ("live", __version__, self.log.facts.namespace), 1)
        stats = self.stats()
        yield Sample("refold_live_partitions", (), len(stats["partitions"]))
        yield Sample("refold_live_records_total", (), stats["records"])
        if self.app is not None:
            for partition, lag in self.app.lag().items():
                yield Sample("refold_live_lag_records", (str(partition),), lag)
        if self.spans is not None:
            yield Sample("refold_spans_sent_total", (), self.spans.sent)
            yield Sample("refold_spans_dropped_total", (), self.spans.dropped)
        if self.view is not None:
            yield from figure_samples(self.view.figures)

    def stats(self) -> dict[str, Any]:
        """Partitions held, records read and values seen since the start."""
        keepers = {} if self.app is None else self.app.keepers
        return {
            "partitions": sorted(keepers),
            "records": sum(k.figures.read for k in keepers.values()),
            "values": 0 if self.view is None else self.view.read,
        }


def quiet() -> None:
    """Faust tells of each rebalance and of commits that it misses: nothing of it is news here."""
    for name in ("faust", "mode", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
