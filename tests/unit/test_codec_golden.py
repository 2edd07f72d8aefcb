"""Bytes that were written once are read and written alike for ever."""

import json
from pathlib import Path
from typing import Any

import pytest

from refold_schemas.codec import Codec
from refold_schemas.registry import FileRegistry
from support.messages import MESSAGE_CLASSES, plain

FOLDER = Path(__file__).resolve().parent.parent / "golden"
FILES = sorted(FOLDER.glob("*.v*.json"))
REGISTRY = FileRegistry()
CODEC = Codec(REGISTRY)


def cases(path: Path) -> list[dict[str, Any]]:
    golden = json.loads(path.read_text(encoding="utf-8"))
    return [golden, golden["bare"]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_golden_bytes_are_read_as_they_were_meant(path: Path) -> None:
    for case in cases(path):
        data = bytes.fromhex(case["hex"])
        message = CODEC.decode(data)
        schema_id = int.from_bytes(data[1:5], "big")
        name, version = REGISTRY.name_version(schema_id)
        if REGISTRY.id_of(name) != schema_id:
            continue  # an older version: upcast tests say what it must become
        assert plain(message) == case["fields"], f"{name} version {version} is released: add one"
        assert CODEC.encode(message) == data, f"{name} version {version} is released: add one"


def test_every_released_schema_has_golden_bytes() -> None:
    ids = {json.loads(path.read_text(encoding="utf-8"))["schema_id"] for path in FILES}
    assert ids == set(REGISTRY.all_ids())
    assert len(FILES) >= len(MESSAGE_CLASSES)
