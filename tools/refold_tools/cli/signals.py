"""SIGINT, SIGTERM and SIGHUP as a request to stop; a second SIGINT or SIGTERM ends the process as
it always would."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from refold_tools.processes import hears_hangups

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` once, at the first of the signals, in the running loop.

    SIGHUP asks, but never hurries: of a terminal that closes it comes twice, from the shell and
    from the kernel, and beside a SIGTERM where a session ends.
    """
    loop = asyncio.get_running_loop()
    stopped = False

    def once() -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            stop()

    def first() -> None:
        _restore(loop)
        once()

    before = signal.getsignal(signal.SIGHUP)
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread: tests
        for number in STOPPING:
            loop.add_signal_handler(number, first)
        if hears_hangups():
            loop.add_signal_handler(signal.SIGHUP, once)
    try:
        yield
    finally:
        _restore(loop)
        with suppress(NotImplementedError, RuntimeError, ValueError):
            if loop.remove_signal_handler(signal.SIGHUP):
                # What is left to do is not long, and not to be cut by the second one.
                signal.signal(signal.SIGHUP, signal.SIG_IGN if stopped else before)


def _restore(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in STOPPING:
            loop.remove_signal_handler(number)
