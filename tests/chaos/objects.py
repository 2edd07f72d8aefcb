"""A far system of registers and sets, which does a change once for each key and counts repeats."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class Objects:
    """Registers and sets. A change takes a moment, before which its caller may be gone."""

    def __init__(self, seed: int) -> None:
        self.registers: dict[str, Any] = {}
        self.sets: dict[str, list[Any]] = {}
        self.answers: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        """Calls for each key: those beyond the first were repeats."""
        self._random = random.Random(seed)

    @property
    def repeats(self) -> int:
        return sum(self.calls.values()) - len(self.calls)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        key = request.headers.get("Idempotency-Key")
        what = request.match_info["what"]
        await asyncio.sleep(self._random.uniform(0, 0.02))
        if key is not None:
            self.calls[key] += 1
            if key not in self.answers:
                self.answers[key] = self._change(what, body)
            value = self.answers[key]
        else:
            value = self._look(what, body)
        await asyncio.sleep(self._random.uniform(0, 0.02))
        return web.json_response({"value": value})

    def _change(self, what: str, body: dict[str, Any]) -> Any:
        name, value = body["name"], body["value"]
        if what == "register":
            self.registers[name] = value
        else:
            self.sets.setdefault(name, []).append(value)
        return value

    def _look(self, what: str, body: dict[str, Any]) -> Any:
        name = body["name"]
        return self.registers.get(name) if what == "register" else list(self.sets.get(name, ()))


@asynccontextmanager
async def serve(objects: Objects) -> AsyncIterator[str]:
    """Serve them while the block runs; gives the base URL."""
    served = web.Application()
    served.router.add_post("/{what}", objects.handle)
    runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
