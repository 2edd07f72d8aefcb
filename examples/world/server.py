"""The world behind HTTP: a thin shell that turns requests into exchanges and does their waiting."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict

from aiohttp import web

from world.core import Exchange, World
from world.messages import Answer, Json, Lost, Reply, Request, refusal

BODY_SIZE_MAX = 8 * 2**20
SHUTDOWN_SECONDS_MAX = 2.0


@asynccontextmanager
async def serve(world: World, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve `world` while the block runs; gives the base URL. Raises OSError if the port is taken.

    Leaving the block ends silent calls, gives up calls that have not acted yet, and stores nothing
    that was not stored already: closing the world is its maker's part.
    """
    service = _Service(world)
    app = web.Application(client_max_size=BODY_SIZE_MAX)
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_SECONDS_MAX,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        yield f"http://{bound[0]}:{bound[1]}"
    finally:
        await service.stop()
        await runner.cleanup()


class _Service:
    """Vendors under their own paths, faults and counters under `/admin`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stopping = asyncio.Event()
        self._under_way: set[asyncio.Task[Reply]] = set()

    async def stop(self) -> None:
        """End every wait."""
        self._stopping.set()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one HTTP request, or fail to, as the fault for it has it."""
        try:
            body = await _read_body(request)
            if request.path.startswith("/admin/"):
                return _respond(self._admin(request, body))
            call = Request.of(
                request.method,
                request.rel_url.raw_path_qs,
                body,
                key=request.headers.get("Idempotency-Key"),
            )
        except ValueError as error:
            return _respond(refusal(400, "bad_request", str(error)))
        exchange = self._world.begin(call)
        try:
            # A vendor finishes what it has begun though the caller be gone: a task of its own,
            # which the handler's cancellation on a disconnect does not reach.
            task = asyncio.create_task(_do(exchange))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            reply = await asyncio.shield(task)
            if reply.wait_ms or reply.lost is Lost.SILENT:
                await self._wait(reply.wait_ms / 1000 if reply.wait_ms else None)
        except asyncio.CancelledError:
            # If the vendor is still at it the key stays in progress; acting releases it.
            if task.done():
                exchange.close()
            raise
        exchange.close()
        if reply.answer is not None:
            return _respond(reply.answer)
        _drop(request)
        return web.Response()

    async def _wait(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _admin(self, request: web.Request, body: Json) -> Answer:
        world = self._world
        match request.method, request.path:
            case "GET", "/admin/counters":
                return Answer(200, world.counters())
            case "GET", "/admin/effects":
                effects = world.effects(request.query.get("kind"))
                return Answer(200, {"effects": [effect.as_json() for effect in effects]})
            case "GET", "/admin/routes":
                return Answer(200, {"routes": [f"{r.vendor}: {r.name}" for r in world.routes()]})
            case "POST", "/admin/faults":
                world.plan(body)
            case "DELETE", "/admin/faults":
                world.faults.clear()
            case "GET", "/admin/faults":
                pass
            case "GET", "/admin/settings":
                return Answer(200, asdict(world.settings))
            case "POST", "/admin/settings":
                return Answer(200, asdict(world.change(**body)))
            case "POST", "/admin/reset":
                world.reset()
                return Answer(200, {"reset": True})
            case _:
                return refusal(404, "no_such_route", f"{request.method} {request.path}")
        return Answer(200, {"faults": [fault.as_json() for fault in world.faults.pending()]})


async def _do(exchange: Exchange) -> Reply:
    if exchange.wait_ms:
        await asyncio.sleep(exchange.wait_ms / 1000)
    return exchange.run()


async def _read_body(request: web.Request) -> Json:
    text = await request.text()
    body = json.loads(text) if text else {}
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


def _respond(answer: Answer) -> web.Response:
    return web.json_response(answer.body, status=answer.status)


def _drop(request: web.Request) -> None:
    """Cut the connection with a reset instead of a polite end."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
