"""Models, dataclasses and enums come back as themselves, or are refused with the field's path."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, SecretBytes, SecretStr

from refold_schemas.errors import ValueRefused, ValueUnreadable
from refold_schemas.values import Value, canon, canon_of, decode_value, encode_value
from support import shop
from support.shop import (
    Account,
    Aliased,
    Anything,
    Basket,
    Colour,
    Counting,
    Hiding,
    Holding,
    Level,
    Line,
    Loose,
    Numbers,
    Open,
    Order,
    Padding,
    Page,
    Rights,
    Seeded,
    Strict,
    Unequal,
    Word,
)
from support.storable import same

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "obj",
    [
        Line("a", 1, Colour.BLUE),
        Basket([Line("a", 1), Line("b", 2)], {"a": Line("a", 1)}),
        Order(id="a", pence=1, lines=[Line("a", 1)]),
        Order.model_validate_json('{"id": "a", "pence": 1, "at": "2026-01-02T12:00:00Z"}'),
        Order.model_validate_json('{"id": "a", "pence": 1, "at": "2026-01-02T12:00:00+05:30"}'),
        Open.model_validate({"id": 1, "$set": [1], "more": (1, 2)}),
        Open.model_validate({"id": 1}),
        Numbers([1, 2]),
        Aliased.model_validate({"orderId": "a", "sum": 3}),
        Hiding(shown=1, excluded=7),
        Strict(pair=(1, "a"), at=NOON),
        Loose(price=5, extra={1: (Order(id="a", pence=1), {Colour.RED})}),
        Anything(held=[Line("a", 1), Numbers([3])]),
        Anything(held=Decimal("1.10")),
        Unequal(1, 2),
        Colour.RED, Colour.CRIMSON, Colour.BLUE, Level.HIGH, Word.YES, Rights.READ,
        Rights.READ | Rights.WRITE, Rights(0),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize(
    "within", [lambda obj: obj, lambda obj: {"k": [(obj,)]}], ids=["", "inner"]
)
def test_a_typed_value_comes_back_as_itself(obj: object, within: Any) -> None:
    whole = within(obj)
    value = encode_value(whole)
    assert same(decode_value(value), whole)
    assert canon_of(value) == canon(whole)


def test_the_type_stands_beside_the_body_and_the_body_is_readable_json() -> None:
    value = encode_value(Line("a", 1))
    assert value.type == "support.shop:Line"
    assert json.loads(value.body or b"") == {
        "article": "a", "pence": 1, "colour": {"$enum": ["support.shop:Colour", "RED"]},
    }  # fmt: skip


def test_private_attributes_come_back_and_fields_never_set_stay_unset() -> None:
    """What exclude_unset shows after a replay is what it showed before."""
    hiding = Hiding(shown=1)
    hiding._private.append(5)
    assert hiding.slow == 2
    back = decode_value(encode_value(hiding))
    assert isinstance(back, Hiding)
    assert back == hiding
    assert back._private == [5]
    assert back.model_dump(exclude_unset=True) == {"shown": 1, "doubled": 2}
    order = decode_value(encode_value(Order(id="a", pence=1)))
    assert isinstance(order, Order)
    assert order.model_fields_set == {"id", "pence"}


def test_excluded_and_computed_fields_are_not_lost() -> None:
    back = decode_value(encode_value(Hiding(shown=1, excluded=7)))
    assert isinstance(back, Hiding)
    assert (back.excluded, back.doubled) == (7, 2)


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (Account(name="a", password=SecretStr("hunter2")), "result.password"),
        ([{"in": Anything(held=SecretStr("hunter2"))}], "result[0].in.held"),
        ({"x": SecretBytes(b"hunter2")}, "result.x"),
    ],
)
def test_a_secret_is_refused_by_name_and_never_shown(obj: object, path: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        encode_value(obj)
    assert caught.value.path == path
    assert "secret" in caught.value.reason
    assert "hunter2" not in str(caught.value)
    chained: BaseException | None = caught.value
    while chained is not None:
        assert "hunter2" not in repr(chained)
        chained = chained.__cause__ or chained.__context__


def _changed_after_validation() -> Order:
    order = Order(id="a", pence=1)
    order.pence = "hunter2"  # type: ignore[assignment]
    return order


def _never_set() -> Order:
    return Order.model_construct(id="a")


def _attribute_beside() -> Line:
    line = Loose(1.0)
    line.hidden = 5  # type: ignore[attr-defined]
    return line  # type: ignore[return-value]


def _private_client() -> Holding:
    holding = Holding()
    holding._client = object()
    return holding


@pytest.mark.parametrize(
    ("make", "path", "reason"),
    [
        (lambda: Padding(text="a"), "result.text", "changed"),
        (lambda: [Counting(1)], "result[0].made", "changed"),
        (lambda: Seeded(5), "result", "seed"),
        (lambda: Anything(held=object()), "result.held", "no way"),
        (lambda: Anything(held=[Line("a", 1), {2: 1j}]), "result.held[1][2]", "no way"),
        (_changed_after_validation, "result", "pence"),
        (_never_set, "result", "pence was never set"),
        (_attribute_beside, "result.hidden", "not the same"),
        (_private_client, "result._client", "no way"),
        (lambda: Page[bytes](items=[b"1"]), "result", "top of a module"),
    ],
)
def test_a_model_that_would_come_back_another_is_refused(make: Any, path: str, reason: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        encode_value(make())
    assert caught.value.path == path
    assert reason in caught.value.reason
    assert "hunter2" not in str(caught.value)


def test_a_class_inside_a_function_is_refused_since_nobody_could_find_it_again() -> None:
    class Local(BaseModel):
        id: int

    class Inner(Enum):
        A = 1

    for obj in (Local(id=1), Inner.A):
        with pytest.raises(ValueRefused, match="top of a module"):
            encode_value([obj])
        assert canon([obj])  # its arguments can still be compared


def test_a_class_that_was_replaced_under_its_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line("a", 1)
    monkeypatch.setattr(shop, "Line", Order)
    with pytest.raises(ValueRefused, match="is not what"):
        encode_value(line)


def test_a_model_that_gained_a_field_still_reads_older_values() -> None:
    older = Value("support.shop:Order", 1, "j1", None, b'{"id":"a","pence":1}', None)
    assert decode_value(older) == Order(id="a", pence=1)
    older = Value("support.shop:Line", 1, "j1", None, b'{"article":"a","pence":1}', None)
    assert decode_value(older) == Line("a", 1)


def test_a_class_that_is_gone_or_lost_a_field_is_unreadable_with_its_name() -> None:
    for type_id, body in [
        ("support.shop:Gone", b"{}"),
        ("support.shop:Line", b'{"article":"a","pence":1,"was":2}'),
        ("support.shop:Line", b'{"article":"a"}'),
    ]:
        with pytest.raises(ValueUnreadable) as caught:
            decode_value(Value(type_id, 1, "j1", None, body, None))
        assert type_id in str(caught.value)


def test_an_aliased_model_is_stored_by_field_name() -> None:
    value = encode_value(Aliased.model_validate({"orderId": "a", "sum": 3}))
    assert json.loads(value.body or b"") == {"order_id": "a", "total": 3}


def test_moving_a_class_to_another_module_changes_no_canonical_byte() -> None:
    moved = Value("elsewhere:Line", 1, "j1", None, encode_value(Line("a", 1)).body, None)
    assert canon_of(moved) == canon(Line("a", 1))
