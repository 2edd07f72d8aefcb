"""Sends the spans that the live figures make of durable events to an OTLP/HTTP collector.

What is set: the standard OTEL_* variables. A run is one trace, because its ids follow from its
record; a span that is sent again after a crash is the same span.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from refold_projections.figures.spans import Span, SpanId
from refold_schemas.errors.live import OptionalPartMissing, TracesRefused

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
BATCH_MAX = 512
BACKLOG_MAX = 10_000
"""Spans that wait for the collector; the oldest are dropped, and counted."""
SEND_S = 5.0
"""How long figures wait for a collector before they go on without its answer."""


def wanted() -> bool:
    """Whether the environment names a collector and does not switch traces off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("", "otlp"):
        return False
    return any(os.environ.get(name, "").strip() for name in ENDPOINTS)


class SpanSender:
    """Made once in a process. Raises OptionalPartMissing, TracesRefused."""

    def __init__(self, *, version: str, service: str = "refold", namespace: str = "") -> None:
        """`service` is the service's name unless OTEL_SERVICE_NAME says another one."""
        self._version = version
        for name in PROTOCOLS:
            if os.environ.get(name, "").strip() not in ("", PROTOCOL):
                raise TracesRefused(f"{name} is not {PROTOCOL}, which alone is spoken here")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import sampling
            from opentelemetry.sdk.trace.export import SpanExportResult
        except ModuleNotFoundError as error:
            missing = error.name or "opentelemetry-sdk"
            raise OptionalPartMissing("traces", missing, extra="telemetry") from error
        named = {"service.name": service}
        if namespace:
            named["refold.namespace"] = namespace
        if os.environ.get("OTEL_SERVICE_NAME", "").strip():
            del named["service.name"]
        try:
            self._resource = Resource.create(named)
            self._exporter = OTLPSpanExporter()
            self._sampler = sampling._get_from_env_or_default()
        except (ValueError, OSError) as error:
            raise TracesRefused(str(error)) from error
        self._ok = SpanExportResult.SUCCESS
        self._backlog: deque[Span] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="refold-spans")
        self._flight: asyncio.Future[None] | None = None
        self.sent = 0
        self.dropped = 0

    async def send(self, spans: Iterable[Span]) -> None:
        """Send them, and wait a moment for the answer. Never raises: traces hold nothing up."""
        self._backlog.extend(span for span in spans if self._is_sampled(span))
        while len(self._backlog) > BACKLOG_MAX:
            self._backlog.popleft()
            self.dropped += 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEND_S
        flight = self._flight
        # One in the air may be over before it has seen ours: then there is another one.
        while self._backlog or (flight is not None and not flight.done()):
            if flight is None or flight.done():
                flight = self._flight = loop.run_in_executor(self._pool, self._export)
            _, late = await asyncio.wait({flight}, timeout=max(deadline - loop.time(), 0))
            if late:
                return

    async def close(self) -> None:
        """Send what is left, for a moment, and end."""
        await self.send(())
        self.dropped += len(self._backlog)
        self._backlog.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        exporter: Any = self._exporter
        exporter.shutdown()

    def _is_sampled(self, span: Span) -> bool:
        """By OTEL_TRACES_SAMPLER: of its trace alone, so a run is sampled whole or not at all."""
        result: Any = self._sampler.should_sample(None, int(span.id.trace, 16), "run")
        return bool(result.decision.is_sampled())

    def _export(self) -> None:
        """In the thread: send all that waits, batch by batch."""
        while self._backlog:
            batch = [self._backlog.popleft() for _ in range(min(BATCH_MAX, len(self._backlog)))]
            try:
                taken = self._exporter.export(self._readable(batch)) is self._ok
            except Exception:  # a defect of the exporter is no business of the figures
                taken = False
            if taken:
                self.sent += len(batch)
            else:
                self.dropped += len(batch)

    def _readable(self, spans: Sequence[Span]) -> "list[ReadableSpan]":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        scope = InstrumentationScope("refold", self._version)
        codes = {"ok": StatusCode.OK, "error": StatusCode.ERROR, "unset": StatusCode.UNSET}
        return [
            ReadableSpan(
                span.name,
                context=_context(span.id),
                parent=None if span.parent is None else _context(SpanId(span.id[0], span.parent)),
                resource=self._resource,
                attributes=dict(span.attributes),
                links=[Link(_context(linked)) for linked in span.links],
                kind=SpanKind.INTERNAL,
                status=Status(codes[span.outcome]),
                start_time=span.start_ms * 1_000_000,
                end_time=span.end_ms * 1_000_000,
                instrumentation_scope=scope,
            )
            for span in spans
        ]


def _context(span: SpanId) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    sampled: Any = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(
        int(span.trace, 16), int(span.span, 16), is_remote=False, trace_flags=sampled
    )
