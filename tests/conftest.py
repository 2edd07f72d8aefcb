"""What holds for all tests: worlds are not traced line by line, and Ctrl-C reaches processes."""

import signal
from collections.abc import Iterator

import coverage
import pytest

# A shell lets its background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _untraced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the coverage's tracer, which doubles the time, for what is marked `untraced`.

    Such a test runs the same lines some millions of times; others are there for each line.
    """
    tracer = coverage.Coverage.current() if request.node.get_closest_marker("untraced") else None
    if tracer is None:
        yield
        return
    tracer.stop()
    try:
        yield
    finally:
        tracer.start()
