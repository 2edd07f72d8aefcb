"""The world without sockets: the same calls against a `World` object, on whatever clock it has."""

import asyncio
from collections.abc import Awaitable, Callable

from world.calls import VendorCalls
from world.core import World
from world.messages import Answer, Json, Lost, Request


async def forever() -> None:
    """Never come back; a cancellation ends it."""
    await asyncio.get_running_loop().create_future()


class LocalClient(VendorCalls):
    """Calls a `World` directly; a dropped connection is a ConnectionResetError, as on a socket."""

    def __init__(
        self,
        world: World,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        silence: Callable[[], Awaitable[None]] = forever,
    ) -> None:
        """`sleep` waits for seconds, virtual ones too; `silence` until the caller gives up."""
        self.world = world
        self._sleep = sleep
        self._silence = silence

    async def send(
        self, method: str, target: str, body: Json | None = None, *, key: str | None = None
    ) -> Answer:
        """Make one call. Raises ConnectionResetError where the answer is dropped."""
        exchange = self.world.begin(Request.of(method, target, body, key=key))
        try:
            if exchange.wait_ms:
                await self._sleep(exchange.wait_ms / 1000)
            reply = exchange.run()
            if reply.wait_ms:
                await self._sleep(reply.wait_ms / 1000)
            elif reply.lost is Lost.SILENT:
                await self._silence()
        finally:
            exchange.close()
        if reply.answer is None:
            raise ConnectionResetError(f"{method} {target}: the connection was dropped")
        return reply.answer
