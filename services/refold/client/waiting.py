"""How long one waits, and waiting no longer, without ever swallowing a cancellation."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from refold.client.client import Client

WITHIN_S = 10.0
WITHIN_ALONE_S = 1.0
"""Where nobody owns the partition; a worker that is just starting still gets the command."""


async def patience(client: "Client", run_id: str) -> timedelta:
    """How long to wait for a decision on the run, where nobody has said so."""
    alone = await client.owner_lives(client.partition_of(run_id)) is False
    return timedelta(seconds=WITHIN_ALONE_S if alone else WITHIN_S)


T = TypeVar("T")


class TimeOver(Exception):
    """What was waited for has not ended in time."""


class Within:
    """The time that a caller gives, counted from here: for everything that the call does."""

    def __init__(self, within: timedelta | None) -> None:
        """None: for ever."""
        self.given = within
        self._loop = asyncio.get_running_loop()
        self._deadline_s = None if within is None else self._loop.time() + within.total_seconds()

    def left(self, least_s: float = 0.0) -> timedelta | None:
        """What is left of it, `least_s` seconds at least; None: for ever."""
        if self._deadline_s is None:
            return None
        return timedelta(seconds=max(self._deadline_s - self._loop.time(), least_s))

    @property
    def given_ms(self) -> int:
        """The time given, 0 for one without end."""
        return 0 if self.given is None else self.given // timedelta(milliseconds=1)


async def done_within(work: Awaitable[object], within: timedelta | None) -> bool:
    """Whether `work` ended in time. Never wait_for, which may swallow a cancellation."""
    waiting = asyncio.ensure_future(work)
    try:
        timeout = None if within is None else within.total_seconds()
        await asyncio.wait({waiting}, timeout=timeout)
    finally:
        if not waiting.done():
            waiting.cancel()
    if not waiting.done():
        await asyncio.wait({waiting})
    if waiting.cancelled():
        return False
    waiting.result()
    return True


async def result_within(work: Awaitable[T], within: timedelta | None) -> T:
    """What `work` ends with. Raises TimeOver where that is not in time: then it was cancelled."""
    if within is None:
        return await work
    waiting = asyncio.ensure_future(work)
    if not await done_within(waiting, within):
        raise TimeOver
    return waiting.result()
