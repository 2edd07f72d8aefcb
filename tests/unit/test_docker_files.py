"""The files for people who have Docker say what the devstack says; nothing here needs an engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold_tools.cli.table import COMMANDS
from refold_tools.devstack import KAFKA, POSTGRES, REGISTRY, Ports, kafka, layout

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())[
    "services"
]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OF_THE_PLACE = {"listeners", "log.dirs", "controller.quorum.voters"}
"""Settings that differ because a container has folders and names of its own."""


def test_the_images_are_of_the_devstacks_versions() -> None:
    assert SERVICES[KAFKA]["image"] == f"apache/kafka:{layout.KAFKA_VERSION}"
    assert SERVICES[REGISTRY]["image"] == f"apicurio/apicurio-registry:{layout.REGISTRY_VERSION}"
    name, _, major = SERVICES[POSTGRES]["image"].partition(":")
    assert name == "postgres"
    assert int(major) >= layout.POSTGRES_MAJOR_MIN


@pytest.mark.parametrize("service", layout.SERVICES)
def test_the_ports_are_the_usual_ones_and_closed_to_others(service: str) -> None:
    (name,) = layout.processes([service], 1)
    (mapped,) = SERVICES[service]["ports"]
    host, outside, _ = mapped.split(":")
    assert (host, int(outside)) == (layout.HOST, layout.ports_of(name, Ports.usual())[0])


def test_the_broker_has_the_devstacks_settings() -> None:
    said = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in SERVICES[KAFKA]["environment"].items()
    }
    wanted = kafka.settings(1, Ports.usual(), Path("/data"), {})
    assert {name: said.get(name) for name in wanted.keys() - OF_THE_PLACE} == {
        name: value for name, value in wanted.items() if name not in OF_THE_PLACE
    }


def test_the_clients_find_the_broker_from_outside_and_from_the_worker() -> None:
    advertised = SERVICES[KAFKA]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    inside, outside = (one.partition("://")[2] for one in advertised.split(","))
    assert f"kafka://{outside}/default" == layout.variables(Ports.usual(), [KAFKA])["REFOLD_LOG"]
    assert f"kafka://{inside}/default" == SERVICES["worker"]["environment"]["REFOLD_LOG"]
    assert inside.partition(":")[0] == KAFKA, "the name of the service is its host inside"


def test_the_database_is_the_devstacks() -> None:
    environment = SERVICES[POSTGRES]["environment"]
    assert environment["POSTGRES_USER"] == layout.USER
    assert environment["POSTGRES_DB"] == layout.DATABASE


def test_the_projector_reads_the_workers_log_into_that_database() -> None:
    environment = SERVICES["projector"]["environment"]
    assert environment["REFOLD_LOG"] == SERVICES["worker"]["environment"]["REFOLD_LOG"]
    (_, _, inside) = SERVICES[POSTGRES]["ports"][0].split(":")
    assert environment["REFOLD_DATABASE_URL"] == (
        f"postgresql://{layout.USER}@{POSTGRES}:{inside}/{layout.DATABASE}"
    )
    assert SERVICES["projector"]["command"][0] in {entry.name for entry in COMMANDS}


def test_the_image_copies_what_is_there_and_runs_a_command_that_exists() -> None:
    copied = [
        name
        for line in re.findall(r"^COPY ((?!--).+) \S+$", DOCKERFILE, re.M)
        for name in line.split()
    ]
    assert "requirements-demo.lock" in copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert 'ENTRYPOINT ["refold"]' in DOCKERFILE
    assert SERVICES["live"]["command"][0] in {entry.name for entry in COMMANDS}
    assert SERVICES["worker"]["command"][0] in {entry.name for entry in COMMANDS}


def test_the_gateway_stands_on_the_same_log_and_database_and_has_its_tokens() -> None:
    gateway, projector = SERVICES["gateway"], SERVICES["projector"]
    environment = gateway["environment"]
    for name in ("REFOLD_LOG", "REFOLD_DATABASE_URL"):
        assert environment[name] == projector["environment"][name]
    assert gateway["command"][0] in {entry.name for entry in COMMANDS}
    assert "--insecure" not in gateway["command"]
    (volume,) = gateway["volumes"]
    folder = volume.partition(":")[2]
    assert environment["REFOLD_GATEWAY_TOKENS"].startswith(f"{folder}/")
    assert f"install -d -o refold -m 700 {folder}" in DOCKERFILE
    assert gateway["ports"][0].startswith("127.0.0.1:")
