"""A small HTTP server in a thread of its own: answers GET for a few paths, and nothing else.

In a thread, so that a loop that is held up can still be asked what holds it up.
"""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from refold_schemas.errors.live import PortRefused

QUERY_MAX = 2_000
"""Characters of a path with its query."""
BUSY_S = 10.0
"""How long a client may take to send its request."""
THREADS_MAX = 16


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    content_type: str
    body: bytes


Route = Callable[[Mapping[str, str]], Answer]
"""Answers a GET; the mapping is its query."""


def json_answer(payload: Any, status: int = 200) -> Answer:
    """A JSON document."""
    return Answer(status, "application/json", json.dumps(payload).encode())


def problem(status: int, title: str, detail: str) -> Answer:
    """A problem document (RFC 9457)."""
    body = json.dumps({"title": title, "status": status, "detail": detail})
    return Answer(status, "application/problem+json", body.encode())


class Server:
    """Listens from its making on, until `close`. Raises PortRefused."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        """Port 0 is any free one: see `port`."""
        self._gate = threading.BoundedSemaphore(THREADS_MAX)
        try:
            self._server = _Server((host, port), _handler(dict(routes), self._gate))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PortRefused(host, port, reason) from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="refold-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(BUSY_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler(
    routes: dict[str, Route], gate: threading.BoundedSemaphore
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = BUSY_S
        server_version, sys_version = "refold", ""

        def do_GET(self) -> None:
            if not gate.acquire(blocking=False):
                self._send(problem(503, "busy", f"more than {THREADS_MAX} requests at once"))
                return
            try:
                self._send(self._answer())
            finally:
                gate.release()

        def _answer(self) -> Answer:
            if len(self.path) > QUERY_MAX:
                return problem(414, "too long", f"a path has at most {QUERY_MAX} characters")
            parts = urlsplit(self.path)
            route = routes.get(parts.path)
            if route is None:
                return problem(404, "not found", "known are: " + ", ".join(sorted(routes)))
            try:
                return route(dict(parse_qsl(parts.query, keep_blank_values=True)))
            except TimeoutError:
                return problem(503, "held up", "the process did not answer in time")
            except Exception as error:  # said to whoever asks; the process goes on
                return problem(500, "failed", f"{type(error).__name__}")

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            """Nothing: whoever scrapes knows that it does."""

    return Handler


def metrics_route(expose: Callable[[], bytes]) -> Route:
    """`/metrics`, as Prometheus wants it."""
    from refold.telemetry.exposition import CONTENT_TYPE

    return lambda query: Answer(200, CONTENT_TYPE, expose())
