"""From a stored body `j1` back to the Python value, or into the type that today's code wants."""

import inspect
import json
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final, is_typeddict
from uuid import UUID

from refold_schemas.errors import ValueUnreadable
from refold_schemas.values.kinds import Unbuildable, build, describe, find_class, is_enum, is_model
from refold_schemas.values.records import Value
from refold_schemas.values.storing import DEPTH_MAX, ENCODING, Tree, join_type

LEVELS_MAX: Final = 4 * DEPTH_MAX
"""Of lists and objects in the JSON of a body; tags add levels to those of the value. Parsers differ
in what they bear (1,000 levels, 10,000); a tree that one has read must not break another."""


class Unreadable(Exception):
    """Raised inside the reading; the text says why."""


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise Unreadable(f"the number {text[:40]} is out of range")
    return number


def _no_constant(text: str) -> object:
    raise Unreadable(f"{text} is not JSON")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def _parse(text: str) -> Tree:
    """Read a JSON text. Raises ValueError, RecursionError or Unreadable."""
    try:
        tree, end = _decoder.scan_once(text, 0)  # type: ignore[attr-defined]
    except StopIteration:
        end = -1
    if end == len(text):
        return tree  # type: ignore[no-any-return]
    return _decoder.decode(text)  # type: ignore[no-any-return]  # blanks, or an error with a place


def parse_body(value: Value) -> Tree:
    """Return the JSON of a stored value. Raises Unreadable where there is none."""
    if value.encoding != ENCODING:
        if value.body is None:
            raise Unreadable("only its digest was kept")
        raise Unreadable(f"its encoding {value.encoding!r} is not known here")
    if value.key_id is not None:
        raise Unreadable(f"it is encrypted under the key {value.key_id!r}, which is not here")
    if value.body is None:
        raise Unreadable("only its digest was kept")
    try:
        tree: Tree = _parse(value.body.decode())
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"its body is not JSON ({type(error).__name__}: {error})"[:300]) from None
    body = value.body
    if len(body) > LEVELS_MAX and body.count(b"[") + body.count(b"{") > LEVELS_MAX < _levels(tree):
        raise Unreadable(f"its body is JSON nested deeper than {LEVELS_MAX} levels")
    return tree


def _levels(tree: Tree) -> int:
    """How deep containers are nested in it, at most LEVELS_MAX + 1. Without recursion."""
    level, count = [tree] if type(tree) in (list, dict) else [], 0
    while level and count <= LEVELS_MAX:
        count += 1
        level = [
            item
            for one in level
            for item in (one.values() if type(one) is dict else one)  # type: ignore[union-attr]
            if type(item) is list or type(item) is dict
        ]
    return count


def has_tags(body: bytes | None) -> bool:
    """Tell whether a body may hold tags. A string that begins with `$` looks like one: no harm."""
    return body is not None and b'"$' in body


def decode_value(value: Value) -> object:
    """Return the value as it was when it was stored: equal and of the same kind.

    Models are validated by field name, dataclasses constructed, so a class that has gained a field
    with a default still reads older values. Classes are looked up among imported modules only.
    Raises ValueUnreadable where the body, the type or its validators do not allow it.

    >>> decode_value(Value("", 1, "j1", None, b'{"$tuple":[1,{"$bytes":"AAE="}]}', None))
    (1, b'\\x00\\x01')
    """
    try:
        tree = parse_body(value)
        if not value.type and not has_tags(value.body):
            return tree
        return Reader(loose=False).read(join_type(value.type, tree), DEPTH_MAX)
    except Unreadable as error:
        raise ValueUnreadable(value.type, str(error)) from error
    except RecursionError as fault:
        raise ValueUnreadable(value.type, "it is nested too deep for the stack") from fault


