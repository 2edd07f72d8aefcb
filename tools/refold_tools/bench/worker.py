"""The process that is measured: one worker on a log, until its standard input ends."""

import asyncio
import sys
import time

from refold.log import open_log
from refold.worker import Worker, tune_process
from refold_tools.bench.work import app


def ready() -> None:
    """Say that work is taken from now on."""
    sys.stdout.write(f"\nREADY {time.monotonic_ns()}\n")
    sys.stdout.flush()


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
    while not worker.owners:  # noqa: ASYNC110 - for a few milliseconds, once
        await asyncio.sleep(0.001)
    ready()
    await orders.read()
    worker.stop()
    await serving
    await log.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
