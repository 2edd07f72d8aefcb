"""From a Python value to the body `j1`: UTF-8 JSON, with a tag for each kind that JSON lacks.

Plain data takes a short way (one walk over exact types, then the C encoder). Everything else
takes the long one, which also finds the path of what is refused. Docs: `docs/values.md`.
"""

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from json import encoder as _json
from types import NoneType
from typing import Final
from uuid import UUID

from pydantic_core import to_json

from refold_schemas.errors import ValueRefused
from refold_schemas.errors.texts import line_of
from refold_schemas.values.kinds import (
    Fields,
    Unbuildable,
    class_id,
    find_class,
    is_record,
    is_secret,
    take_apart,
)
from refold_schemas.values.records import Value

DEPTH_MAX: Final = 128
"""Values may be nested this deep; deeper ones are most likely cycles, and JSON readers recurse."""

NODES_MAX: Final = 500_000
"""Containers may hold this many items altogether: lists that share lists can be of any size."""

INT_PLAIN_MAX: Final = 2**63 - 1
"""Integers up to here (and down to `-2**63`) are JSON numbers, others are tagged."""

ENCODING: Final = "j1"
VALUE_TYPE_VERSION: Final = 1

_INT_MIN: Final = -INT_PLAIN_MAX - 1

Tree = None | bool | int | float | str | list["Tree"] | dict[str, "Tree"]
"""A JSON document as Python data."""


