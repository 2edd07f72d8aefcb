"""Canonical form: equal values have equal bytes, different values or kinds never do."""

import json
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_schemas.errors import ValueRefused, ValueUnreadable
from refold_schemas.values import (
    Fingerprints,
    Value,
    canon,
    canon_of,
    decode_value,
    effect_key,
    encode_value,
    fingerprint,
    is_scalar,
)
from support.shop import Colour, Hiding, Level, Line, Open, Order
from support.storable import PLAIN, STORABLE, same


def shuffled(obj: Any, chance: random.Random) -> Any:
    """An equal value whose dicts are in another order."""
    if type(obj) is dict:
        items = [(key, shuffled(item, chance)) for key, item in obj.items()]
        chance.shuffle(items)
        return dict(items)
    if type(obj) in (list, tuple):
        return type(obj)(shuffled(item, chance) for item in obj)
    return obj


@given(STORABLE)
def test_the_stored_form_has_the_same_canonical_bytes_without_its_classes(obj: object) -> None:
    value = encode_value(obj)
    assert canon_of(value) == canon(obj)
    assert canon(decode_value(value)) == canon(obj)


@given(STORABLE, st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(obj: object, chance: random.Random) -> None:
    other = shuffled(obj, chance)
    assert canon(other) == canon(obj)
    assert canon_of(encode_value(other)) == canon(obj)


NEAR: list[Any] = [
    None, False, True, 0, 1, 0.0, -0.0, 1.0, Decimal(0), Decimal("0.0"), "", "0", "null", b"", b"0",
    (), [], {}, set(), frozenset(), {"$": {}}, {"$tuple": []}, {"$set": []}, {"$int": "0"}, [None],
    {"": None}, timedelta(0), date(1970, 1, 1), time(0), UUID(int=0), Level.LOW, Colour.RED,
    datetime(1970, 1, 1, tzinfo=UTC), Line("", 0), 2**63, {0: 0}, {"0": 0}, {False: 0}, {(): 0},
]  # fmt: skip


def test_values_that_are_nearly_alike_have_different_bytes_wherever_they_stand() -> None:
    wraps: list[Any] = [
        lambda x: x, lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: {"$a": x},
        lambda x: {1: x}, lambda x: [x, x], lambda x: [[x]], lambda x: {"$": {"a": x}},
    ]  # fmt: skip
    values = [wrap(near) for wrap in wraps for near in NEAR]
    distinct = {repr(value): value for value in values}
    assert len(distinct) > 300
    assert len({canon(value) for value in distinct.values()}) == len(distinct)


@given(PLAIN, PLAIN)
def test_plain_values_with_equal_bytes_are_the_same_up_to_order(one: Any, other: Any) -> None:
    assert (canon(one) == canon(other)) == same(_sorted(one), _sorted(other))


def _sorted(obj: Any) -> Any:
    if isinstance(obj, dict):
        return {key: _sorted(obj[key]) for key in sorted(obj)}
    return [_sorted(item) for item in obj] if isinstance(obj, list) else obj


@given(STORABLE)
def test_canonical_bytes_are_json_without_spaces_in_sorted_order(obj: object) -> None:
    text = canon(obj).decode()
    again = json.dumps(
        json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    assert again == text


def test_canonical_form_writes_defaults_out_and_forgets_what_was_never_set() -> None:
    assert canon(Order(id="a", pence=1)) == canon(Order(id="a", pence=1, note=None, lines=[]))
    assert canon(Line("a", 1)) != canon(Order(id="a", pence=1))
    assert canon(Open.model_validate({"id": 1, "x": 2})) != canon(Open.model_validate({"id": 1}))


def test_private_attributes_are_part_of_a_value() -> None:
    one, other = Hiding(shown=1), Hiding(shown=1)
    other._private.append(2)
    assert one != other
    assert canon(one) != canon(other)


@pytest.mark.parametrize(
    "body",
    [b"{", b"NaN", b"1e999", b'"\\ud800"', b'{"$set":' * 600 + b"1" + b"}" * 600, b"[" * 100_000],
)
def test_a_body_without_canonical_form_is_unreadable(body: bytes) -> None:
    with pytest.raises(ValueUnreadable):
        canon_of(Value("", 1, "j1", None, body, None))


@given(st.binary(max_size=40))
def test_any_body_has_a_canonical_form_or_is_unreadable(body: bytes) -> None:
    try:
        canon_of(Value("", 1, "j1", None, body, None))
    except ValueUnreadable:
        return


@pytest.mark.parametrize("tag", ["$record", "$enum", "$flag", "$map", "$set", "$", "$int", "$new"])
@pytest.mark.parametrize(
    "parts", ["1", "[]", "{}", "[[]]", '["a"]', "[1,2,3,4]", '["a:B",1,{"private":2}]']
)
def test_a_tag_with_foreign_parts_has_some_canonical_form(tag: str, parts: str) -> None:
    """`canon_of` compares bytes that newer versions may have written: it refuses no shape."""
    value = Value("", 1, "j1", None, f'{{"{tag}":{parts}}}'.encode(), None)
    assert isinstance(json.loads(canon_of(value)), dict)


def test_no_two_inputs_of_an_effect_key_share_an_encoding() -> None:
    keys = {
        effect_key("ns", "r", 0, "a#1", 0, "a", {}),
        effect_key("n", "sr", 0, "a#1", 0, "a", {}),
        effect_key("ns", "r", 1, "a#1", 0, "a", {}),
        effect_key("ns", "r", 0, "a#1", 1, "a", {}),
        effect_key("ns", "r", 0, "a#2", 0, "a", {}),
        effect_key("ns", "r", 0, "a#1", 0, "b", {}),
        effect_key("ns", "r", 0, "a#1", 0, "a", {"x": 1}),
        effect_key("ns", "r", 0, "a#1", 0, "a", {"x": 1.0}),
        effect_key("ns", "r", 0, "a#1", 0, "a", {"x": "1"}),
        effect_key("ns", "r", 0, "a#1", 0, "a", {"x": True}),
    }
    assert len(keys) == 10


def test_a_fingerprint_depends_on_nonce_name_and_every_argument() -> None:
    prints = {
        fingerprint(bytes(32), "a", {"x": 1}),
        fingerprint(bytes(31) + b"\1", "a", {"x": 1}),
        fingerprint(bytes(32), "b", {"x": 1}),
        fingerprint(bytes(32), "a", {"x": 2}),
        fingerprint(bytes(32), "a", {"y": 1}),
        fingerprint(bytes(32), "a", {}),
    }
    assert len(prints) == 6
    assert all(len(one) == 32 for one in prints)
    swapped = fingerprint(bytes(32), "a", {"y": 2, "x": 1})
    assert fingerprint(bytes(32), "a", {"x": 1, "y": 2}) == swapped


def test_an_argument_that_cannot_be_stored_is_refused_with_its_name() -> None:
    with pytest.raises(ValueRefused) as caught:
        effect_key("ns", "r", 0, "a#1", 0, "a", {"order": {"at": object()}})
    assert caught.value.path.endswith(".order.at")


NAMES = st.text(min_size=1).filter(str.isidentifier) | st.sampled_from(["index", "run", "größe"])


@given(
    st.text(min_size=1),
    st.dictionaries(NAMES, PLAIN | st.integers() | st.text(), max_size=4),
)
def test_a_fingerprint_of_stored_arguments_is_that_of_the_arguments(
    name: str, arguments: dict[str, object]
) -> None:
    stored = [encode_value(value) for value in arguments.values()]
    bodies = [v.body for v in stored if v.body is not None and is_scalar(v.body, v.type)]
    made = Fingerprints(bytes(32))
    scalars = bodies if len(bodies) == len(stored) else None
    assert made.of(name, arguments, scalars) == fingerprint(bytes(32), name, arguments)
    assert made.of(name, arguments) == fingerprint(bytes(32), name, arguments)


@pytest.mark.parametrize("size", [0, 1, 32, 63, 64, 65, 200])
def test_fingerprints_are_hmac_whatever_the_size_of_the_nonce(size: int) -> None:
    nonce = bytes(range(size))
    assert Fingerprints(nonce).of("charge", {"pence": 1}) == fingerprint(
        nonce, "charge", {"pence": 1}
    )
