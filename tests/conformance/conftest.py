"""What the conformance tests share: a real Kafka broker, one for each test process."""

from collections.abc import Iterator

import pytest

from support.kafka_broker import Broker, started


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, for tests that leave it running."""
    yield from started(tmp_path_factory)
