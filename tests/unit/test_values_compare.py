"""A fresh value and the recorded one: no difference where they are equal today, else the place."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from refold_schemas.errors import ValueRefused
from refold_schemas.values import (
    DIGEST_ENCODING,
    Ref,
    Value,
    canon_of,
    digest_value,
    encode_value,
    values_differ,
)
from refold_schemas.values.compare import SHOWN_MAX, shown
from support.shop import Basket, Colour, Line, Order
from support.storable import STORABLE

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@given(STORABLE)
def test_a_value_does_not_differ_from_itself(obj: object) -> None:
    value = encode_value(obj)
    assert values_differ(value, obj, None) is None
    assert values_differ(digest_value(value), obj, None) is None


@pytest.mark.parametrize(
    ("recorded", "fresh", "text"),
    [
        (4160, 4610, "4160 → 4610"),
        ("a", "b", "'a' → 'b'"),
        ({"lines": [{"price": 1}]}, {"lines": [{"price": 2}]}, ".lines[0].price 1 → 2"),
        ({"the price": 1}, {"the price": 2}, '["the price"] 1 → 2'),
        ([1, 2], [1], "[1] 2 → nothing"),
        ([1], [1, 2], "[1] nothing → 2"),
        ({"a": 1}, {}, ".a 1 → nothing"),
        ({}, {"a": 1}, ".a nothing → 1"),
        ({1: 2}, {1: 3}, "[1] 2 → 3"),
        (1, 1.0, "1 → 1.0"),
        (1, True, "1 → True"),
        ([1], (1,), "[1] → (1,)"),
        ({1}, {2}, "{1} → {2}"),
        (Order(id="a", pence=1), Order(id="a", pence=2), ".pence 1 → 2"),
        (Basket([Line("a", 1)]), Basket([Line("b", 1)]), ".lines[0].article 'a' → 'b'"),
        (Colour.RED, Colour.BLUE, "<Colour.RED: 'red'> → <Colour.BLUE: ('blue', 2)>"),
        ("x" * 200, "y", f"'{'x' * (SHOWN_MAX - 2)}… → 'y'"),
        ("a\nb\x1b", "", r"'a\nb\x1b' → ''"),
    ],
)
def test_the_first_difference_is_said_with_its_path(
    recorded: object, fresh: object, text: str
) -> None:
    assert values_differ(encode_value(recorded), fresh, None) == text


@pytest.mark.parametrize(
    ("recorded", "fresh", "annotation"),
    [
        (4160, Decimal(4160), Decimal),
        ("2026-01-02T12:00:00Z", NOON, datetime),
        (NOON, NOON.astimezone(timezone(timedelta(hours=9))), None),
        (Decimal("1.1"), Decimal("1.10"), None),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, None),
        ({"id": "a", "pence": 1}, Order(id="a", pence=1), Order),
        (5, 5.0, float),
        (0.0, -0.0, None),
    ],
)
def test_what_is_equal_in_todays_type_is_no_difference(
    recorded: object, fresh: object, annotation: Any
) -> None:
    assert values_differ(encode_value(recorded), fresh, annotation) is None


def test_a_field_that_the_class_gained_is_no_difference() -> None:
    older = Value("support.shop:Order", 1, "j1", None, b'{"id":"a","pence":1}', None)
    assert values_differ(older, Order(id="a", pence=1), Order) is None
    assert values_differ(older, Order(id="a", pence=1, note="x"), Order) == ".note None → 'x'"


def test_a_wrong_annotation_does_not_hide_equality_nor_difference() -> None:
    assert values_differ(encode_value("a"), "a", int) is not None
    assert values_differ(encode_value(1), "a", int) == "1 → 'a'"
    assert values_differ(encode_value(1), 1, str) is not None


def test_a_recorded_value_that_todays_type_does_not_take_is_a_difference() -> None:
    difference = values_differ(encode_value({"id": "a"}), Order(id="a", pence=1), Order)
    assert difference is not None
    assert "pence" in difference


def test_a_fresh_value_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ValueRefused, match="argument"):
        values_differ(encode_value(1), object(), None)


def test_digests_compare_by_value_not_by_the_order_of_keys() -> None:
    recorded = digest_value(encode_value({"b": [1] * 10_000, "a": 2}))
    assert recorded.body is None
    assert recorded.encoding == DIGEST_ENCODING
    assert recorded.ref is not None
    assert len(recorded.ref.digest) == 32
    assert recorded.ref.size == len(encode_value({"b": [1] * 10_000, "a": 2}).body or b"")
    assert values_differ(recorded, {"a": 2, "b": [1] * 10_000}, None) is None
    difference = values_differ(recorded, {"a": 3, "b": [1] * 10_000}, None)
    assert difference is not None
    assert recorded.ref.digest.hex()[:12] in difference
    assert digest_value(recorded) == recorded


def test_a_value_kept_elsewhere_is_not_said_to_be_equal() -> None:
    elsewhere = Value("", 1, "j1", None, None, Ref(bytes(32), 5))
    assert values_differ(elsewhere, 1, None) is not None


def test_a_digest_is_that_of_the_canonical_form() -> None:
    import hashlib

    value = encode_value({"b": 1, "a": (2,)})
    ref = digest_value(value).ref
    assert ref is not None
    assert ref.digest == hashlib.sha256(canon_of(value)).digest()


def test_what_cannot_be_printed_is_shown_by_its_type() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "Broken" in shown(Broken())
    assert shown(10**5000) == "<int>"
