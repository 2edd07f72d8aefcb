"""The outermost layer: limits before anything is read, a deadline, headers after everything.

Plain ASGI, since it must see requests that no route ever sees, and the bytes as they come.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from refold.gateway.counted import Counted, route_of
from refold.gateway.paths import routed
from refold.gateway.problems import answer, tell_defect
from refold.gateway.settings import GatewaySettings
from refold_schemas.errors import RefoldError
from refold_schemas.errors.gateway import (
    GatewayBusy,
    GatewayDefect,
    HeadersTooLarge,
    HostRefused,
    RequestTooLarge,
    UrlTooLong,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
"""What every answer carries. No inline script or style, nothing from another host."""
LIVE = "/api/v1/health/live"
"""What is always answered: who is only busy must not be restarted."""
UNKNOWN = (
    "its deadline is over; if it was to send something, whether that was sent is not known: repeat "
    "it under the same Idempotency-Key"
)


class Slot:
    """A request's place among those that are answered at the same time; streams give it back."""

    def __init__(self, shell: "Shell") -> None:
        self._shell: Shell | None = shell
        shell.under_way += 1

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._shell is not None:
            self._shell.under_way -= 1
            self._shell = None


class Shell:
    """Wraps the app. `under_way`: requests that are being answered."""

    def __init__(self, app: App, settings: GatewaySettings) -> None:
        self.app, self._settings = app, settings
        self._hosts = LOOPBACK if settings.insecure else frozenset(settings.trusted_hosts)
        self.under_way = 0
        self.counted = Counted()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["refold.request_id"] = secrets.token_hex(8)
        started = False
        came_s = time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._count(scope, message["status"], came_s)
                own = (*HEADERS, (b"x-request-id", request_id.encode()))
                given = [(name.lower(), value) for name, value in message.get("headers", ())]
                names = {name for name, _ in given}
                given += [(name, value) for name, value in own if name not in names]
                if b"cache-control" not in names:
                    given.append((b"cache-control", b"no-store"))
                message = {**message, "headers": given}
            await send(message)

        slot: Slot | None = None
        timeout = asyncio.timeout(self._settings.deadline_s)
        try:
            headers = self._check(scope)
            if self.under_way >= self._settings.requests_max and scope["path"] != LIVE:
                raise GatewayBusy(f"{self.under_way} requests are being answered")
            slot = scope["refold.slot"] = Slot(self)
            scope["refold.deadline"] = timeout
            async with timeout:
                await self.app(scope, self._limited(receive, headers), sending)
        except Exception as error:
            if started:  # the answer is cut off: its reader notices
                if not timeout.expired() and not scope.get("refold.told"):
                    tell_defect(error, request_id)
                return
            told = error
            if timeout.expired() and isinstance(error, TimeoutError):
                told = GatewayBusy(
                    f"it took longer than {self._settings.deadline_s:g} s", kept=UNKNOWN
                )
            elif not isinstance(error, RefoldError):
                tell_defect(error, request_id)
                told = GatewayDefect(request_id)
            assert isinstance(told, RefoldError)
            await answer(told, request_id)(scope, receive, sending)
        finally:
            if not started:  # its reader went, or the process ends
                self._count(scope, 0, came_s)
            if slot is not None:
                slot.release()

    def _count(self, scope: Scope, status: int, came_s: float) -> None:
        took_s = time.monotonic() - came_s
        self.counted.request(route_of(scope), scope["method"], status, took_s)

    def _check(self, scope: Scope) -> Mapping[bytes, bytes]:
        """Limits that need no body; also puts the path as it is routed."""
        settings = self._settings
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        raw = raw.partition(b"?")[0]
        if len(raw) + len(scope.get("query_string", b"")) > settings.url_size_max:
            raise UrlTooLong(settings.url_size_max)
        pairs = list(scope["headers"])
        size = sum(len(name) + len(value) for name, value in pairs)
        if size > settings.header_size_max or len(pairs) > settings.header_count_max:
            raise HeadersTooLarge(settings.header_size_max, settings.header_count_max)
        headers = dict(pairs)
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts and name.lower() not in self._hosts:
            raise HostRefused(host)
        scope["path"] = routed(raw)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > settings.body_size_max:
            raise RequestTooLarge(settings.body_size_max)
        return headers

    def _limited(self, receive: Receive, headers: Mapping[bytes, bytes]) -> Receive:
        size, size_max = 0, self._settings.body_size_max

        async def receiving() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > size_max:
                    raise RequestTooLarge(size_max)
            return message

        return receiving
