"""How a command that serves is observed: its port for metrics, and the format of its log lines."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from refold.settings.environment import Settings
    from refold.telemetry.exposition import Sampler
    from refold.telemetry.lines import Line
    from refold.telemetry.serving import Route, Server
    from refold.worker import WorkerEvent

LEVELS = {"warning": "warning", "failed": "error", "blocked": "error", "diverged": "error"}
LEVELS |= {"conflict": "error", "in_doubt": "warning", "traceback": "error"}
PORT_MAX = 65_535


class Observing(NamedTuple):
    """What was asked for. Without any of it nothing is imported and nothing is done."""

    metrics_port: int | None
    host: str
    log_format: str | None

    def lines(self, service: str, namespace: str) -> "Line | None":
        """How to write a log line; None where lines for people are wanted."""
        if self.log_format is None:
            return None
        from refold.telemetry.lines import open_lines

        return open_lines(self.log_format, service=service, namespace=namespace)

    def teller(self, namespace: str) -> "Callable[[WorkerEvent], None] | None":
        """What tells a worker's events as log lines."""
        line = self.lines("worker", namespace)
        if line is None:
            return None

        def tell(event: "WorkerEvent") -> None:
            fields = {
                "partition": event.partition if event.partition >= 0 else None,
                "claim": event.claim,
                "run_id": event.run_id,
                "slot": event.slot,
                "attempt": event.attempt,
                "at_ms": event.at_ms,
            }
            line(LEVELS.get(event.kind, "info"), event.kind, event.text, fields)

        return tell

    def serve(
        self, samplers: "Callable[[asyncio.AbstractEventLoop], Iterable[Sampler]]"
    ) -> "Server | None":
        """Answer Prometheus from now on; None where nobody asks. Raises PortRefused."""
        if self.metrics_port is None:
            return None
        return serve(self.host, self.metrics_port, samplers(asyncio.get_running_loop()), {})

    def options_of(self, number: int) -> list[str]:
        """What one of several processes is told: a port of its own."""
        if self.metrics_port is None:
            return []
        port = self.metrics_port and self.metrics_port + number - 1
        return ["--metrics-port", str(port)]


def observing(settings: "Settings", metrics_port: int | None, log_format: str | None) -> Observing:
    """What the options say, else the environment. Raises UsageRefused."""
    from refold_schemas.errors.cli import UsageRefused

    if log_format not in (None, "json", "text"):
        raise UsageRefused(f"--log-format is {log_format!r}, not json or text", "refold")
    port = settings.metrics_port if metrics_port is None else metrics_port
    return Observing(port, settings.metrics_host, log_format or settings.log_format)


def serve(
    host: str,
    port: int,
    samplers: "Iterable[Sampler]",
    routes: "Mapping[str, Route]",
    *,
    metrics_wanted: bool = True,
) -> "Server":
    """Listen for Prometheus, and for what else is asked at the same port. Raises PortRefused.

    Raises OptionalPartMissing where metrics cannot be had; if nobody has asked for any
    (`metrics_wanted`), the rest is answered without them.
    """
    from refold.telemetry.exposition import exposition
    from refold.telemetry.serving import Server, metrics_route
    from refold_schemas.errors.live import OptionalPartMissing

    answered = dict(routes)
    try:
        answered["/metrics"] = metrics_route(exposition(samplers))
    except OptionalPartMissing:
        if metrics_wanted:
            raise
    return Server(host, port, answered)
