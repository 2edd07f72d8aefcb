"""A stack in a folder: brought up, looked at, broken on purpose, taken down."""

import base64
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from refold_tools.devstack import daemons, jars, java, kafka, postgres, registry
from refold_tools.devstack.daemons import Daemon, Part
from refold_tools.devstack.errors import PortTaken, ServiceNotReady, StackDiffers
from refold_tools.devstack.layout import (
    HOST,
    JAVA_KAFKA_MIN,
    JAVA_REGISTRY_MIN,
    KAFKA,
    POSTGRES,
    REGISTRY,
    SERVICES,
    Ports,
    broker_name,
    broker_number,
    home,
    ports_of,
    processes,
    variables,
)
from refold_tools.devstack.state import State, locked, mark_of, read_state, write_state
from refold_tools.devstack.telling import Tell, quiet

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 20.0
NEEDS_JAVA = {KAFKA: (JAVA_KAFKA_MIN, "Kafka"), REGISTRY: (JAVA_REGISTRY_MIN, "the registry")}
STOPPED_BY = {POSTGRES: signal.SIGINT}
"""SIGTERM would let Postgres wait for its clients. Source: PostgreSQL, Shutting Down the Server."""


class Standing(NamedTuple):
    """One process of the stack. `said`: the last line of one that has ended, or does not answer."""

    name: str
    pid: int
    port: int
    lives: bool
    ready: bool
    said: str = ""