class Refused(Exception):
    """Raised inside the walk; `path` grows from the inside out."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind, self.reason, self.path = kind, reason, ""
        super().__init__(reason)


def _unexpected(obj: object) -> object:
    raise TypeError(type(obj).__name__)


def _writer(*, sort_keys: bool) -> Callable[[object], str]:
    made = getattr(_json, "c_make_encoder", None)
    if made is None:  # no C encoder in this Python: the slow one writes the same text
        return json.JSONEncoder(
            ensure_ascii=False,
            check_circular=False,
            allow_nan=False,
            sort_keys=sort_keys,
            separators=(",", ":"),
        ).encode
    # what json.dumps does, minus building the encoder anew at every call
    iterate = made(
        None, _unexpected, _json.encode_basestring, None, ":", ",", sort_keys, False, False
    )

    def write(obj: object) -> str:
        return "".join(iterate(obj, 0))

    return write


write_json = _writer(sort_keys=False)
write_sorted = _writer(sort_keys=True)


class Plain:
    """One look whether JSON says a value exactly, without tags. Afterwards: `has_floats`.

    NaN and lone surrogates are not seen.
    """

    # Of the class, so that nothing has to be set where one is made: that is done for every value.
    left = NODES_MAX
    has_floats = False

    def fits(self, obj: object) -> bool:
        """Whether it does."""
        kind = type(obj)
        if kind is dict:
            return _plain_dict(obj, DEPTH_MAX, self)  # type: ignore[arg-type]
        if kind is list:
            return _plain_list(obj, DEPTH_MAX, self)  # type: ignore[arg-type]
        if kind is int:
            return _INT_MIN <= obj <= INT_PLAIN_MAX  # type: ignore[operator]
        self.has_floats = kind is float
        return kind is str or obj is None or kind is bool or kind is float


def is_plain(obj: object) -> bool:
    """Tell whether JSON says `obj` exactly, without tags. NaN and lone surrogates are not seen."""
    return Plain().fits(obj)


def _plain_dict(obj: dict[object, object], depth: int, look: Plain) -> bool:
    look.left -= len(obj)
    if depth <= 0 or look.left < 0:
        return False
    key: object = ""
    for key, item in obj.items():
        if type(key) is not str:
            return False
        kind = type(item)
        if kind is str or item is None or kind is bool:
            continue
        if kind is float:
            look.has_floats = True
            continue
        if kind is int:
            if _INT_MIN <= item <= INT_PLAIN_MAX:  # type: ignore[operator]
                continue
            return False
        if kind is dict:
            if _plain_dict(item, depth - 1, look):  # type: ignore[arg-type]
                continue
            return False
        if kind is list and _plain_list(item, depth - 1, look):  # type: ignore[arg-type]
            continue
        return False
    # one key that begins with "$" would read as a tag: it has to be escaped
    return len(obj) != 1 or key[:1] != "$"  # type: ignore[index]


def _plain_list(obj: list[object], depth: int, look: Plain) -> bool:
    look.left -= len(obj)
    if depth <= 0 or look.left < 0:
        return False
    for item in obj:
        kind = type(item)
        if kind is str or item is None or kind is bool:
            continue
        if kind is float:
            look.has_floats = True
            continue
        if kind is int:
            if _INT_MIN <= item <= INT_PLAIN_MAX:  # type: ignore[operator]
                continue
            return False
        if kind is dict:
            if _plain_dict(item, depth - 1, look):  # type: ignore[arg-type]
                continue
            return False
        if kind is list and _plain_list(item, depth - 1, look):  # type: ignore[arg-type]
            continue
        return False
    return True


class Walk:
    """One long way over a value. `canonical` leaves out what equality does not see.

    In canonical form a class is named by its qualname alone, so that moving it to another module
    changes no fingerprint; map entries and sets are sorted in canonical form, sets in both.
    """

    __slots__ = ("canonical", "left", "typed")

    def __init__(self, *, canonical: bool) -> None:
        self.canonical = canonical
        self.left = NODES_MAX
        self.typed = False

    def tree(self, obj: object, depth: int = DEPTH_MAX) -> Tree:
        """Return `obj` as JSON data with tags. Raises Refused with the path in it."""
        kind = type(obj)
        try:
            leaf = _LEAVES.get(kind)
            if leaf is not None:
                return leaf(obj)
            if depth <= 0:
                raise Refused(_name(kind), f"it is nested deeper than {DEPTH_MAX} (or a cycle)")
            branch = _BRANCHES.get(kind)
            if branch is not None:
                self.left -= len(obj)  # type: ignore[arg-type]
                if self.left < 0:
                    raise Refused(_name(kind), f"it holds more than {NODES_MAX} items")
                return branch(self, obj, depth - 1)
            if isinstance(obj, Enum):
                return self._enum(obj)
            if is_secret(kind):
                raise Refused(kind.__qualname__, "it is a secret, and the log is kept for ever")
            if is_record(kind):
                return self._record(obj, kind, depth - 1)
            raise Refused(_name(kind), _why_not(kind))
        except (Refused, RecursionError):
            raise
        except Exception as error:  # a proxy's __class__, a zone's offset: code of its author's
            raise Refused(_name(kind), f"looking at it raises {line_of(error, 200)}") from None

    def _list(self, obj: list[object], depth: int) -> Tree:
        return self._items(obj, depth)

    def _items(self, obj: list[object] | tuple[object, ...], depth: int) -> list[Tree]:
        out: list[Tree] = []
        try:
            for item in obj:
                out.append(self.tree(item, depth))
        except Refused as refused:
            refused.path = f"[{len(out)}]{refused.path}"
            raise
        return out

    def _tuple(self, obj: tuple[object, ...], depth: int) -> Tree:
        return {"$tuple": self._items(obj, depth)}

    def _set(self, obj: set[object], depth: int) -> Tree:
        return {"$set": self._sorted(obj, depth)}

    def _frozenset(self, obj: frozenset[object], depth: int) -> Tree:
        return {"$frozenset": self._sorted(obj, depth)}

    def _sorted(self, obj: set[object] | frozenset[object], depth: int) -> list[Tree]:
        # a set's own order changes from process to process
        with _within("{}"):
            trees = [self.tree(item, depth) for item in obj]
        trees.sort(key=write_sorted)
        return trees

    def _dict(self, obj: dict[object, object], depth: int) -> Tree:
        for key in obj:
            if type(key) is not str:
                return self._map(obj, depth)
        return escape(self._fields(obj, depth))  # type: ignore[arg-type]

    def _fields(self, obj: dict[str, object], depth: int) -> dict[str, Tree]:
        out: dict[str, Tree] = {}
        key = ""
        try:
            for key, item in obj.items():
                _str(key)
                out[key] = self.tree(item, depth)
        except Refused as refused:
            refused.path = step_into(key) + refused.path
            raise
        return out

    def _map(self, obj: dict[object, object], depth: int) -> Tree:
        entries: list[Tree] = []
        for key, item in obj.items():
            with _within("{key}"):
                named = self.tree(key, depth)
            with _within(f"[{_shown(key)}]"):
                entries.append([named, self.tree(item, depth)])
        if self.canonical:
            entries.sort(key=lambda entry: write_sorted(entry[0]))  # type: ignore[index]
        return {"$map": entries}

    def _enum(self, obj: Enum) -> Tree:
        cls = type(obj)
        self._found_again(cls)
        # None of a flag without bits, whatever its type says.
        name: object = getattr(obj, "name", None)
        if isinstance(name, str) and cls.__members__.get(name) is obj:
            return {"$enum": [self._class(cls), name]}
        if isinstance(obj, Flag) and type(obj.value) is int:
            return {"$flag": [self._class(cls), Walk.tree(self, obj.value)]}
        raise Refused(_name(cls), "it is not a member of its enum by name")

    def _record(self, obj: object, cls: type, depth: int) -> Tree:
        self._found_again(cls)
        parts = self._apart(obj, cls)
        meta: dict[str, Tree] = {}
        fields = escape(self._fields(parts.fields, depth))
        if parts.private:
            meta["private"] = self._fields(parts.private, depth)
        if parts.unset and not self.canonical:
            meta["unset"] = list(parts.unset)
        return {"$record": [self._class(cls), fields, meta] if meta else [self._class(cls), fields]}

    def _apart(self, obj: object, cls: type) -> Fields:
        try:
            parts = take_apart(obj)
        except Unbuildable as error:
            raise Refused(_name(cls), str(error)) from None
        self.left -= len(parts.fields)
        if self.left < 0:
            raise Refused(_name(cls), f"it holds more than {NODES_MAX} items")
        return parts

    def _class(self, cls: type) -> str:
        return cls.__qualname__ if self.canonical else class_id(cls)

    def _found_again(self, cls: type) -> None:
        self.typed = True
        if not self.canonical and find_class(class_id(cls)) is not cls:
            raise Refused(
                _name(cls),
                f"its class is not what {class_id(cls)} names; define it at the top of a module",
            )


def escape(fields: dict[str, Tree]) -> dict[str, Tree]:
    """Wrap an object that would read as a tag.

    >>> escape({"$set": []}), escape({"$set": [], "a": 1})
    ({'$': {'$set': []}}, {'$set': [], 'a': 1})
    """
    if len(fields) == 1 and next(iter(fields))[:1] == "$":
        return {"$": fields}
    return fields


@contextmanager
def _within(path: str) -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        refused.path = path + refused.path
        raise


def step_into(key: str) -> str:
    """Write one step of a path: `.name`, or `["a key"]` where the name is not an identifier."""
    if key.isidentifier():
        return f".{key}"
    return f"[{_shown(key)}]"


def _shown(key: object) -> str:
    text = ascii(key).replace("'", '"') if type(key) is str else ascii(key)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(kind: type) -> str:
    return class_id(kind).removeprefix("builtins:")


def _why_not(kind: type) -> str:
    for base in (str, bytes, int, float, list, tuple, dict, set, frozenset):
        if issubclass(kind, base):
            return f"a subclass of {base.__name__} would come back as {base.__name__}"
    if issubclass(kind, BaseException):
        return "an exception is not a value; raise it, or return what it says"
    if issubclass(kind, Awaitable):
        return "nobody has awaited it: an `await` is missing before the call that made it"
    return "refold knows no way to store this type and get it back equal"


# ---- leaves: no path can lead into them


def _same(obj: object) -> Tree:
    return obj  # type: ignore[return-value]


def _str(obj: object) -> Tree:
    text: str = obj  # type: ignore[assignment]
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Refused(
                "str", f"it has a lone surrogate at character {error.start}, which UTF-8 lacks"
            ) from None
    return text


def _int(obj: object) -> Tree:
    number: int = obj  # type: ignore[assignment]
    if _INT_MIN <= number <= INT_PLAIN_MAX:
        return number
    return {"$int": f"{number:x}"}  # hexadecimal: decimal is limited in length and quadratic


def _float(obj: object) -> Tree:
    number: float = obj  # type: ignore[assignment]
    if number - number != 0:
        raise Refused("float", "it is not a finite number (NaN or infinity)")
    return number


def _decimal(obj: object) -> Tree:
    number: Decimal = obj  # type: ignore[assignment]
    if not number.is_finite():
        raise Refused("Decimal", "it is not a finite number (NaN or infinity)")
    return {"$decimal": str(number)}


def _bytes(obj: object) -> Tree:
    return {"$bytes": b64encode(obj).decode()}  # type: ignore[arg-type]


def _datetime(obj: object) -> Tree:
    moment: datetime = obj  # type: ignore[assignment]
    offset = moment.utcoffset()
    if offset is None:
        raise Refused(
            "datetime", "it is naive: what time it means depends on the machine; give it a zone"
        )
    _check_offset("datetime", offset)
    return {"$datetime": moment.isoformat() + _zone(moment)}


def _check_offset(kind: str, offset: timedelta) -> None:
    if offset.microseconds:  # Python itself reads some of them back as UTC
        raise Refused(kind, f"its offset from UTC, {offset}, is not whole seconds")


def _zone(moment: datetime) -> str:
    zone = moment.tzinfo
    if type(zone) is timezone:
        plain = timezone(zone.utcoffset(None))
        name = zone.tzname(None)
        if name == plain.tzname(None):
            return ""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise Refused("datetime", "its zone's name has a lone surrogate") from None
        return f"[={name}]"
    module = type(zone).__module__
    if module.startswith("pydantic_core"):
        return ""  # what pydantic parses has a zone class of its own, of fixed offset
    key: str | None = getattr(zone, "key", None)
    if module.startswith("zoneinfo") and key is not None:
        return f"[{key}]"
    raise Refused(
        "datetime",
        f"its zone is a {_name(type(zone))}; use datetime.timezone or a zoneinfo.ZoneInfo by key",
    )


def _date(obj: object) -> Tree:
    return {"$date": obj.isoformat()}  # type: ignore[attr-defined]


def _time(obj: object) -> Tree:
    at: time = obj  # type: ignore[assignment]
    if at.fold or (at.tzinfo is not None and type(at.tzinfo) is not timezone):
        raise Refused("time", "a time of day is stored without fold, naive or with a fixed offset")
    if at.tzinfo is not None:
        _check_offset("time", at.tzinfo.utcoffset(None) or timedelta())
    return {"$time": at.isoformat()}


def _timedelta(obj: object) -> Tree:
    span: timedelta = obj  # type: ignore[assignment]
    return {"$timedelta": [span.days, span.seconds, span.microseconds]}


def _uuid(obj: object) -> Tree:
    return {"$uuid": str(obj)}


_LEAVES: dict[type, Callable[[object], Tree]] = {
    NoneType: _same,
    bool: _same,
    str: _str,
    int: _int,
    float: _float,
    bytes: _bytes,
    Decimal: _decimal,
    datetime: _datetime,
    date: _date,
    time: _time,
    timedelta: _timedelta,
    UUID: _uuid,
}
_BRANCHES: dict[type, Callable[..., Tree]] = {
    dict: Walk._dict,
    list: Walk._list,
    tuple: Walk._tuple,
    set: Walk._set,
    frozenset: Walk._frozenset,
}


def encode_value(obj: object, *, path: str = "result") -> Value:
    """Store `obj`: plain data as JSON in its own order, other kinds with tags.

    Where a model, dataclass or enum is in it, the body is read back and compared before this
    returns: what would not come back equal and of the same kind raises ValueRefused, whose `path`
    begins with `path`.

    >>> encode_value({"pence": 4160}).body
    b'{"pence":4160}'
    >>> encode_value([1, float("nan")])
    Traceback (most recent call last):
        ...
    refold_schemas.errors.values.ValueRefused: result[1] (float) cannot be stored faithfully: it \
