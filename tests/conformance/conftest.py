"""What the conformance tests share: a real Kafka broker, one for each test process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kafka_broker import Broker, jars, missing


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, for tests that leave it running."""
    lacking = missing()
    if lacking:
        pytest.skip(f"no Kafka broker can be started here: {lacking}")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "refold"
    broker = Broker(tmp_path_factory.mktemp("kafka"), jars(cache))
    broker.start()
    yield broker
    broker.kill()
