"""What holds for all tests: those that live whole worlds through are not traced line by line."""

from collections.abc import Iterator

import coverage
import pytest


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
