"""Waiting for so long and no longer, without ever swallowing a cancellation."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any


async def done_within(work: Coroutine[Any, Any, object], within: timedelta | None) -> bool:
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
