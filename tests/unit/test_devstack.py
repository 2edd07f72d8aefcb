"""The development stack's rules: which Java, which server, which ports, what a state file keeps."""

import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from refold_tools.cli import main
from refold_tools.devstack import (
    KAFKA,
    POSTGRES,
    SERVICES,
    Ports,
    Stack,
    home,
    jars,
    java,
    kafka,
    layout,
    postgres,
    stack,
)
from refold_tools.devstack.daemons import Daemon, last_words
from refold_tools.devstack.errors import (
    PrerequisiteMissing,
    StackBusy,
    StackDiffers,
    StateUnreadable,
)
from refold_tools.devstack.java import Java
from refold_tools.devstack.postgres import Server
from refold_tools.devstack.state import State, locked, read_state, write_state
from refold_tools.devstack.telling import quiet

OLD, NEW = Java(Path("/old/bin/java"), 17), Java(Path("/new/bin/java"), 25)


# ---- prerequisites


@pytest.mark.parametrize(("major_min", "chosen"), [(17, OLD), (21, NEW)])
def test_the_first_java_that_is_new_enough_is_taken(major_min: int, chosen: Java) -> None:
    assert java.choose([Java(Path("/eight/bin/java"), 8), OLD, NEW], major_min, "it") == chosen


@pytest.mark.parametrize(
    ("found", "has"), [((), "there is none here"), ((OLD,), "the newest here is Java 17")]
)
def test_a_java_that_is_missing_is_one_sentence(found: tuple[Java, ...], has: str) -> None:
    with pytest.raises(PrerequisiteMissing) as refused:
        java.choose(found, 21, "the registry")
    assert refused.value.message == f"the registry needs Java 21 or newer, and {has}"
    assert "pip install 'refold[devstack]'" in refused.value.next


def test_a_server_is_taken_that_reads_the_data_if_there_are_any() -> None:
    found = [Server(Path("/12"), 12), Server(Path("/15"), 15), Server(Path("/18"), 18)]
    assert postgres.choose(found, None).major == 15
    assert postgres.choose(found, 18).major == 18


@pytest.mark.parametrize(
    ("found", "data_major", "said"),
    [
        ((), None, "the database needs PostgreSQL 15 or newer, and there is none here"),
        ((12, 13), None, "the database needs PostgreSQL 15 or newer, and the newest here is 13"),
        ((15, 18), 17, "the data were written by PostgreSQL 17, which is not on this machine"),
    ],
)
def test_a_server_that_is_missing_is_one_sentence(
    found: tuple[int, ...], data_major: int | None, said: str
) -> None:
    with pytest.raises(PrerequisiteMissing) as refused:
        postgres.choose([Server(Path(f"/{one}"), one) for one in found], data_major)
    assert refused.value.message == said


def test_a_missing_maven_is_one_sentence_and_leaves_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cache = tmp_path / "jars"
    with pytest.raises(PrerequisiteMissing, match="there is no `mvn` on PATH"):
        jars.bring(KAFKA, cache, NEW, quiet)
    assert not cache.exists()


def test_jars_that_are_there_need_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_run", lambda command, folder, *_: (folder / "files").mkdir())
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    brought = jars.bring(KAFKA, tmp_path, NEW, quiet)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    assert jars.bring(KAFKA, tmp_path, NEW, quiet) == brought
    assert [path.name for path in tmp_path.iterdir()] == [brought.name], "no half is left"


def test_the_pom_asks_for_the_versions_that_are_named() -> None:
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    properties = ElementTree.parse(jars.POM).getroot().find("m:properties", space)
    assert properties is not None
    named = {one.tag.rpartition("}")[2]: one.text for one in properties}
    assert named["kafka.version"] == layout.KAFKA_VERSION
    assert named["registry.version"] == layout.REGISTRY_VERSION


# ---- ports and names


@pytest.mark.parametrize("brokers", layout.BROKER_COUNTS)
@pytest.mark.parametrize("make", [Ports.usual, Ports.free, lambda count: Ports.at(20_000, count)])
def test_no_port_is_given_twice(make: type, brokers: int) -> None:
    ports = make(brokers)
    every = [*ports.kafka, *ports.controller, ports.registry, ports.postgres]
    assert len(set(every)) == len(every) == 2 * brokers + 2
    assert len(ports.kafka) == len(ports.controller) == brokers


def test_the_names_of_processes_lead_to_their_ports() -> None:
    ports = Ports.at(20_000, 3)
    names = layout.processes(SERVICES, 3)
    assert names == ("postgres", "kafka-1", "kafka-2", "kafka-3", "registry")
    assert [layout.ports_of(name, ports)[0] for name in names] == [
        20_007,
        20_000,
        20_001,
        20_002,
        20_006,
    ]


