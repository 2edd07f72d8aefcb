"""A far system on virtual time that knows keys, counts calls for each, and can lose its answers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from refold import Absent, Effect, Found
from refold.testing.sim_loop import current_process

After = Callable[[], Awaitable[None]]


class Sent(NamedTuple):
    """One call as it arrived: by which process, under which key, with which arguments."""

    process: str
    slot: str
    attempt: int
    key: str
    arguments: dict[str, Any]


async def drop() -> None:
    """The answer is lost: the caller sees a reset connection."""
    raise ConnectionResetError("the connection was dropped")


async def hang() -> None:
    """The answer never comes."""
    await asyncio.get_running_loop().create_future()


async def die() -> None:
    """The caller's process is gone before the answer is there."""
    await current_process().kill_here()


class Vendor:
    """Does a thing once for each key. `after` holds what happens to the next answers, in order."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.calls: list[Sent] = []
        self.done: dict[str, str] = {}
        self.after: list[After] = []
        self.lookups = 0

    async def act(self, fx: Effect, **arguments: Any) -> str:
        """Do it, or find that it was done under this key, and answer with its receipt."""
        sent = Sent(current_process().name, fx.slot, fx.attempt, fx.key, arguments)
        self.calls.append(sent)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        receipt = self.done.setdefault(fx.key, f"receipt-{len(self.done) + 1}")
        if self.after:
            await self.after.pop(0)()
        return receipt

    async def find(self, key: str) -> Found[str] | Absent:
        """What was done under this key."""
        self.lookups += 1
        return Found(self.done[key]) if key in self.done else Absent()

    @property
    def per_key(self) -> Counter[str]:
        """Calls for each key."""
        return Counter(call.key for call in self.calls)
