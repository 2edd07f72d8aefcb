"""The process that is measured: a worker and a client in one, told what to do by lines of JSON."""

import asyncio
import json
import resource
import sys
import time
from typing import Any

from refold.client import Client
from refold.log import open_log
from refold.worker import Worker, tune_process
from refold_tools.bench.work import app


def ready() -> None:
    """Say that work is taken from now on."""
    sys.stdout.write(f"\nREADY {time.monotonic_ns()}\n")
    sys.stdout.flush()


class Bench:
    """Does one order after the other and answers each with a line of JSON."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """`op` seq, many or submit: `count` runs of `run`, one by one, at once, or only started."""
        op, run, count, tag = order["op"], order["run"], order["count"], order["tag"]
        given = order["input"]
        if op == "seq":
            return {"lat": [await self._one(run, f"{tag}-{k}", given) for k in range(count)]}
        if op == "many":
            began = time.monotonic_ns()
            lat = await asyncio.gather(*(self._one(run, f"{tag}-{k}", given) for k in range(count)))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            return {"t0": began, "t1": time.monotonic_ns(), "lat": lat, "rss_mb": memory}
        await asyncio.gather(
            *(self.client.start(run, given, run_id=f"{tag}-{k}") for k in range(count))
        )
        return {"started": count}

    async def _one(self, run: str, run_id: str, given: object) -> int:
        began = time.monotonic_ns()
        handle = await self.client.start(run, given, run_id=run_id)
        await handle.result()
        return time.monotonic_ns() - began


async def serve(url: str) -> None:
    """Serve until standard input ends."""
    log = open_log(url)
    await log.open(create=True)
    tune_process()
    worker = Worker(app, log)
    serving = asyncio.create_task(worker.run())
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with Client(log) as client:
        bench = Bench(client)
        while not worker.owners:  # noqa: ASYNC110 - for a few milliseconds, once
            await asyncio.sleep(0.001)
        ready()
        while text := await orders.readline():
            print(json.dumps(await bench.order(json.loads(text))), flush=True)  # noqa: T201
    worker.stop()
    await serving
    await log.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
