"""How long one waits, and waiting no longer, without ever swallowing a cancellation."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.client.client import Client

WITHIN_S = 10.0
WITHIN_ALONE_S = 1.0
"""Where nobody owns the partition; a worker that is just starting still gets the command."""


async def patience(client: "Client", run_id: str) -> timedelta:
    """How long to wait for a decision on the run, where nobody has said so."""
    alone = await client.owner_lives(client.partition_of(run_id)) is False
    return timedelta(seconds=WITHIN_ALONE_S if alone else WITHIN_S)


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
