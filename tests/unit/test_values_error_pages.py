"""The pages of R101 to R207 show exactly what a person sees."""

from pathlib import Path

import pytest

from refold_schemas.errors import (
    BadRunId,
    HeaderUnreadable,
    RefoldError,
    RegistryUnreadable,
    SchemaChanged,
    SchemaMismatch,
    UndecodableRecord,
    UnknownSchemaId,
    UnknownSchemaName,
    ValueRefused,
    ValueUnreadable,
)

PAGES = Path(__file__).resolve().parents[2] / "docs" / "errors"
EXAMPLES: list[RefoldError] = [
    ValueRefused(
        "result.lines[0].at",
        "datetime",
        "it is naive: what time it means depends on the machine; give it a zone",
    ),
    ValueUnreadable("shop:Order", "no model or dataclass 'shop:Order' is imported here"),
    BadRunId("order\n48211", "character 6 is U+000A"),
    SchemaMismatch("StepIntended", "attempt", "float, not int"),
    UndecodableRecord(
        "StepCompleted.result.body: a length says 9000 bytes, 12 are left", schema_id=1006
    ).at("refunds.events", 3, 4711),
    UnknownSchemaId("this version of refold knows no schema of that id", schema_id=1044).at(
        "refunds.events", 3, 4711
    ),
    HeaderUnreadable("it has 12 bytes, not 50"),
    RegistryUnreadable("…/registry/ids.json: id 1007 is given twice"),
    UnknownSchemaName("refold.events.TimerFired", 2),
    SchemaChanged("refold.events.TimerFired", 1, schema_id=1014, pinned="1a" * 32, found="2b" * 32),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_the_page_of_a_code_shows_its_message(error: RefoldError) -> None:
    page = (PAGES / f"{error.code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {error.code}: {type(error).__name__}\n")
    assert str(error) in page
    for heading in ("What happened", "What was kept", "What to do next", "Example"):
        assert f"\n## {heading}\n" in page
    assert error.message
    assert error.kept
    assert error.next
