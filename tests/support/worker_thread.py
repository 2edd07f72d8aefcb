"""A worker on a loop in a thread of its own, as another process would be."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from refold.app import App
from refold.log import open_log
from refold.worker import Worker, WorkerSettings


@contextmanager
def worker_of(app: App, url: str, settings: WorkerSettings | None = None) -> Iterator[None]:
    """The block begins once a partition is claimed; behind it the worker stops."""
    claimed = threading.Event()
    hosting: list[tuple[asyncio.AbstractEventLoop, Worker]] = []

    async def serve() -> None:
        log = open_log(url)
        await log.open(create=True)
        made = Worker(app, log, watch=False, on_event=lambda _: claimed.set(), settings=settings)
        hosting.append((asyncio.get_running_loop(), made))
        await made.run()
        await log.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert claimed.wait(20)
    yield
    loop, made = hosting[0]
    loop.call_soon_threadsafe(made.stop)
    thread.join(20)