is not a finite number (NaN or infinity). Kept: nothing of this value; everything recorded before \
it stays. Next: pass what comes back equal: plain data, a pydantic model, a dataclass or an enum. \
(R101)
    """
    try:
        if type(obj) is str:  # most arguments are a name or a number, again and again
            return _texts.get(obj) or _text(obj)
        if type(obj) is int and _INT_MIN <= obj <= INT_PLAIN_MAX:
            return _numbers.get(obj) or _number(obj)
        look = Plain()
        if look.fits(obj):
            # pydantic's writer is quicker, but writes some floats in another way (1e-7, 1e-07).
            body = write_json(obj).encode() if look.has_floats else to_json(obj)
            return Value("", 1, "j1", None, body, None)
    except ValueError:  # NaN or a lone surrogate: the long way finds where
        pass
    except RecursionError:
        raise _too_deep(obj, path) from None
    return _encode_long(obj, path)


KEPT_SIZE_MAX, KEPT_MAX = 64, 4_096
"""Texts and numbers up to this size are kept as they are stored; so many of each."""
_texts: dict[str, Value] = {}
_numbers: dict[int, Value] = {}


def _text(obj: str) -> Value:
    """Store a text. Raises ValueError for a lone surrogate."""
    body = _json.encode_basestring(obj).encode()
    value = Value("", VALUE_TYPE_VERSION, ENCODING, None, body, None)
    if len(body) <= KEPT_SIZE_MAX:
        if len(_texts) >= KEPT_MAX:
            _texts.clear()  # what comes again is soon here again
        _texts[obj] = value
    return value


def _number(obj: int) -> Value:
    """Store an integer that needs no tag."""
    value = Value("", VALUE_TYPE_VERSION, ENCODING, None, b"%d" % obj, None)
    if len(_numbers) >= KEPT_MAX:
        _numbers.clear()
    _numbers[obj] = value
    return value


def _encode_long(obj: object, path: str) -> Value:
    walk = Walk(canonical=False)
    try:
        type_id, top = split_type(walk.tree(obj))
        body = write_json(top).encode()
    except Refused as refused:
        raise ValueRefused(path + refused.path, refused.kind, refused.reason) from None
    except RecursionError:
        raise _too_deep(obj, path) from None
    value = Value(type_id, VALUE_TYPE_VERSION, ENCODING, None, body, None)
    if walk.typed:
        from refold_schemas.values.compare import check_comes_back

        check_comes_back(obj, value, path)
    return value


def _too_deep(obj: object, path: str) -> ValueRefused:
    return ValueRefused(path, _name(type(obj)), "it is nested too deep for the stack (or a cycle)")


def split_type(tree: Tree) -> tuple[str, Tree]:
    """Take the class of the outermost record or enum out of the tree: it is `Value.type`.

    >>> split_type({"$record": ["shop:Order", {"id": 1}]}), split_type([1])
    (('shop:Order', {'id': 1}), ('', [1]))
    """
    if type(tree) is dict and len(tree) == 1:
        tag, parts = next(iter(tree.items()))
        if tag == "$record" and type(parts) is list:
            type_id = str(parts[0])
            return (type_id, parts[1]) if len(parts) == 2 else (type_id, {tag: ["", *parts[1:]]})
        if tag in ("$enum", "$flag") and type(parts) is list:
            return str(parts[0]), {tag: ["", *parts[1:]]}
    return "", tree


def join_type(type_id: str, top: Tree) -> Tree:
    """Put `Value.type` back: the reverse of `split_type`.

    >>> join_type("shop:Order", {"id": 1})
    {'$record': ['shop:Order', {'id': 1}]}
    """
    if not type_id:
        return top
    if type(top) is dict and len(top) == 1:
        tag, parts = next(iter(top.items()))
        if tag in ("$record", "$enum", "$flag") and type(parts) is list and parts[:1] == [""]:
            return {tag: [type_id, *parts[1:]]}
    return {"$record": [type_id, top]}
