"""One Kafka broker in KRaft mode: its settings, how it is formatted and started, when it is ready.

Each node is broker and controller, so one or three of them are a whole cluster.
"""

import socket
import struct
import subprocess
from collections.abc import Mapping, Set
from pathlib import Path
from typing import NamedTuple

from refold_tools.devstack.daemons import Launch, last_words
from refold_tools.devstack.errors import ServiceNotReady
from refold_tools.devstack.java import Java
from refold_tools.devstack.layout import HOST, Ports, broker_name

SETTINGS = "server.properties"
FORMAT_WITHIN_S = 60.0
ANSWER_WITHIN_S = 2.0
ANSWER_SIZE_MAX = 1 << 20
METADATA, METADATA_VERSION = 3, 1
"""The request by which every client learns of the brokers. Version 1 may ask for no topic."""
NO_TOPIC = struct.pack("!i", 0)
CLIENT, CORRELATION = b"refold-devstack", 7
HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")
"""Three brokers have to fit beside an editor; a serial collector has no threads of its own."""


def settings(number: int, ports: Ports, data: Path, more: Mapping[str, str]) -> dict[str, str]:
    """What stands in the `server.properties` of a broker. `more` adds to it and wins."""
    brokers = len(ports.kafka)
    voters = (f"{one + 1}@{HOST}:{port}" for one, port in enumerate(ports.controller))
    client, controller = ports.kafka[number - 1], ports.controller[number - 1]
    copies = str(brokers)
    enough = str(min(2, brokers))
    return {
        "node.id": str(number),
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": str(data),
        # A topic is made by `refold namespace create`, with its settings, or it is missing.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": enough,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "8",  # 50 are for clusters, and each is a folder
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": enough,
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": enough,
        # The usual 3 s wait for more members of a new group: here they are all there.
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker is missed, and may register again, only after its session: usually 9 s.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        **more,
    }


class Broker(NamedTuple):
    """One broker, by its number from 1 on. `more` are settings of the caller's."""

    java: Java
    jars: Path
    folder: Path
    number: int
    ports: Ports
    cluster_id: str
    more: Mapping[str, str]

    def make(self, log: Path) -> None:
        """Write its settings, and once give its folder the cluster id: it starts on no other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = settings(self.number, self.ports, self.folder / "data", self.more)
        lines = (f"{name}={value}\n" for name, value in said.items())
        (self.folder / SETTINGS).write_text("".join(lines))
        if (self.folder / "data/meta.properties").exists():
            return
        tool = ("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", SETTINGS)
        with log.open("ab") as output:
            done = subprocess.run(
                [*self._java("-XX:TieredStopAtLevel=1"), *tool],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=FORMAT_WITHIN_S,
            )
        if done.returncode:
            name = broker_name(self.number)
            raise ServiceNotReady(name, "could not format its folder", last_words(log), log)

    def launch(self) -> Launch:
        """Started with the settings that its folder has."""
        level = "-Dorg.apache.logging.log4j.level=INFO"  # without a file log4j writes errors only
        return Launch([*self._java(*HEAP, level), "kafka.Kafka", SETTINGS], self.folder)

    def _java(self, *options: str) -> list[str]:
        return [str(self.java.path), *options, "-cp", f"{self.jars}/*"]


def ready(port: int, awaited: Set[int]) -> bool:
    """Whether the broker answers, and knows every node of `awaited` as a living broker."""
    return awaited <= known_brokers(port)


def known_brokers(port: int) -> frozenset[int]:
    """The node ids of the living brokers, as the broker at `port` knows them; none: no answer."""
    try:
        return broker_ids(ask(port, METADATA, METADATA_VERSION, NO_TOPIC))
    except (OSError, struct.error):
        return frozenset()


def ask(port: int, kind: int, version: int, body: bytes) -> bytes:
    """One request and its answer. Raises OSError where there is none.

    Source: Kafka protocol guide: size, then kind, version, correlation id, client id, body; the
    answer is size, correlation id, body.
    """
    header = struct.pack(f"!hhih{len(CLIENT)}s", kind, version, CORRELATION, len(CLIENT), CLIENT)
    with socket.create_connection((HOST, port), ANSWER_WITHIN_S) as line:
        line.sendall(struct.pack("!i", len(header) + len(body)) + header + body)
        size, correlation = struct.unpack("!ii", _exactly(line, 8))
        if correlation != CORRELATION or not 4 <= size <= ANSWER_SIZE_MAX:
            raise ConnectionError("what listens there is no broker")
        return _exactly(line, size - 4)


def broker_ids(answer: bytes) -> frozenset[int]:
    """The node ids in an answer to METADATA version 1.

    Source: Kafka, MetadataResponse.json: first an array of node id, host, port, rack.
    """
    (count,) = struct.unpack_from("!i", answer)
    place, found = 4, set[int]()
    for _ in range(count):
        node, host_size = struct.unpack_from("!ih", answer, place)
        place += 6 + host_size + 4
        (rack_size,) = struct.unpack_from("!h", answer, place)  # -1: it has none
        place += 2 + max(0, rack_size)
        found.add(node)
    return frozenset(found)


def _exactly(line: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = line.recv(size)
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
