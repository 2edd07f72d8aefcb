"""What the demo asks of the world service: plan a fault, read the counters and the ledger."""

import asyncio
import json
import urllib.request
from typing import Any

TIMEOUT_S = 10.0


class Outside:
    """The admin side of the world at `url`. The demo needs no HTTP library for it."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def counters(self) -> dict[str, Any]:
        """Effects, duplicates and calls so far."""
        return await self._ask("GET", "/admin/counters")

    async def effects(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The ledger, oldest first."""
        found = await self._ask("GET", "/admin/effects" + (f"?kind={kind}" if kind else ""))
        listed: list[dict[str, Any]] = found["effects"]
        return listed

    async def reset(self) -> None:
        """Back to the first day: nothing has happened yet."""
        await self._ask("POST", "/admin/reset")

    async def keep_silent_after(self, route: str, after: int) -> None:
        """Spare `after` calls of `route`; the next one is done, and its answer never leaves."""
        fault = {"mode": "silent_after", "route": route, "after": after}
        await self._ask("POST", "/admin/faults", fault)

    async def no_faults(self) -> None:
        """Forget what was planned."""
        await self._ask("DELETE", "/admin/faults")

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask_now, method, path, body)

    def _ask_now(self, method: str, path: str, body: Any) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
