"""The process that is measured: one worker on a log, until its standard input ends.

It says READY when it owns its first partition, and OWNS with the number of them whenever that has
changed; both with the moment, in nanoseconds on CLOCK_MONOTONIC.
"""

import asyncio
import sys
import time

from refold.log import open_log
from refold.worker import Worker, tune_process
from refold_tools.bench.work import app

LOOK_FIRST_S, LOOK_S = 0.001, 0.02


def say(line: str) -> None:
    """A line on standard output, at once; run code may have left half a line there."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


async def _say_owned(worker: Worker) -> None:
    said = 0
    while True:
        if (owned := len(worker.owners)) != said:
            if said == 0:
                say(f"READY {time.monotonic_ns()}")
            say(f"OWNS {owned} {time.monotonic_ns()}")
            said = owned
        await asyncio.sleep(LOOK_S if said else LOOK_FIRST_S)


async def serve(url: str, name: str | None = None) -> None:
    """Serve until standard input ends. `name`: its own in the group, kept over restarts."""
    log = open_log(url)
    await log.open(create=True)
    tune_process()
    worker = Worker(app, log, owner=name)
    serving = asyncio.create_task(worker.run())
    saying = asyncio.create_task(_say_owned(worker))
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    ordered = asyncio.create_task(orders.read())
    # A worker that has ended by itself says why, and the measurement ends with it.
    await asyncio.wait([ordered, serving, saying], return_when=asyncio.FIRST_COMPLETED)
    saying.cancel()
    worker.stop()
    await serving
    await log.close()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
