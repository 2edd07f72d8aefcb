"""A small OTLP/HTTP collector: takes trace exports, decodes them, keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What was received: spans in the order of their arrival, and resources by attribute."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}
        self.refuse = 0
        """An HTTP status to answer with, instead of taking anything."""
        self.port = 0

    @property
    def endpoint(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def ids(self) -> set[tuple[str, str]]:
        """Trace and span ids of everything received."""
        return {(span.trace_id.hex(), span.span_id.hex()) for span in list(self.spans)}


@contextmanager
def collector() -> Iterator[Collector]:
    """A running one."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if kept.refuse or self.path != "/v1/traces":
                self.send_response(kept.refuse or 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            assert self.headers["Content-Type"] == "application/x-protobuf"
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for one in resource.resource.attributes:
                    kept.resource[one.key] = one.value.string_value
                for scope in resource.scope_spans:
                    kept.spans += scope.spans
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(OSError):  # whoever sent it was killed
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
