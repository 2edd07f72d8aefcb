"""The world over HTTP, for applications: `WorldClient` speaks to the service at `WORLD_URL`."""

import os
from types import TracebackType

import aiohttp

from world.calls import (
    CardDeclined,
    KeyAnswer,
    LockHeld,
    Unavailable,
    VendorCalls,
    WorldError,
)
from world.messages import Answer, Json

__all__ = [
    "CardDeclined",
    "KeyAnswer",
    "LockHeld",
    "Unavailable",
    "VendorCalls",
    "WorldClient",
    "WorldError",
]


class WorldClient(VendorCalls):
    """Calls the vendors, each call once: no retry of its own, whatever happens.

    Inside `async with` the calls share a session. Outside, each has one of its own, so that a
    client made at import time belongs to no event loop and needs no closing.
    """

    def __init__(self, base_url: str | None = None, *, timeout_s: float | None = None) -> None:
        """`base_url` defaults to the environment's WORLD_URL; `timeout_s` None waits for ever."""
        self._base_url = base_url
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    @property
    def base_url(self) -> str:
        """Where the service is. Raises RuntimeError if nobody said."""
        base_url = self._base_url or os.environ.get("WORLD_URL")
        if not base_url:
            raise RuntimeError(
                "WORLD_URL is not set: start `python -m world` and put the address it prints there"
            )
        return base_url.rstrip("/")

    async def __aenter__(self) -> "WorldClient":
        """Share a session until the block ends."""
        self._session = self._open_session()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the shared session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self, method: str, target: str, body: Json | None = None, *, key: str | None = None
    ) -> Answer:
        """Make one call. Raises TimeoutError or aiohttp.ClientError if no answer came."""
        if self._session is not None:
            return await self._send(self._session, method, target, body, key)
        async with self._open_session() as session:
            return await self._send(session, method, target, body, key)

    async def counters(self) -> Json:
        """What happened so far, in numbers."""
        return await self.ask("GET", "/admin/counters")

    async def effects(self, kind: str | None = None) -> list[Json]:
        """Every effect, oldest first."""
        listed = await self.ask("GET", "/admin/effects" + (f"?kind={kind}" if kind else ""))
        effects: list[Json] = listed["effects"]
        return effects

    async def add_fault(self, mode: str, **fault: int | str | None) -> Json:
        """Plan a fault: `route` or `vendor`, `times`, `after`, `delay_ms`."""
        return await self.ask("POST", "/admin/faults", {"mode": mode, **fault})

    async def clear_faults(self) -> Json:
        """Forget the planned faults."""
        return await self.ask("DELETE", "/admin/faults")

    async def change(self, **settings: int | str) -> Json:
        """Change settings, e.g. `model_snapshot`."""
        return await self.ask("POST", "/admin/settings", dict(settings))

    async def reset(self) -> Json:
        """Back to the first day."""
        return await self.ask("POST", "/admin/reset")

    def _open_session(self) -> aiohttp.ClientSession:
        # A connection left over from before may have been closed meanwhile, which would look like
        # an answer that got lost: each call has a fresh one.
        connector = aiohttp.TCPConnector(force_close=True)
        return aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, middlewares=(_once,)
        )

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        target: str,
        body: Json | None,
        key: str | None,
    ) -> Answer:
        headers = {"Idempotency-Key": key} if key else {}
        async with session.request(
            method, self.base_url + target, json=body, headers=headers
        ) as response:
            return Answer(response.status, await response.json())


async def _once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a lost GET, PUT or DELETE: a call that nobody would know of.

    Source: aiohttp.ClientSession._request sends these again after a ClientOSError or
    ServerDisconnectedError; a plain OSError it hands on, as a ClientOSError.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # never connected, so not repeated either
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionResetError(f"{request.method} {request.url}: {error}") from error