class Stack:
    """Real services that live in a folder, and beyond the process that started them.

    With `tied` they are killed when this process ends, however that happens: for tests.
    """

    def __init__(self, folder: Path, *, tied: bool = False, cache: Path | None = None) -> None:
        """`cache` keeps the jars; folders share it. Default: `jars` in `home()`."""
        self.folder, self.tied = folder.absolute(), tied
        self.cache = cache or home() / "jars"

    @classmethod
    def up(
        cls,
        folder: Path,
        *,
        brokers: int | None = None,
        ports: Ports | None = None,
        services: Iterable[str] = SERVICES,
        broker_settings: Mapping[str, str] | None = None,
        tied: bool = False,
        cache: Path | None = None,
        tell: Tell = quiet,
    ) -> Self:
        """Start what is not running yet and return when all of it is ready.

        What is left out is as it was, or as usual. `broker_settings` go into `server.properties`.
        """
        stack = cls(folder, tied=tied, cache=cache)
        stack.bring_up(brokers, ports, services, broker_settings or {}, tell)
        return stack

    def bring_up(
        self,
        brokers: int | None,
        ports: Ports | None,
        services: Iterable[str],
        broker_settings: Mapping[str, str],
        tell: Tell,
    ) -> tuple[str, ...]:
        """What `up` does. Returns the names of what it has started; none: all of it was up."""
        with locked(self.folder):
            known = self._wanted_state(brokers, ports)
            names = processes(services, known.brokers)
            alive = {name for name, one in known.daemons.items() if daemons.lives(one)}
            missing = tuple(name for name in names if name not in alive)
            for name in missing:
                _check_ports(name, known.ports)
            parts = self._parts(missing, known, broker_settings, tell)
            write_state(self.folder, known)
            try:
                with ThreadPoolExecutor() as pool:  # side by side: most of the time each waits
                    tuple(pool.map(lambda name: parts[name].make(self._log(name)), missing))
                for name in missing:
                    self._start(name, parts[name])
                self._await_ready(names, tell if missing else quiet)
            except BaseException:
                self._stop(missing)
                raise
            return missing

    @property
    def state(self) -> State:
        """What the state file says. Without one the stack has the usual ports and nothing runs."""
        found = read_state(self.folder)
        return found or State(Ports.usual(), _fresh_cluster_id(), {})

    @property
    def ports(self) -> Ports:
        """Where its services listen."""
        return self.state.ports

    @property
    def bootstrap(self) -> str:
        """The brokers as Kafka's clients want them: `host:port`, with commas."""
        return ",".join(f"{HOST}:{port}" for port in self.ports.kafka)

    @property
    def variables(self) -> dict[str, str]:
        """`REFOLD_LOG`, `REFOLD_REGISTRY_URL`, `REFOLD_DATABASE_URL`: those of what was started."""
        known = self.state
        return variables(known.ports, {name.partition("-")[0] for name in known.daemons})

    def status(self) -> tuple[Standing, ...]:
        """Every process that was started and not stopped since, with what can be seen of it."""
        known = self.state
        return tuple(self._standing(name, one, known.ports) for name, one in known.daemons.items())

    def pid(self, name: str) -> int:
        """The pid of `postgres`, `registry` or `kafka-1`: for signals of a test's own."""
        return self.state.daemons[name].pid

    def down(self, *, delete: bool = False) -> tuple[str, ...]:
        """Stop all of it, in the opposite order of its start. Returns what had to be killed.

        With `delete` the folder and its data go too.
        """
        with locked(self.folder):
            killed = self._stop(self.state.daemons)
            if delete:
                shutil.rmtree(postgres.place(self.folder, postgres.account()), ignore_errors=True)
                shutil.rmtree(self.folder)
        return killed

    # ---- one broker

    def kill_broker(self, number: int) -> None:
        """SIGKILL: no farewell to the other brokers, nothing written any more."""
        daemons.kill([self.state.daemons[broker_name(number)]])

    def stop_broker(self, number: int) -> None:
        """Let a broker hand over what it leads and end."""
        daemons.stop(
            {self.state.daemons[broker_name(number)]: signal.SIGTERM}, within_s=STOP_WITHIN_S
        )

    def start_broker(self, number: int, *, wait: bool = True) -> None:
        """Start a broker that has ended, with the settings it had; `wait`: until it is ready."""
        name, known = broker_name(number), self.state
        if daemons.lives(known.daemons[name]):
            return
        self._start(name, self._parts((name,), known, {}, quiet)[name])
        if wait:
            self._await_ready((name,), quiet)

    def __enter__(self) -> Self:
        """The stack, which is up."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it down; its data stay."""
        self.down()

    # ---- parts of `up`

    def _wanted_state(self, brokers: int | None, ports: Ports | None) -> State:
        """The state to go on with: that of the file if there is one, and if it fits."""
        if ports is not None and brokers not in (None, len(ports.kafka)):
            raise ValueError(f"these are ports for {len(ports.kafka)} broker(s), not {brokers}")
        known = read_state(self.folder)
        if known is None:
            wanted = ports or Ports.usual(brokers or 1)
            return State(wanted, _fresh_cluster_id(), {})
        asked = brokers or (len(ports.kafka) if ports else known.brokers)
        if asked != known.brokers:  # their number stands in the data of each of them
            raise StackDiffers(self.folder, f"{known.brokers} broker(s)", f"{asked}")
        if ports is None or ports == known.ports:
            return known
        if any(daemons.lives(one) for one in known.daemons.values()):
            has = ", ".join(str(port) for port in (*known.ports.kafka, *known.ports[2:]))
            raise StackDiffers(self.folder, f"the ports {has} and is up", "others")
        return known._replace(ports=ports)

    def _parts(
        self, names: Iterable[str], known: State, more: Mapping[str, str], tell: Tell
    ) -> dict[str, Part]:
        """What is to be started. All programs are found before anything is fetched or made."""
        services = {name.partition("-")[0] for name in names}
        javas = {
            service: java.choose(java.javas(), major_min, what)
            for service, (major_min, what) in NEEDS_JAVA.items()
            if service in services
        }
        parts: dict[str, Part] = {}
        if POSTGRES in services:
            parts[POSTGRES] = postgres.look(self.folder, known.ports.postgres)
        files = {one: jars.bring(one, self.cache, javas[one], tell) for one in javas}
        for name in names:
            if name == REGISTRY:
                one, port = javas[REGISTRY], known.ports.registry
                parts[name] = registry.Registry(one, files[REGISTRY], self.folder, port)
            elif number := broker_number(name):
                parts[name] = kafka.Broker(
                    javas[KAFKA],
                    files[KAFKA],
                    self.folder / name,
                    number,
                    known.ports,
                    known.cluster_id,
                    more,
                )
        return parts

    def _start(self, name: str, part: Part) -> None:
        known = self.state
        if name in known.daemons:
            daemons.wait_reaped(known.daemons[name])
        mark = mark_of(self.folder, name)
        one = daemons.start(part.launch(), log=self._log(name), mark=mark, tied=self.tied)
        write_state(self.folder, known.with_daemon(name, one))
        mark.unlink()

    def _await_ready(self, names: Iterable[str], tell: Tell) -> None:
        since = time.monotonic()
        known = self.state
        left = list(names)
        brokers = frozenset(map(broker_number, left)) - {0}
        while left:
            for name in tuple(left):
                if self._ready(name, known.ports, brokers):
                    left.remove(name)
                    port, *_ = ports_of(name, known.ports)
                    tell(f"{name}: ready on port {port} after {time.monotonic() - since:.1f} s")
                elif not daemons.lives(known.daemons[name]):
                    raise self._not_ready(name, "ended while it started")
                elif time.monotonic() - since > READY_WITHIN_S:
                    raise self._not_ready(name, f"did not answer within {READY_WITHIN_S:.0f} s")
            time.sleep(daemons.POLL_S)

    def _ready(self, name: str, ports: Ports, brokers: frozenset[int]) -> bool:
        port, *_ = ports_of(name, ports)
        if name == POSTGRES:
            return postgres.ready(port)
        if name == REGISTRY:
            return registry.ready(port)
        return kafka.ready(port, brokers)

    def _not_ready(self, name: str, happened: str) -> ServiceNotReady:
        log = self._log(name)
        return ServiceNotReady(name, happened, daemons.last_words(log), log)

    def _standing(self, name: str, one: Daemon, ports: Ports) -> Standing:
        port, *_ = ports_of(name, ports)
        lives = daemons.lives(one)
        ready = lives and self._ready(name, ports, frozenset({broker_number(name)} - {0}))
        said = "" if ready else daemons.last_words(self._log(name))
        return Standing(name, one.pid, port, lives, ready, said)

    def _stop(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop some of the processes, the service that was started last first."""
        known = self.state
        named = [name for name in names if name in known.daemons]
        killed: list[str] = []
        for service in reversed(SERVICES):
            many = {known.daemons[n]: n for n in named if n.partition("-")[0] == service}
            number = STOPPED_BY.get(service, signal.SIGTERM)
            late = daemons.stop(dict.fromkeys(many, number), within_s=STOP_WITHIN_S)
            killed += [many[one] for one in late]
        write_state(self.folder, known.without(frozenset(named)))
        return tuple(killed)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _fresh_cluster_id() -> str:
    """Kafka's form of a UUID: 16 bytes, base64 for URLs, no padding; a dash first is an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def _check_ports(name: str, ports: Ports) -> None:
    """Raise PortTaken where somebody listens already; the service would say so in Java's words."""
    for port in ports_of(name, ports):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past TIME_WAIT, as servers
            try:
                one.bind((HOST, port))
            except OSError as error:
                raise PortTaken(name, port) from error
