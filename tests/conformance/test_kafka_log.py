"""The log on Kafka against the suite on a real broker, and what is a matter of Kafka alone."""

import pytest

from refold.log import Log
from refold.testing.log_conformance import LogConformance, MakeLog
from support.kafka_broker import Broker
from support.kafka_maker import MakeKafkaLog


class TestKafkaLog(LogConformance):
    @pytest.fixture
    def log(self, make_log: MakeLog) -> Log:
        return make_log()

    @pytest.fixture
    def make_log(self, broker: Broker) -> MakeLog:
        return MakeKafkaLog(broker)
