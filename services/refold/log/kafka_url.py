"""The URL of a log on Kafka: which brokers, which namespace."""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from refold_schemas.errors.log import LogUrlInvalid

PORT_DEFAULT = 9092
PARTITION_COUNT_DEFAULT = 32
"""Hard to change later: a run lives where its run id hashes to."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a URL says. `partition_count` is None where the URL says nothing of it."""

    url: str
    servers: str
    namespace: str
    partition_count: int | None


def parse_url(url: str) -> Place:
    """Read `kafka://host:port[,host:port]/ns`, with `?partitions=` for a namespace yet to be made.

    Raises LogUrlInvalid, which shows no password: names and passwords come from `REFOLD_KAFKA_*`.

    >>> parse_url("kafka://a,b:9093/refunds").servers
    'a:9092,b:9093'
    """
    head, _, query = url.partition("?")
    rest = head.removeprefix("kafka://")
    if "@" in rest:
        shown = f"kafka://***@{rest.rpartition('@')[2]}"
        raise LogUrlInvalid(
            shown, "it names a user; set REFOLD_KAFKA_USERNAME and REFOLD_KAFKA_PASSWORD instead"
        )
    hosts, slash, namespace = rest.partition("/")
    if rest == head or not hosts:
        raise LogUrlInvalid(url, "it names no broker; write it like kafka://host:9092/namespace")
    if not slash or not namespace:
        raise LogUrlInvalid(url, "it names no namespace; write it like kafka://host:9092/namespace")
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", namespace):
        raise LogUrlInvalid(
            url, f"the namespace {namespace!r} is not 1 to 200 of A-Z a-z 0-9 . _ -"
        )
    partition_count: int | None = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "partitions":
            raise LogUrlInvalid(url, f"it has an unknown setting {name!r} (known: partitions)")
        if not re.fullmatch(r"[1-9][0-9]{0,3}", value):
            raise LogUrlInvalid(url, f"partitions={value} is not a number from 1 to 9999")
        partition_count = int(value)
    servers = ",".join(_server(url, host) for host in hosts.split(","))
    return Place(url, servers, namespace, partition_count)


def _server(url: str, host: str) -> str:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(?::([0-9]{1,5}))?", host)
    port = int(found[2] or PORT_DEFAULT) if found else 0
    if found is None or not 0 < port < 65536:
        raise LogUrlInvalid(url, f"{host!r} is no host:port")
    return f"{found[1]}:{port}"
