"""A real Kafka broker for tests, from its published jars: one combined KRaft node on 127.0.0.1."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold_tools.devstack import KAFKA, home
from refold_tools.devstack.jars import bring
from refold_tools.devstack.java import Java, choose, javas
from refold_tools.devstack.layout import free_ports
from refold_tools.devstack.telling import quiet

JAVA_MIN = 17
CLUSTER_ID = "cmVmb2xkLXRlc3RzLTAwMQ"
START_S = 60
STOP_S = 10
# A group forgets a dead member soon, a controller its killed broker, and the cleaner looks often.
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=250
log.cleaner.backoff.ms=100
log.initial.task.delay.ms=100
"""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    return free_ports(1)[0]


# A second door that asks who comes in: TLS, and a name with a password.
SECURE = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram} required;
listener.name.sasl_ssl.plain.sasl.jaas.config={login} required user_{user}="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={directory}/both.pem
"""
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
USER, PASSWORD = "worker", "correct-horse"
SCRAM_PASSWORDS = {"SCRAM-SHA-256": "battery-256", "SCRAM-SHA-512": "staple-512"}
"""Of the same user, one for each mechanism: so no test can pass by another one."""


class Broker:
    """One broker with its data in `directory`; its ports stay the same over restarts.

    With `secure` it has a second one, `secure_server`, over TLS: for `USER` with `PASSWORD` or
    one of `SCRAM_PASSWORDS`; the certificate to trust is `cafile`.
    """

    def __init__(self, directory: Path, java: Java, lib: Path, *, secure: bool = False) -> None:
        self.directory, self.java, self.lib = directory, java, lib
        self.port, self._controller, secure_port = free_ports(3)
        self.secure_server = f"127.0.0.1:{secure_port}"
        self.cafile = directory / "cert.pem"
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._settings = directory / "server.properties"
        settings = SETTINGS
        if secure:
            self._certify()
            kept = [line for line in SETTINGS.splitlines() if "listener" not in line.split("=")[0]]
            kept.append("controller.listener.names=CONTROLLER")
            settings = "\n".join(kept) + "\n" + SECURE
        self._settings.write_text(
            settings.format(
                port=self.port,
                controller=self._controller,
                secure=secure_port,
                directory=directory,
                login=LOGIN,
                scram=SCRAM_LOGIN,
                user=USER,
                password=PASSWORD,
            )
        )
        users = [f"{how}=[name={USER},password={word}]" for how, word in SCRAM_PASSWORDS.items()]
        added = [part for user in users if secure for part in ("--add-scram", user)]
        tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self._settings)
        self._java(*tool, *added)

    @property
    def server(self) -> str:
        """`host:port` as clients are told it."""
        return f"127.0.0.1:{self.port}"

    def _command(self, main: str, *arguments: object) -> list[str]:
        options = ["-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [str(self.java.path), *options, "-cp", f"{self.lib}/*", main, *map(str, arguments)]

    def _java(self, main: str, *arguments: object) -> None:
        subprocess.run(self._command(main, *arguments), check=True, capture_output=True)

    def _certify(self) -> None:
        key = self.directory / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(key), "-out", str(self.cafile)]
        subprocess.run(command, check=True, capture_output=True)
        (self.directory / "both.pem").write_text(key.read_text() + self.cafile.read_text())

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command("kafka.Kafka", self._settings),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"the broker did not start; see {self.directory}/broker.log")

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_S
        while not self._stands() and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread may answer one more request before it stands

    def _stands(self) -> bool:
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()
        ]
        return all(state == "T" for state in states)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def started(tmp_path_factory: pytest.TempPathFactory, *, secure: bool = False) -> Iterator[Broker]:
    """The body of a fixture: a running broker, ended with its tests."""
    java = choose(javas(), JAVA_MIN, "Kafka")
    lib = bring(KAFKA, home() / "jars", java, quiet)
    broker = Broker(tmp_path_factory.mktemp("kafka"), java, lib, secure=secure)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
