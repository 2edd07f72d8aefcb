"""The process: listens, answers until it is told to stop, and lets what is under way end."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext

import uvicorn

from refold.client import Client
from refold.gateway.app import Minutes, create_app
from refold.gateway.metrics import GatewayMetrics
from refold.gateway.settings import GatewaySettings
from refold.gateway.state import Gateway
from refold_schemas.errors.gateway import AddressTaken, GatewayUnsafe

BACKLOG = 512
SEND_BUFFER = 128 << 10
"""Bytes."""
SPARE = 64
"""Connections beyond those that are asked over; further ones get 503 from the server itself."""


class _Server(uvicorn.Server):
    """Signals are the command's business: it asks for the end by `should_exit`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when connections are taken."""
        await super().startup(sockets)
        if self.started:
            self.listening.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


async def serve(
    settings: GatewaySettings,
    stopping: asyncio.Event,
    on_ready: Callable[[str, Client], None] | None = None,
    figures: Minutes | None = None,
    on_open: Callable[[GatewayMetrics], None] | None = None,
) -> None:
    """Serve until `stopping` is set; then streams end, requests have `drain_s` to do so.

    `on_ready(url, client)` is told once connections are taken, `on_open` before, with what metrics
    are read from. Raises GatewayUnsafe,
    TokensUnusable, AddressTaken, and what the client raises where the log cannot be opened.
    """
    async with Client(settings.log_url, by="gateway") as client:
        shell = create_app(settings, lambda: nullcontext(client), figures)
        check_callers(settings)
        if on_open is not None:
            on_open(GatewayMetrics(shell))
        with _listening(settings) as listener:
            url = _url(settings, listener)
            config = uvicorn.Config(
                shell,
                lifespan="on",
                http="h11",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(settings.proxies),
                forwarded_allow_ips=list(settings.proxies),
                backlog=BACKLOG,
                limit_concurrency=2 * (settings.requests_max + settings.streams_max) + SPARE,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=max(1, round(settings.drain_s)),
                h11_max_incomplete_event_size=settings.url_size_max + settings.header_size_max,
            )
            server = _Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="serving")
            stop = asyncio.create_task(stopping.wait(), name="stopping")
            listening = asyncio.create_task(server.listening.wait(), name="listening")
            try:
                await asyncio.wait({listening, serving, stop}, return_when=asyncio.FIRST_COMPLETED)
                if server.listening.is_set() and on_ready is not None:
                    on_ready(url, client)
                await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gateway = getattr(getattr(shell.app, "state", None), "gateway", None)
                if isinstance(gateway, Gateway):
                    gateway.draining.set()  # streams end by themselves: nobody waits for them
                server.should_exit = True
                stop.cancel()
                listening.cancel()
                await serving


def check_callers(settings: GatewaySettings) -> None:
    """That somebody could be let in at all. Raises TokensUnusable, GatewayUnsafe."""
    if settings.insecure:
        return
    from refold.gateway.tokens import TokenFile

    tokens = TokenFile(settings.tokens_path)
    if settings.oidc is not None:
        tokens.ensure()  # sessions of a page are signed with the key that is in it
    elif not tokens.all():
        raise GatewayUnsafe(
            f"there is no token in {settings.tokens_path}, so nobody could be let in",
            "make one with `refold gateway tokens create NAME --role admin`, or try it on this "
            "machine alone with --insecure",
        )


@contextmanager
def _listening(settings: GatewaySettings) -> Generator[socket.socket, None, None]:
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What the kernel may hold for a reader that takes nothing: connections inherit it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise AddressTaken(host, port, reason) from error
        yield listener
    finally:
        listener.close()


def _url(settings: GatewaySettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"
