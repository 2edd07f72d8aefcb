"""A stored value, or plain JSON from any client, is read into the type that today's code wants."""

import inspect
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from threading import Thread
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from refold_schemas.errors import ValueUnreadable
from refold_schemas.values import Ref, Value, decode_value_as, encode_value
from support.shop import Basket, Colour, Line, Loose, Numbers, Open, Order, Page, Rights
from support.storable import same


class Today(BaseModel):
    """What `support.shop:Order` has become under another name, with other types."""

    id: str
    pence: Decimal
    currency: str = "GBP"


@dataclass
class LineToday:
    article: str
    pence: Decimal
    count: int = 1


class Typed(TypedDict):
    id: str
    at: datetime


def plain(body: bytes) -> Value:
    return Value("", 1, "j1", None, body, None)


@pytest.mark.parametrize("annotation", [None, Any, object, inspect.Parameter.empty])
def test_without_an_annotation_the_value_is_what_was_stored(annotation: object) -> None:
    obj = [Order(id="a", pence=1), (1, 2), {1: Decimal("1.0")}]
    assert same(decode_value_as(encode_value(obj), annotation), obj)


@pytest.mark.parametrize(
    ("obj", "annotation"),
    [
        (Order(id="a", pence=1), Order),
        (Order(id="a", pence=1), Order | None),
        (None, Order | None),
        ([Order(id="a", pence=1, at=datetime(2026, 1, 2, tzinfo=UTC))], list[Order]),
        (Line("a", 1, Colour.BLUE), Line),
        (Basket([Line("a", 1)], {"a": Line("a", 1)}), Basket),
        (Loose(price=1.5, extra=[Order(id="a", pence=1)]), Loose),
        ({"a": (1, "b")}, dict[str, tuple[int, str]]),
        (Numbers([1]), Numbers),
        (Open.model_validate({"id": 1, "more": 2}), Open),
        (Colour.RED, Colour),
        (Rights.READ, Rights),
        ({UUID(int=1): timedelta(1)}, dict[UUID, timedelta]),
        ({Colour.RED}, set[Colour]),
        (Decimal("1.10"), Decimal),
        (b"\x00\xff", bytes),
        (5, int),
        ("a", str),
        ([1], list),
        ({"id": "a", "at": datetime(2026, 1, 2, tzinfo=UTC)}, Typed),
    ],
    ids=repr,
)
def test_what_already_fits_comes_back_as_itself(obj: object, annotation: object) -> None:
    assert same(decode_value_as(encode_value(obj), annotation), obj)


@pytest.mark.parametrize(
    ("body", "annotation", "wanted"),
    [
        (b'{"id":"a","pence":1}', Order, Order(id="a", pence=1)),
        (b'{"article":"a","pence":1,"colour":"red"}', Line, Line("a", 1)),
        (b'{"lines":[{"article":"a","pence":1}]}', Basket, Basket([Line("a", 1)])),
        (b'"red"', Colour, Colour.RED),
        (b'"2026-01-02"', date, date(2026, 1, 2)),
        (b'"2026-01-02T00:00:00Z"', datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (b'"1.10"', Decimal, Decimal("1.10")),
        (b"[1,2]", tuple[int, ...], (1, 2)),
        (b"[1,2]", set[int], {1, 2}),
        (b"5", float, 5.0),
        (b'{"1":2}', dict[int, int], {1: 2}),
        (b'{"items":[1]}', Page[int], Page[int](items=[1])),
        (b'{"$decimal":"1.10"}', Decimal | None, Decimal("1.10")),
        (b'"a"', Literal["a", "b"], "a"),
        (b"3", Annotated[int, Field(gt=2)], 3),
    ],
)
def test_plain_json_is_read_into_the_type(body: bytes, annotation: object, wanted: object) -> None:
    assert decode_value_as(plain(body), annotation) == wanted


def test_a_record_whose_class_is_renamed_is_read_into_the_annotated_one() -> None:
    stored = encode_value(Order(id="a", pence=4160))
    assert decode_value_as(stored, Today) == Today(id="a", pence=Decimal(4160))
    gone = Value("support.gone:Order", 1, "j1", None, stored.body, None)
    assert decode_value_as(gone, Today) == Today(id="a", pence=Decimal(4160))
    assert decode_value_as(gone, list[Today] | Today) == Today(id="a", pence=Decimal(4160))
    line = encode_value([Line("a", 1)])
    assert decode_value_as(line, list[LineToday]) == [LineToday("a", Decimal(1))]


def test_a_dataclass_whose_field_changed_its_type_is_read_into_todays_type() -> None:
    stored = Value("support.shop:Line", 1, "j1", None, b'{"article":"a","pence":"7"}', None)
    back = decode_value_as(stored, Line)
    assert isinstance(back, Line)
    assert same(back.pence, 7)
    more = Value("support.shop:Line", 1, "j1", None, b'{"article":"a","pence":1,"was":2}', None)
    assert decode_value_as(more, Line) == Line("a", 1)


@pytest.mark.parametrize(
    ("body", "annotation", "reason"),
    [
        (b'{"id":"a"}', Order, "pence"),
        (b'{"id":"a","pence":"many"}', Order, "pence"),
        (b'"x"', int, "int"),
        (b'"green"', Colour, "Colour"),
        (b"{", Order, "JSON"),
        (b"[" * 600 + b"]" * 600, list[Any], "JSON"),
        (b"[" * 5000 + b"]" * 5000, list[Any], "JSON"),
        (b"2", Annotated[int, Field(gt=2)], "greater than 2"),
        (b"1", Ref, "Ref"),
    ],
)
def test_what_does_not_fit_says_where_without_showing_the_input(
    body: bytes, annotation: object, reason: str
) -> None:
    with pytest.raises(ValueUnreadable, match=reason) as caught:
        decode_value_as(plain(body), annotation)
    assert "many" not in str(caught.value)


@dataclass
class Foreign:
    """pydantic makes no schema for it: one of its fields is of a class that it does not know."""

    size: int
    thread: Thread | None = None


def test_what_pydantic_has_no_schema_for_is_read_as_it_was_stored() -> None:
    assert decode_value_as(encode_value(Foreign(1)), Foreign) == Foreign(1)
    assert decode_value_as(encode_value([Foreign(1)]), list[Foreign]) == [Foreign(1)]
    assert decode_value_as(encode_value({"a": Foreign(1)}), dict[str, Any]) == {"a": Foreign(1)}
    with pytest.raises(ValueUnreadable, match="it is no Foreign"):
        decode_value_as(plain(b"1"), Foreign)


def test_an_annotation_that_cannot_be_hashed_is_read_all_the_same() -> None:
    unhashable = Annotated[int, {"unit": "pence"}]
    with pytest.raises(TypeError):
        hash(unhashable)
    assert decode_value_as(plain(b"4160"), unhashable) == 4160


def test_an_enum_without_its_class_is_unreadable() -> None:
    stored = Value("support.gone:Colour", 1, "j1", None, b'{"$enum":["","RED"]}', None)

    class Local(Enum):
        RED = 1

    with pytest.raises(ValueUnreadable, match=r"support\.gone:Colour"):
        decode_value_as(stored, Local)
