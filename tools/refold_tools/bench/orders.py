"""Orders work from outside: the client measures here, the worker is a process of its own."""

import asyncio
import time
from typing import Any

from refold.client import Client
from refold.worker import tune_process


def order(url: str, op: str, run: str, count: int, given: object, tag: str) -> dict[str, Any]:
    """`op` seq, many or submit: `count` runs of `run`, one by one, at once, or only started.

    Returns `lat`, nanoseconds of each run as its caller sees it, and for many `t0` and `t1`.
    """
    tune_process()
    return asyncio.run(_order(url, op, run, count, given, tag))


async def _order(
    url: str, op: str, run: str, count: int, given: object, tag: str
) -> dict[str, Any]:
    async with Client(url) as client:

        async def one(number: int) -> int:
            began = time.monotonic_ns()
            handle = await client.start(run, given, run_id=f"{tag}-{number}")
            await handle.result()
            return time.monotonic_ns() - began

        if op == "seq":
            return {"lat": [await one(number) for number in range(count)]}
        if op == "many":
            began = time.monotonic_ns()
            lat = await asyncio.gather(*(one(number) for number in range(count)))
            return {"t0": began, "t1": time.monotonic_ns(), "lat": lat}
        await asyncio.gather(
            *(client.start(run, given, run_id=f"{tag}-{number}") for number in range(count))
        )
        return {"started": count}
