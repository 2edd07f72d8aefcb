"""What the stack consists of: services, their versions, ports, folders and variables."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

KAFKA, REGISTRY, POSTGRES = "kafka", "registry", "postgres"
SERVICES = (POSTGRES, KAFKA, REGISTRY)
"""In the order in which they are started; they are stopped in the opposite one."""

KAFKA_VERSION = "4.3.1"
REGISTRY_VERSION = "3.3.3"
POSTGRES_MAJOR_MIN = 15
JAVA_KAFKA_MIN = 17
JAVA_REGISTRY_MIN = 21

HOST = "127.0.0.1"
"""Nothing here asks for a password, so nothing listens on an address that others can reach."""
KAFKA_PORT, CONTROLLER_PORT, REGISTRY_PORT, POSTGRES_PORT = 9092, 9192, 8081, 5432
FREE_FROM, FREE_BELOW = 15_000, 32_000
"""Linux gives connections ports from 32,768 on."""
BROKER_COUNTS = (1, 3)
BROKER_COUNT_MAX = max(BROKER_COUNTS)
PORT_MAX = 65_535

NAMESPACE = "default"
DATABASE = USER = "refold"
REGISTRY_PATH = "/apis/ccompat/v7"
"""The Confluent API of the registry."""


def home() -> Path:
    """Where jars are kept and data goes: `REFOLD_DEVSTACK_HOME`, else `.refold/devstack`."""
    return Path(os.environ.get("REFOLD_DEVSTACK_HOME", "").strip() or ".refold/devstack").absolute()


def free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to connections, and that nobody listens on now.

    A connection to a port that is not served yet may be given that very port for its own end: it
    is then connected to itself, and a broker reads as lengths what it wrote as something else.
    """
    source = SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = source.randrange(FREE_FROM, FREE_BELOW)
        with socket.socket() as one:
            try:
                one.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class Ports(NamedTuple):
    """One port for each listener. `kafka` and `controller` have one for each broker."""

    kafka: tuple[int, ...]
    controller: tuple[int, ...]
    registry: int
    postgres: int

    @classmethod
    def usual(cls, brokers: int = 1) -> "Ports":
        """The ports that these services are known by.

        >>> Ports.usual(3)
        Ports(kafka=(9092, 9093, 9094), controller=(9192, 9193, 9194), registry=8081, postgres=5432)
        """
        return cls(
            tuple(KAFKA_PORT + number for number in range(brokers)),
            tuple(CONTROLLER_PORT + number for number in range(brokers)),
            REGISTRY_PORT,
            POSTGRES_PORT,
        )

    @classmethod
    def at(cls, base: int, brokers: int = 1) -> "Ports":
        """All of them from `base` on, at the same distance from it for every number of brokers.

        >>> Ports.at(20000)
        Ports(kafka=(20000,), controller=(20003,), registry=20006, postgres=20007)
        """
        return cls(
            tuple(base + number for number in range(brokers)),
            tuple(base + BROKER_COUNT_MAX + number for number in range(brokers)),
            base + 2 * BROKER_COUNT_MAX,
            base + 2 * BROKER_COUNT_MAX + 1,
        )

    @classmethod
    def free(cls, brokers: int = 1) -> "Ports":
        """Ports that nobody listens on now. Somebody may take one before it is used."""
        numbers = free_ports(2 * brokers + 2)
        return cls(tuple(numbers[2 : 2 + brokers]), tuple(numbers[2 + brokers :]), *numbers[:2])

    @classmethod
    def of(cls, stored: Any) -> "Ports":
        """The ports as the state file has them."""
        kafka, controller, registry, postgres = stored
        return cls(tuple(kafka), tuple(controller), registry, postgres)


def variables(ports: Ports, services: Iterable[str]) -> dict[str, str]:
    """What refold's settings want to know of a stack.

    >>> variables(Ports.usual(), {"kafka"})
    {'REFOLD_LOG': 'kafka://127.0.0.1:9092/default'}
    """
    brokers = ",".join(f"{HOST}:{port}" for port in ports.kafka)
    named = {
        KAFKA: ("REFOLD_LOG", f"kafka://{brokers}/{NAMESPACE}"),
        REGISTRY: ("REFOLD_REGISTRY_URL", f"http://{HOST}:{ports.registry}{REGISTRY_PATH}"),
        POSTGRES: (
            "REFOLD_DATABASE_URL",
            f"postgresql://{USER}@{HOST}:{ports.postgres}/{DATABASE}",
        ),
    }
    wanted = set(services)
    return dict(pair for service, pair in named.items() if service in wanted)


def broker_name(number: int) -> str:
    """The name of a broker's process; brokers count from 1, as Kafka's node ids here.

    >>> broker_name(1), broker_number("kafka-1"), broker_number("registry")
    ('kafka-1', 1, 0)
    """
    return f"{KAFKA}-{number}"


def broker_number(name: str) -> int:
    """The node id of a broker's process, 0 where it is none."""
    service, _, number = name.partition("-")
    return int(number) if service == KAFKA else 0


def processes(services: Iterable[str], brokers: int) -> tuple[str, ...]:
    """The processes of some services, in the order in which they are started.

    >>> processes({"registry", "kafka"}, 3)
    ('kafka-1', 'kafka-2', 'kafka-3', 'registry')
    """
    wanted = set(services)
    names: list[str] = []
    for service in SERVICES:
        if service in wanted:
            many = [broker_name(number + 1) for number in range(brokers)]
            names += many if service == KAFKA else [service]
    return tuple(names)


def ports_of(name: str, ports: Ports) -> tuple[int, ...]:
    """The ports that a process listens on; the first is the one that clients use."""
    if name == REGISTRY:
        return (ports.registry,)
    if name == POSTGRES:
        return (ports.postgres,)
    number = broker_number(name) - 1
    return ports.kafka[number], ports.controller[number]