class Reader:
    """One reading of a tree.

    `today` reads dataclasses into the types their fields have now; `loose` reads every record as a
    dict, for a type that is given from outside.
    """

    __slots__ = ("loose", "today")

    def __init__(self, *, loose: bool, today: bool = False) -> None:
        self.loose, self.today = loose, today

    def read(self, tree: Tree, depth: int) -> Any:
        """Return the value of a tree. Raises Unreadable."""
        kind = type(tree)
        if kind is dict:
            return self._dict(tree, depth - 1)  # type: ignore[arg-type]
        if kind is list:
            if depth <= 0:
                raise Unreadable(f"it is nested deeper than {DEPTH_MAX}")
            return [self.read(item, depth - 1) for item in tree]  # type: ignore[union-attr]
        return tree

    def _dict(self, tree: dict[str, Tree], depth: int) -> Any:
        if depth < 0:
            raise Unreadable(f"it is nested deeper than {DEPTH_MAX}")
        if len(tree) == 1:
            tag = next(iter(tree))
            if tag[:1] == "$":
                return self._tagged(tag, tree[tag], depth)
        return {key: self.read(item, depth) for key, item in tree.items()}

    def _tagged(self, tag: str, parts: Any, depth: int) -> Any:
        try:
            scalar = _SCALARS.get(tag)
            if scalar is not None:
                return scalar(parts)
            branch = _BRANCHES.get(tag)
            if branch is not None:
                return branch(self, parts, depth)
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise Unreadable(f"the tag {tag[:20]} holds what it cannot ({reason})") from None
        raise Unreadable(f"the tag {tag[:20]!r} is not known here")

    def _escaped(self, parts: Any, depth: int) -> Any:
        _expect(type(parts) is dict)
        return {key: self.read(item, depth) for key, item in parts.items()}

    def _tuple(self, parts: Any, depth: int) -> Any:
        return tuple(self._items(parts, depth))

    def _set(self, parts: Any, depth: int) -> Any:
        return set(self._items(parts, depth))

    def _frozenset(self, parts: Any, depth: int) -> Any:
        return frozenset(self._items(parts, depth))

    def _map(self, parts: Any, depth: int) -> Any:
        _expect(type(parts) is list)
        return {self.read(key, depth): self.read(item, depth) for key, item in parts}

    def _items(self, parts: Any, depth: int) -> list[Any]:
        _expect(type(parts) is list)
        return [self.read(item, depth) for item in parts]

    def _enum(self, parts: Any, depth: int) -> Any:
        type_id, name = parts
        cls = self._class(type_id)
        if cls is None or not is_enum(cls):
            raise Unreadable(f"no enum {type_id!r} is imported here"[:300])
        if name not in cls.__members__:
            raise Unreadable(f"{type_id} has no member {name!r}"[:300])
        return cls.__members__[name]

    def _flag(self, parts: Any, depth: int) -> Any:
        type_id, number = parts
        cls = self._class(type_id)
        if cls is None or not is_enum(cls):
            raise Unreadable(f"no enum {type_id!r} is imported here"[:300])
        made: Enum = cls(self.read(number, depth))
        return made

    def _record(self, parts: Any, depth: int) -> Any:
        _expect(type(parts) is list and 2 <= len(parts) <= 3)
        type_id, meta = parts[0], parts[2] if len(parts) == 3 else {}
        fields = self.read(parts[1], depth)
        _expect(type(fields) is dict)
        cls = self._class(type_id)
        if self.loose:
            return fields
        if cls is None or is_enum(cls):
            if self.today:
                return fields
            raise Unreadable(f"no model or dataclass {type_id!r} is imported here"[:300])
        if self.today and not is_model(cls):
            return _dataclass_today(cls, fields)
        private = {key: self.read(item, depth) for key, item in meta.get("private", {}).items()}
        try:
            return build(cls, fields, meta.get("unset", []), private)
        except Unbuildable as error:
            raise Unreadable(f"{cls.__qualname__} does not take it: {error}") from error

    def _class(self, type_id: Any) -> type[Any] | None:
        _expect(type(type_id) is str)
        return find_class(type_id)


def _expect(fits: bool) -> None:
    if not fits:
        raise ValueError("another shape")


def _text(parts: Any) -> str:
    _expect(type(parts) is str)
    return parts  # type: ignore[no-any-return]


_ZONED: Final = re.compile(r"([^\[\]]+?)(?:\[(=?)(.+)\])?", re.DOTALL)


def _datetime(parts: Any) -> datetime:
    match = _ZONED.fullmatch(_text(parts))
    _expect(match is not None)
    assert match is not None
    moment = datetime.fromisoformat(match[1])
    offset = moment.utcoffset()
    if offset is None:
        raise ValueError("a datetime without offset")
    if match[3] is None:
        return moment
    if match[2]:
        return moment.replace(tzinfo=timezone(offset, match[3]))
    return _in_zone(moment, offset, match[3])


