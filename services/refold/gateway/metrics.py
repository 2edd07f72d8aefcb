"""What a gateway is like, as samples: read from its fields, in the thread of whoever scrapes."""

from collections.abc import Iterable

from refold.gateway.counted import CALLERS, FAILURES
from refold.gateway.shell import Shell
from refold.gateway.state import Gateway
from refold.telemetry import Sample


class GatewayMetrics:
    """Samples of one gateway, from its shell. Call it from any thread."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def __call__(self) -> Iterable[Sample]:
        """Everything that the catalogue has of a gateway; before it has started, counts alone."""
        from refold import __version__

        shell, counted = self._shell, self._shell.counted
        for requests, count in list(counted.requests.items()):
            yield Sample("refold_gateway_requests_total", requests, count)
        for asked, spread in list(counted.seconds.items()):
            yield Sample("refold_gateway_request_seconds", asked, spread.buckets())
        yield Sample("refold_gateway_requests_under_way", (), shell.under_way)
        for of in (CALLERS, FAILURES):
            yield Sample("refold_gateway_rate_limited_total", (of,), counted.rate_limited[of])
        yield Sample("refold_gateway_unauthenticated_total", (), counted.unauthenticated)
        for role, count in list(counted.role_missing.items()):
            yield Sample("refold_gateway_role_missing_total", (role,), count)
        gateway = getattr(getattr(shell.app, "state", None), "gateway", None)
        if not isinstance(gateway, Gateway):
            return
        yield Sample("refold_service_info", ("gateway", __version__, gateway.namespace), 1)
        yield Sample("refold_gateway_streams", (), gateway.streams.count)
        for kind, count in list(gateway.client.sent.items()):
            yield Sample("refold_gateway_commands_total", (kind,), count)
        views = gateway.views
        if views is not None:
            in_use = views.connections_max - views.free
            yield Sample("refold_gateway_connections_in_use", (), in_use)
            yield Sample("refold_gateway_connections_max", (), views.connections_max)
            yield Sample("refold_gateway_connections_waiting", (), views.waiting)
