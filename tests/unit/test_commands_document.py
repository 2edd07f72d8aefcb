"""The contract for foreign producers says what the schemas and the engine say."""

import json
import re
from io import StringIO
from pathlib import Path

import fastavro
import pytest

from refold_schemas.codec.classes import COMMAND_CLASSES, COMMAND_NAMESPACE
from refold_schemas.events import CommandRejected
from refold_schemas.registry import FileRegistry

DOCUMENT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
REGISTRY = FileRegistry()


@pytest.mark.parametrize("cls", COMMAND_CLASSES, ids=lambda cls: str(cls.__name__))
def test_every_command_is_described_with_its_id_and_its_fields(cls: type) -> None:
    schema_id = REGISTRY.id_of(f"{COMMAND_NAMESPACE}.{cls.__name__}")
    (row,) = re.findall(rf"^\| `{cls.__name__}` \| {schema_id} \| (.*) \|$", DOCUMENT, re.MULTILINE)
    common = {"command_id", "run_id", "by"}
    fields = {field["name"] for field in REGISTRY.schema(schema_id)["fields"]}
    assert {name for name in fields - common if f"`{name}`" not in row} == set()


def test_the_examples_are_commands() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    texts = re.split(r"\n(?=\{)", block.strip())
    assert len(texts) == len(COMMAND_CLASSES)
    for cls, text in zip(COMMAND_CLASSES, texts, strict=True):
        schema = REGISTRY.schema(REGISTRY.id_of(f"{COMMAND_NAMESPACE}.{cls.__name__}"))
        line = json.dumps(json.loads(text))
        (record,) = fastavro.json_reader(StringIO(line), fastavro.parse_schema(schema))
        assert isinstance(record, dict)
        assert record["run_id"] == "order-48211"


def test_every_reason_of_a_rejection_has_its_line_in_the_table() -> None:
    said = " ".join((CommandRejected.__doc__ or "").split())
    reasons = re.findall(r"\w+", said.partition("is one of:")[2].partition(". `raw`")[0])
    assert len(reasons) > 10
    table = DOCUMENT.partition("## Bad input")[2].partition("## Where")[0]
    assert [reason for reason in reasons if f"`{reason}`" not in table] == []