def _in_zone(moment: datetime, offset: timedelta, key: str) -> datetime:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        zone = ZoneInfo(key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Unreadable(f"the time zone {key[:60]!r} is not known on this machine") from None
    for fold in (0, 1):
        local = moment.replace(tzinfo=zone, fold=fold)
        if local.utcoffset() == offset:
            return local
    return moment.astimezone(zone)  # the zone's rules have changed since: the instant holds


def _date(parts: Any) -> date:
    return date.fromisoformat(_text(parts))


def _time(parts: Any) -> time:
    return time.fromisoformat(_text(parts))


def _timedelta(parts: Any) -> timedelta:
    days, seconds, microseconds = parts
    return timedelta(days, seconds, microseconds)


def _decimal(parts: Any) -> Decimal:
    number = Decimal(_text(parts))
    _expect(number.is_finite())
    return number


def _bytes(parts: Any) -> bytes:
    return b64decode(_text(parts), validate=True)


def _int(parts: Any) -> int:
    return int(_text(parts), 16)


def _uuid(parts: Any) -> UUID:
    return UUID(_text(parts))


_SCALARS: dict[str, Callable[[Any], object]] = {
    "$int": _int,
    "$decimal": _decimal,
    "$bytes": _bytes,
    "$datetime": _datetime,
    "$date": _date,
    "$time": _time,
    "$timedelta": _timedelta,
    "$uuid": _uuid,
}
_BRANCHES: dict[str, Callable[[Reader, Any, int], Any]] = {
    "$": Reader._escaped,
    "$tuple": Reader._tuple,
    "$set": Reader._set,
    "$frozenset": Reader._frozenset,
    "$map": Reader._map,
    "$enum": Reader._enum,
    "$flag": Reader._flag,
    "$record": Reader._record,
}


# ---- into the type that today's code wants


def decode_value_as(value: Value, annotation: object) -> object:
    """Read a stored value, or plain JSON from any client, into the type that `annotation` names.

    pydantic does it (defaults filled, `"2026-01-02"` read as a date where one is wanted). Stored
    records are read into today's classes first; where their class is gone or renamed, their fields
    are read into the annotated type. None, Any and no annotation at all are `decode_value`.
    Raises ValueUnreadable.

    >>> decode_value_as(Value("", 1, "j1", None, b'["2026-01-02"]', None), list[date])
    [datetime.date(2026, 1, 2)]
    """
    if annotation is None or annotation is Any or annotation in (inspect.Parameter.empty, object):
        return decode_value(value)
    try:
        tree = parse_body(value)
        plain = not value.type and not has_tags(value.body)
        if plain and annotation is type(tree):
            return tree
        return _read_today(join_type(value.type, tree), annotation, plain)
    except Unreadable as error:
        raise ValueUnreadable(value.type, str(error)) from error
    except RecursionError as fault:
        raise ValueUnreadable(value.type, "it is nested too deep for the stack") from fault


def _read_today(tree: Tree, annotation: Any, plain: bool) -> object:
    adapter = _adapter_of(annotation)
    if adapter is None:
        return _unchecked(Reader(loose=False).read(tree, DEPTH_MAX), annotation)
    if plain:
        return _validate(adapter, annotation, tree)
    try:
        today = Reader(loose=False, today=True).read(tree, DEPTH_MAX)
        return _validate(adapter, annotation, today)
    except Unreadable as error:
        try:
            return _validate(adapter, annotation, Reader(loose=True).read(tree, DEPTH_MAX))
        except Unreadable:
            raise error from None  # the first reading knows the stored classes: it says more


def _unchecked(obj: object, annotation: Any) -> object:
    """Return the value as it was stored, for an annotation that pydantic has no schema for.

    Such are typing.TypedDict before Python 3.12 and dataclasses with fields of foreign types.
    """
    checkable = isinstance(annotation, type) and not is_typeddict(annotation)
    if checkable and not isinstance(obj, annotation):
        raise Unreadable(f"it is no {annotation.__qualname__}, which pydantic cannot make")
    return obj


def _validate(adapter: Any, annotation: object, obj: object) -> object:
    try:
        return adapter.validate_python(obj, by_name=True, by_alias=True)
    except RecursionError:
        raise
    except Exception as error:  # validators are user code: anything may come
        raise Unreadable(f"it does not fit {_named(annotation)}: {describe(error)}") from error


def _adapter_of(annotation: Any) -> Any:
    try:
        return _adapter(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return _adapter.__wrapped__(annotation)


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> Any:
    """Return the TypeAdapter of an annotation, or None where pydantic cannot make one."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, NameError):
        return None


def _dataclass_today(cls: type[Any], fields: dict[str, object]) -> object:
    """Read fields into today's dataclass: types and defaults as it has them now."""
    adapter = _adapter_of(cls)
    if adapter is not None:
        return _validate(adapter, cls, fields)
    try:
        return build(cls, fields, [], {})
    except Unbuildable as error:
        raise Unreadable(f"{cls.__qualname__} does not take it: {error}") from error


def _named(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
