"""The embedded registry: ids are checked in, files fit them, and it is read when first needed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold_schemas.codec import Codec
from refold_schemas.errors import (
    RegistryUnreadable,
    SchemaChanged,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.events import TimerFired
from refold_schemas.registry import (
    FileRegistry,
    Schema,
    canonical_form,
    fingerprint,
    incompatibilities,
)
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
        assert room == {1: "events", 2: "commands", 3: "snapshots"}[schema_id // 1000 - 2_000_000]


def test_without_a_version_the_newest_is_meant(copied: Path) -> None:
    ids = json.loads((copied / "registry" / "ids.json").read_text())
    ids["refold.events.TimerFired"]["2"] = {"id": 1999, "fingerprint": ""}
    ids["refold.events.TimerFired"]["10"] = {"id": 1998, "fingerprint": ""}
    (copied / "registry" / "ids.json").write_text(json.dumps(ids))
    registry = FileRegistry(copied)
    assert registry.id_of("refold.events.TimerFired") == 1998
    assert registry.id_of("refold.events.TimerFired", 2) == 1999
    assert registry.name_version(1998) == ("refold.events.TimerFired", 10)


def test_an_unknown_id_name_or_version_is_said_as_such() -> None:
    registry = FileRegistry()
    with pytest.raises(UnknownSchemaId) as caught:
        registry.schema(2_000_000_005)
    assert caught.value.schema_id == 2_000_000_005
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


def test_a_released_schema_that_has_changed_is_refused_with_both_fingerprints(copied: Path) -> None:
    """F35: an id that points to another schema than at its release is never believed."""
    file = copied / "events" / "avro" / "TimerFired.v1.avsc"
    schema = json.loads(file.read_text())
    schema_id = FileRegistry().id_of("refold.events.TimerFired")
    data = Codec(FileRegistry()).encode(TimerFired("sleep#1", 1))
    schema["fields"].reverse()
    file.write_text(json.dumps(schema))
    changed = FileRegistry(copied)
    for use in (
        lambda: changed.schema(schema_id),
        lambda: Codec(changed).decode(data),
        lambda: Codec(changed).encode(TimerFired("sleep#1", 1)),
    ):
        with pytest.raises(SchemaChanged) as caught:
            use()
        error = caught.value
        assert error.pinned == FileRegistry().fingerprint(schema_id)
        assert error.found == fingerprint(schema)
        assert error.pinned in str(error)
        assert error.found in str(error)
        assert f"id {schema_id}" in str(error)
    assert changed.schema(changed.id_of("refold.events.StepFailed"))  # one by one, when needed


def test_documentation_is_no_part_of_what_is_pinned(copied: Path) -> None:
    file = copied / "events" / "avro" / "TimerFired.v1.avsc"
    schema = json.loads(file.read_text())
    schema["doc"] = schema["fields"][0]["doc"] = "Said better."
    file.write_text(json.dumps(schema))
    registry = FileRegistry(copied)
    assert registry.schema(registry.id_of("refold.events.TimerFired")) == schema


def test_the_published_fingerprints_of_avro_are_ours() -> None:
    """Rabin's are in the specification's own test data (schema-tests.txt)."""
    for schema, rabin in [("null", 7195948357588979594), ("int", 8247732601305521295)]:
        unsigned = int.from_bytes(
            bytes.fromhex(fingerprint(schema, "CRC-64-AVRO")), "little", signed=True
        )
        assert unsigned == rabin
    assert canonical_form({"type": "string", "doc": "x"}) == '"string"'


def test_a_file_without_an_id_is_found(copied: Path) -> None:
    assert FileRegistry(copied).files_without_id() == ()
    stray = copied / "events" / "avro" / "TimerFired.v2.avsc"
    stray.write_text("{}")
    assert FileRegistry(copied).files_without_id() == ("events/avro/TimerFired.v2.avsc",)


A: Schema = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "string"}]}


def with_field(schema: Schema, **field: Any) -> Schema:
    return {**schema, "fields": [*schema["fields"], field]}


def test_versions_are_compared_each_with_each_in_both_directions() -> None:
    two = with_field(A, name="b", type=["null", "string"], default=None)
    three = with_field(two, name="c", type="long", default=0)
    assert incompatibilities({1: A, 2: two, 3: three}) == ()
    assert incompatibilities({}) == incompatibilities({1: A}) == ()
    bare = with_field(two, name="c", type="long")
    found = incompatibilities({3: bare, 1: A, 2: two})
    assert [(one.reader, one.writer) for one in found] == [(3, 1), (3, 2)]
    assert all("reader_field_missing_default_value: c" in one.reason for one in found)
    other: Schema = {**A, "fields": [{"name": "a", "type": "long"}]}
    found = incompatibilities({1: A, 2: other})
    assert [(one.reader, one.writer) for one in found] == [(2, 1), (1, 2)]
    assert all("type_mismatch" in one.reason for one in found)


BROKEN_LISTS = [
    "",
    "[]",
    '{"a": {"1": 7}}',
    '{"a": {"x": {"id": 1, "fingerprint": ""}}}',
    '{"a": {"1": {"id": 7, "fingerprint": ""}}, "b": {"1": {"id": 7, "fingerprint": ""}}}',
]


@pytest.mark.parametrize("text", BROKEN_LISTS)
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
