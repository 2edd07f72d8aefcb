"""The published test vectors of docs/values.md hold: canon, effect keys and fingerprints."""

import re
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from refold_schemas.values import (
    REFOLD,
    Policy,
    Ref,
    canon,
    canon_of,
    effect_key,
    encode_value,
    fingerprint,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "values.md"
NAMES: dict[str, Any] = {
    "Decimal": Decimal, "Policy": Policy, "Ref": Ref, "UUID": uuid.UUID, "ZoneInfo": ZoneInfo,
    "date": date, "datetime": datetime, "time": time, "timedelta": timedelta, "timezone": timezone,
}  # fmt: skip


def table(heading: str) -> list[tuple[str, str]]:
    """The rows of the table whose first column has this heading."""
    text = DOCUMENT.read_text(encoding="utf-8")
    body = text.split(f"\n| {heading} | ", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `(.*)` \| `(.*)` \|$", body, re.MULTILINE)


def evaluated(text: str) -> Any:
    return eval(text, dict(NAMES))  # the document writes its inputs in Python


@pytest.mark.parametrize(("text", "wanted"), table("value"))
def test_the_canonical_form_is_the_published_one(text: str, wanted: str) -> None:
    value = evaluated(text)
    assert canon(value).decode() == wanted
    assert canon_of(encode_value(value)).decode() == wanted


@pytest.mark.parametrize(("text", "wanted"), table("arguments of effect_key"))
def test_the_effect_key_is_the_published_one_and_a_uuid5_of_an_array(
    text: str, wanted: str
) -> None:
    arguments = evaluated(f"({text},)")
    assert effect_key(*arguments) == wanted
    assert wanted == str(uuid.uuid5(REFOLD, canon([1, *arguments]).decode()))


@pytest.mark.parametrize(("text", "wanted"), table("nonce (hex), name, arguments"))
def test_the_fingerprint_is_the_published_one(text: str, wanted: str) -> None:
    nonce, name, arguments = evaluated(f"({text},)")
    assert fingerprint(bytes.fromhex(nonce), name, arguments).hex() == wanted


def test_the_document_has_vectors_of_each_sort() -> None:
    assert len(table("value")) >= 45
    assert len(table("arguments of effect_key")) >= 7
    assert len(table("nonce (hex), name, arguments")) >= 5
    assert uuid.uuid5(uuid.NAMESPACE_DNS, "refold") == REFOLD
