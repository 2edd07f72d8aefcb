"""The embedded registry: ids are checked in, files fit them, and it is read when first needed."""

import json
import shutil
from pathlib import Path

import pytest

from refold_schemas.errors import RegistryUnreadable, UnknownSchemaId, UnknownSchemaName
from refold_schemas.registry import FileRegistry
from refold_schemas.registry.files import PACKAGE


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for room in ("events", "commands", "snapshots"):
        shutil.copytree(PACKAGE / room / "avro", tmp_path / room / "avro")
    (tmp_path / "registry").mkdir()
    shutil.copy(PACKAGE / "registry" / "ids.json", tmp_path / "registry" / "ids.json")
    return tmp_path


def test_every_id_has_its_file_and_every_file_its_id() -> None:
    registry = FileRegistry()
    named = set()
    for schema_id in registry.all_ids():
        name, version = registry.name_version(schema_id)
        schema = registry.schema(schema_id)
        assert f"{schema['namespace']}.{schema['name']}" == name
        assert registry.id_of(name, version) == schema_id
        room, short = name.split(".")[1:]
        named.add(PACKAGE / room / "avro" / f"{short}.v{version}.avsc")
    assert named == set(PACKAGE.glob("*/avro/*.avsc"))


def test_ids_tell_events_commands_and_snapshots_apart() -> None:
    registry = FileRegistry()
    for schema_id in registry.all_ids():
        room = registry.name_version(schema_id)[0].split(".")[1]
        assert room == {1: "events", 2: "commands", 3: "snapshots"}[schema_id // 1000]


def test_without_a_version_the_newest_is_meant(copied: Path) -> None:
    ids = json.loads((copied / "registry" / "ids.json").read_text())
    ids["refold.events.TimerFired"]["2"] = 1999
    ids["refold.events.TimerFired"]["10"] = 1998
    (copied / "registry" / "ids.json").write_text(json.dumps(ids))
    registry = FileRegistry(copied)
    assert registry.id_of("refold.events.TimerFired") == 1998
    assert registry.id_of("refold.events.TimerFired", 2) == 1999
    assert registry.name_version(1998) == ("refold.events.TimerFired", 10)


def test_an_unknown_id_name_or_version_is_said_as_such() -> None:
    registry = FileRegistry()
    with pytest.raises(UnknownSchemaId) as caught:
        registry.schema(5)
    assert caught.value.schema_id == 5
    for name, version in [("refold.events.Nothing", None), ("refold.events.TimerFired", 99)]:
        with pytest.raises(UnknownSchemaName) as unknown:
            registry.id_of(name, version)
        assert (unknown.value.name, unknown.value.version) == (name, version)


def test_files_that_do_not_hold_together_are_said_with_their_path(copied: Path) -> None:
    file = copied / "events" / "avro" / "TimerFired.v1.avsc"
    registry = FileRegistry(copied)
    schema_id = registry.id_of("refold.events.TimerFired")
    file.write_text("{")
    with pytest.raises(RegistryUnreadable, match="TimerFired"):
        registry.schema(schema_id)
    file.write_text((copied / "events" / "avro" / "TimerCancelled.v1.avsc").read_text())
    with pytest.raises(RegistryUnreadable, match="does not hold"):
        registry.schema(schema_id)
    file.unlink()
    with pytest.raises(RegistryUnreadable, match="TimerFired"):
        registry.schema(schema_id)


@pytest.mark.parametrize("text", ["", "[]", '{"a": {"x": 1}}', '{"a": {"1": 7}, "b": {"1": 7}}'])
def test_a_list_of_ids_that_is_broken_is_said_with_its_path(copied: Path, text: str) -> None:
    (copied / "registry" / "ids.json").write_text(text)
    with pytest.raises(RegistryUnreadable, match=r"ids\.json"):
        FileRegistry(copied).all_ids()


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path / "absent")
    with pytest.raises(RegistryUnreadable):
        registry.id_of("refold.events.TimerFired")


def test_the_document_lists_every_id() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "log-format.md").read_text()
    registry = FileRegistry()
    for schema_id in registry.all_ids():
        name, version = registry.name_version(schema_id)
        assert f"\n| {schema_id} | `{name}` | {version} |\n" in document
