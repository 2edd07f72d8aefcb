"""A real Kafka broker for tests: a stack of one, to be killed, frozen, or asked with a password."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from refold_tools.devstack import KAFKA, Ports, Stack
from refold_tools.devstack.layout import HOST, JAVA_KAFKA_MIN, broker_name, free_ports

JAVA_MIN = JAVA_KAFKA_MIN
STOP_S = 10
NAME = broker_name(1)
# A group forgets a dead member soon, a controller its killed broker, and the cleaner looks often.
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.min.session.timeout.ms": "500",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "250",
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
}
USER, PASSWORD = "worker", "correct-horse"
SCRAM_PASSWORDS = {"SCRAM-SHA-256": "battery-256", "SCRAM-SHA-512": "staple-512"}
"""Of the same user, one for each mechanism: so no test can pass by another one."""
LOGIN = "org.apache.kafka.common.security.{}LoginModule required"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    return free_ports(1)[0]


def secure_settings(ports: Ports, secure: int, keys: Path) -> dict[str, str]:
    """A second door that asks who comes in: TLS, and a name with a password."""
    [port], [controller] = ports.kafka, ports.controller
    doors = f"PLAINTEXT://{HOST}:{port},SASL_SSL://{HOST}:{secure}"
    protocols = ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL")
    scram = f"{LOGIN.format('scram.Scram')};"
    return {
        "listeners": f"{doors},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": doors,
        "listener.security.protocol.map": ",".join(protocols),
        "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM_PASSWORDS]),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{LOGIN.format("plain.Plain")} user_{USER}="{PASSWORD}";'
        ),
        **{
            f"listener.name.sasl_ssl.{name.lower()}.sasl.jaas.config": scram
            for name in SCRAM_PASSWORDS
        },
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys),
    }


class Broker:
    """One broker with its data in `directory`; its ports stay the same over restarts.

    With `secure` it has a second one, `secure_server`, over TLS: for `USER` with `PASSWORD` or
    one of `SCRAM_PASSWORDS`; the certificate to trust is `cafile`. `more` are settings of it.
    """

    def __init__(
        self, folder: Path, *, secure: bool = False, more: Mapping[str, str] | None = None
    ) -> None:
        self.directory = folder / NAME
        self.cafile = folder / "cert.pem"
        secure_port = free_port()
        self.secure_server = f"{HOST}:{secure_port}"
        ports, settings = Ports.free(), SETTINGS | dict(more or {})
        if secure:
            self._certify(folder)
            settings |= secure_settings(ports, secure_port, folder / "both.pem")
        # Of a broker that ends with us Linux makes one that ends with the thread that started it,
        # and a test may start it again from one that ends before we do.
        self._thread = ThreadPoolExecutor(1)
        self.stack = self._thread.submit(
            Stack.up,
            folder,
            ports=ports,
            services=frozenset({KAFKA}),
            broker_settings=settings,
            tied=True,
        ).result()
        if secure:
            self._add_users()

    @property
    def server(self) -> str:
        """`host:port` as clients are told it."""
        return self.stack.bootstrap

    def _certify(self, folder: Path) -> None:
        key = folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        command += ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}"]
        command += ["-keyout", str(key), "-out", str(self.cafile)]
        subprocess.run(command, check=True, capture_output=True)
        (folder / "both.pem").write_text(key.read_text() + self.cafile.read_text())

    def _add_users(self) -> None:
        """A name with its password for SCRAM, which a cluster keeps beside its topics."""
        users = [
            UserScramCredentialUpsertion(
                USER,
                ScramCredentialInfo(ScramMechanism[name.replace("-", "_")], 4096),
                password.encode(),
            )
            for name, password in SCRAM_PASSWORDS.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.server})
        for one in users:
            for done in admin.alter_user_scram_credentials([one]).values():
                done.result(30)

    def start(self) -> None:
        """Start it, if it does not run, and wait until it answers."""
        self._thread.submit(self.stack.start_broker, 1).result()

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel does."""
        self.stack.kill_broker(1)

    def freeze(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        os.kill(self.stack.pid(NAME), signal.SIGSTOP)
        deadline = time.monotonic() + STOP_S
        while not self._stands() and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread may answer one more request before it stands

    def _stands(self) -> bool:
        tasks = Path(f"/proc/{self.stack.pid(NAME)}/task")
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()
        ]
        return all(state == "T" for state in states)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.stack.pid(NAME), signal.SIGCONT)

    def end(self) -> None:
        """For ever: a clean end would take seconds, and nobody reads its data any more."""
        self.kill()
        self.stack.down()
        self._thread.shutdown()


class SharedBroker:
    """A broker for tests that leave it to others as they found it; it runs while it is wanted."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._folders = tmp_path_factory
        self._broker: Broker | None = None

    def running(self) -> Broker:
        """Started, or started again where a test has let it end."""
        if self._broker is None:
            self._broker = Broker(self._folders.mktemp("kafka"), secure=True)
        self._broker.start()
        return self._broker

    def end(self) -> None:
        """Until somebody wants one again, which will be a fresh one: one that idles costs too."""
        if self._broker is not None:
            self._broker.end()
            self._broker = None
