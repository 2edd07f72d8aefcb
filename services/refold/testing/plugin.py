"""The pytest plugin: readable failures of the shared suites, and fixtures for a log in memory."""

import pytest

# Before anything imports it: otherwise a failing check of the shared suite says no more than
# AssertionError.
pytest.register_assert_rewrite("refold.testing.log_conformance")

from refold.log.memory import MemoryBroker, MemoryLog  # noqa: E402


@pytest.fixture
def memory_broker() -> MemoryBroker:
    """A log of one partition in memory that outlives the handles on it."""
    return MemoryBroker("test")


@pytest.fixture
def memory_log(memory_broker: MemoryBroker) -> MemoryLog:
    """A handle on `memory_broker`, not opened."""
    return MemoryLog("memory://test", broker=memory_broker)
