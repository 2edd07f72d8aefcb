"""Makes the ASGI app: the routes, whoever else is mounted, and the shell around them.

The page is mounted where it is there: `refold.gateway.page` has `install(app)`, which adds its
routes with the same `requires(...)`. What it needs of the gateway: `gateway_of(request)`, the
caller from `requires(...)`, `gateway.sessions.csrf(caller)` for its forms and requests, and
`/api/v1/session` to log in and out.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI

from refold import __version__
from refold.client import Client
from refold.gateway import problems
from refold.gateway.auth import roles_of, routes_in
from refold.gateway.oidc import Oidc
from refold.gateway.openapi import ERRORS, with_problem
from refold.gateway.rates import Rates
from refold.gateway.routes import commands, documents, health, lists, runs, sessions
from refold.gateway.sessions import Sessions
from refold.gateway.settings import GatewaySettings
from refold.gateway.shell import Shell
from refold.gateway.state import Gateway
from refold.gateway.streams import Streams
from refold.gateway.tokens import TokenFile
from refold_projections.tables.queries import Views
from refold_schemas.errors.gateway import GatewayUnsafe

ROUTERS = tuple(one.router for one in (lists, commands, runs, sessions, health, documents))
PAGE = "refold.gateway.page"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})

Opening = Callable[[], AbstractAsyncContextManager[Client]]
Minutes = Callable[[int], Awaitable[Mapping[str, Any]]]
"""Given the first one's start in milliseconds: the windows of a minute from then on, as
`refold_projections.figures.Figures.windows` gives them."""


def check_safe(settings: GatewaySettings) -> None:
    """Raise GatewayUnsafe where strangers could use it."""
    if settings.insecure and settings.host not in LOOPBACK_HOSTS:
        raise GatewayUnsafe(
            f"--insecure lets everybody in, and {settings.host} can be reached from other machines",
            "leave --insecure away and make tokens with `refold gateway tokens create`, or listen "
            "on 127.0.0.1",
        )


def create_app(
    settings: GatewaySettings, opening: Opening | None = None, figures: Minutes | None = None
) -> Shell:
    """The ASGI app. `opening` gives the client instead of `settings.log_url`, `figures` the live
    figures of the page instead of `settings.live_url`.

    Raises GatewayUnsafe. Its lifespan opens the log: LogUnavailable, LogMissing.
    """
    check_safe(settings)
    app = create_routes(settings, opening)
    app.state.figures = figures
    shell = app.state.shell = Shell(app, settings)
    return shell


def create_routes(settings: GatewaySettings, opening: Opening | None = None) -> FastAPI:
    """The app inside its shell: what serves routes, and has the OpenAPI document.

    Raises LookupError for a route that does not say who may ask it.
    """
    app = FastAPI(
        title="refold gateway",
        version=__version__,
        description="Durable execution for agent runs: start, ask and settle over HTTP.",
        docs_url=None,  # they load scripts from other hosts
        redoc_url=None,
        openapi_url=None,  # served to those who are known
        redirect_slashes=False,  # to http, and to whatever host a client names, with its token
        responses=ERRORS,
        lifespan=lambda app: _life(app, settings, opening),
    )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    if find_spec(PAGE) is not None:
        import_module(PAGE).install(app)
    for route in routes_in(app):
        roles_of(route)  # one that does not say who may ask it is not served
    bare = app.openapi
    app.openapi = lambda: with_problem(bare())  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _life(
    app: FastAPI, settings: GatewaySettings, opening: Opening | None
) -> AsyncIterator[None]:
    async with opening() if opening else Client(settings.log_url, by="gateway") as client:
        app.state.gateway = make_gateway(settings, client)
        shell = getattr(app.state, "shell", None)
        if isinstance(shell, Shell):
            app.state.gateway.under_way = lambda: shell.under_way
            app.state.gateway.counted = shell.counted
        try:
            yield
        finally:
            gateway = app.state.gateway
            gateway.draining.set()
            if gateway.views is not None:
                await gateway.views.close()


def make_gateway(settings: GatewaySettings, client: Client) -> Gateway:
    """What the requests share."""
    tokens = TokenFile(settings.tokens_path)
    return Gateway(
        settings=settings,
        client=client,
        tokens=tokens,
        sessions=Sessions(tokens, client.log.facts.namespace, settings.session_s),
        oidc=None if settings.oidc is None else Oidc(settings.oidc),
        rates=Rates(
            settings.rate_per_s, settings.rate_burst, settings.callers_max, clock=time.monotonic
        ),
        failures=Rates(
            settings.failures_per_s,
            settings.failures_burst,
            settings.callers_max,
            clock=time.monotonic,
        ),
        scans=asyncio.Semaphore(settings.scans_max),
        streams=Streams(settings.streams_max, settings.streams_of_caller_max),
        views=None
        if settings.database_url is None
        else Views(
            settings.database_url,
            namespace=client.log.facts.namespace,
            schema=settings.database_schema,
            connections_max=settings.connections_max,
            acquire_s=settings.acquire_s,
            statement_s=settings.statement_s,
        ),
    )
