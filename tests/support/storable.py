"""Random values that can be stored, and a comparison that is stricter than equality."""

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from support.shop import Basket, Colour, Level, Line, Loose, Open, Order, Rights

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TAGS = st.sampled_from(["$", "$int", "$set", "$record", "$map", "$unknown", "$ref"])
KEYS = TEXT | TAGS
OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
ZONES = st.sampled_from([ZoneInfo("Europe/London"), ZoneInfo("Asia/Tokyo"), ZoneInfo("UTC")])


def _meaning(moment: datetime) -> datetime:
    """Drop a fold that says nothing: of a fixed offset, or of an hour that happens once."""
    offsets = {moment.replace(fold=fold).utcoffset() for fold in (0, 1)}
    return moment if len(offsets) == 2 else moment.replace(fold=0)


DATETIMES = st.datetimes(timezones=OFFSETS).map(_meaning) | st.datetimes(
    min_value=datetime(1960, 1, 1),  # noqa: DTZ001 hypothesis adds the zone
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=ZONES,
    allow_imaginary=True,
).map(_meaning)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [Decimal("-0"), Decimal("1.10"), Decimal("1E+9999"), Decimal("1.1")]
)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.binary(max_size=20),
    DECIMALS,
    DATETIMES,
    st.dates(),
    (st.times() | st.times(timezones=OFFSETS)).map(lambda at: at.replace(fold=0)),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([*Colour, *Level, Rights.READ, Rights.READ | Rights.WRITE]),
)
HASHABLE: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
LINES = st.builds(Line, TEXT, st.integers(), st.sampled_from(Colour))
RECORDS: st.SearchStrategy[Any] = st.one_of(
    LINES,
    st.builds(Basket, st.lists(LINES, max_size=3), st.dictionaries(TEXT, LINES, max_size=2)),
    st.builds(
        Order,
        id=TEXT,
        pence=st.integers(),
        at=st.none() | DATETIMES,
        lines=st.lists(LINES, max_size=2),
    ),
    st.builds(Order, id=TEXT, pence=st.integers()),
    st.builds(lambda id, extra: Open(id=id, **extra), st.integers(), st.dictionaries(TAGS, LEAVES)),
)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
STORABLE: st.SearchStrategy[Any] = st.recursive(
    LEAVES | RECORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
        st.builds(Loose, st.integers(), inner),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal and of the same kind, all through; the order of dicts, signs of zero, zones."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Enum):
        return one is other
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, datetime):
        same_zone = getattr(one.tzinfo, "key", None) == getattr(other.tzinfo, "key", None)
        return one.isoformat() == other.isoformat() and same_zone
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(c, d)
            for (a, c), (b, d) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return one == other and sorted(map(_kind, one)) == sorted(map(_kind, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, f), getattr(other, f)) for f in one.__dataclass_fields__)
    if hasattr(one, "__pydantic_fields__"):
        return (
            same(one.__dict__, other.__dict__)
            and same(one.__pydantic_extra__, other.__pydantic_extra__)
            and same(one.__pydantic_private__, other.__pydantic_private__)
            and one.model_fields_set == other.model_fields_set
        )
    return bool(one == other)


def _kind(item: Any) -> str:
    if isinstance(item, tuple):
        return f"tuple {[_kind(part) for part in item]}"
    if isinstance(item, frozenset):
        return f"frozenset {sorted(_kind(part) for part in item)}"
    return f"{type(item).__qualname__} {item!r}"
