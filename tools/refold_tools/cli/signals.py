"""SIGINT and SIGTERM as a request to stop; the second one ends the process as it always would."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first of the two signals, in the running loop."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        _restore(loop)
        stop()

    with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread: tests
        for number in STOPPING:
            loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        _restore(loop)


def _restore(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in STOPPING:
            loop.remove_signal_handler(number)