def test_the_variables_are_those_of_the_services_that_run() -> None:
    ports = Ports.usual(3)
    assert layout.variables(ports, SERVICES) == {
        "REFOLD_LOG": "kafka://127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094/default",
        "REFOLD_REGISTRY_URL": "http://127.0.0.1:8081/apis/ccompat/v7",
        "REFOLD_DATABASE_URL": "postgresql://refold@127.0.0.1:5432/refold",
    }
    assert layout.variables(ports, [POSTGRES]).keys() == {"REFOLD_DATABASE_URL"}


def test_the_home_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFOLD_DEVSTACK_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.setenv("REFOLD_DEVSTACK_HOME", " ")
    assert home() == Path(".refold/devstack").absolute()


# ---- a broker's settings and answers


def test_three_brokers_hold_a_record_on_two_of_them_at_least() -> None:
    said = kafka.settings(2, Ports.at(20_000, 3), Path("/data"), {})
    assert said["node.id"] == "2"
    assert said["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20004"
    assert said["controller.quorum.voters"].count("@127.0.0.1:") == 3
    assert (said["default.replication.factor"], said["min.insync.replicas"]) == ("3", "2")
    assert said["offsets.topic.replication.factor"] == "3"
    assert said["auto.create.topics.enable"] == "false"


def test_settings_of_a_caller_win() -> None:
    more = {"broker.session.timeout.ms": "9000"}
    said = kafka.settings(1, Ports.usual(), Path("/data"), more)
    assert said["broker.session.timeout.ms"] == "9000"


def test_the_brokers_are_read_from_an_answer() -> None:
    def broker(node: int, rack: bytes | None) -> bytes:
        host = b"127.0.0.1"
        head = struct.pack(f"!ih{len(host)}si", node, len(host), host, 9092)
        return head + (struct.pack("!h", -1) if rack is None else struct.pack("!h2s", 2, rack))

    answer = struct.pack("!i", 3) + broker(1, None) + broker(2, b"r1") + broker(3, None) + b"more"
    assert kafka.broker_ids(answer) == {1, 2, 3}


# ---- the state file


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    state = State(Ports.at(20_000, 3), "id", {}).with_daemon("kafka-1", Daemon(7, 123, "boot"))
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert state.brokers == 3
    assert state.without(frozenset({"kafka-1"})).daemons == {}
    assert read_state(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "stored", ["", "[]", '{"format": 9}', '{"format": 1, "daemons": {"a": 1}}']
)
def test_a_state_that_cannot_be_read_is_refused(tmp_path: Path, stored: str) -> None:
    (tmp_path / "state.json").write_text(stored)
    with pytest.raises(StateUnreadable):
        read_state(tmp_path)


def test_one_command_at_a_time_works_on_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(StackBusy), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_stack_keeps_its_number_of_brokers(tmp_path: Path) -> None:
    write_state(tmp_path, State(Ports.usual(3), "id", {}))
    with pytest.raises(StackDiffers, match=r"has 3 broker\(s\), not 1"):
        Stack.up(tmp_path, brokers=1, services=())
    assert Stack.up(tmp_path, services=()).state.brokers == 3


def test_ports_are_for_as_many_brokers_as_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ports for 1 broker\(s\), not 3"):
        Stack.up(tmp_path, brokers=3, ports=Ports.free(), services=())


def test_last_words_are_those_that_say_what_is_wrong(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == "it said nothing"
    log.write_text("INFO starts\nERROR no room\n\tat a.b.C\nINFO stops\n")
    assert last_words(log) == "ERROR no room"
    log.write_text("INFO starts\nINFO stops\n\n")
    assert last_words(log) == "INFO stops"


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--services", "kafka,redis"], "no service redis"),
        (["up", "--brokers", "2"], "one broker or three"),
        (["up", "--port-base", "80"], "greater than or equal to 1024"),
    ],
)
def test_what_the_command_cannot_do_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devstack", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_nothing_runs_where_no_stack_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "stack")
    assert main(["devstack", "status", "--folder", folder]) == 0
    assert main(["devstack", "down", "--folder", folder]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"nothing is up in {folder}",
        "nothing was running",
    ]
    assert not Path(folder).exists()


def test_a_cluster_id_is_no_option_of_the_storage_tool() -> None:
    """One of 64 began with a dash, and a broker could not format its folder."""
    assert not any(stack._fresh_cluster_id().startswith("-") for _ in range(2_000))
