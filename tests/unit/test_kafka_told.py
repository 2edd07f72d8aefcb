"""What a Kafka client's error says in a line: every error has one, and none says its name twice."""

import inspect

import pytest
from aiokafka import errors

from refold.log.kafka_access import told

KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind)
    and issubclass(kind, errors.KafkaError)
    and (not issubclass(kind, errors.BrokerResponseError) or hasattr(kind, "errno"))
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_is_told_in_a_line_with_its_name_once(kind: type[errors.KafkaError]) -> None:
    name = kind.__name__.removesuffix("Error")
    for error in (kind(), kind("shop.events\npartition 0")):
        line = told(error)
        assert line.startswith(name)
        assert line.count(name) == 1
        assert "[Error" not in line
        assert "\n" not in line


def test_what_an_error_is_about_is_told() -> None:
    about = errors.LeaderNotAvailableError("shop.events partition 0")
    assert told(about) == "LeaderNotAvailable: shop.events partition 0"
    assert "full, read-only or broken" in told(errors.KafkaStorageError())
