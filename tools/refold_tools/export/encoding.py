"""An event as JSON text that loses nothing, and back. Pure.

Records are objects of their fields, in their order; bytes are `{"$bytes": base64}`. The body of a
stored value in the encoding `j1` is JSON itself (docs/values.md) and stands there verbatim, so that
a query reaches into it; any other body is `{"$raw": base64}`, and a value without one lacks the
field.
"""

import json
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from refold_schemas.values import Value

_text: Callable[[str], str] = json.encoder.encode_basestring
"""A string as JSON, as it is but for what JSON escapes: U+0000 among it."""


def body_text(event: object) -> str:
    """The event's fields as JSON text.

    >>> from refold_schemas.events import StepInDoubt
    >>> body_text(StepInDoubt("charge#1", 1, "reset", False))
    '{"slot":"charge#1","attempt":1,"reason":"reset","escalated":false}'
    """
    return _written(event)


def value_text(value: Value | None) -> str | None:
    """A stored value as JSON text: its body where that is JSON, else the record around it.

    >>> value_text(Value("", 1, "j1", None, b'{"pence":4160}', None))
    '{"pence":4160}'
    """
    if value is None:
        return None
    if value.encoding == "j1" and value.key_id is None and value.body is not None:
        verbatim = _json_of(value.body)
        if verbatim is not None:
            return verbatim
    return '{"$value":' + _written(value) + "}"


def _written(item: Any) -> str:
    kind: Any = type(item)
    if kind is str:
        return _text(item)
    if item is None:
        return "null"
    if kind is bool:
        return "true" if item else "false"
    if kind is int:
        return str(item)
    if kind is bytes:
        return '{"$bytes":"' + b64encode(item).decode() + '"}'
    if kind is tuple:
        return "[" + ",".join(map(_written, item)) + "]"
    if kind is Value:
        return _value(item)
    parts = (f"{_text(name)}:{_written(getattr(item, name))}" for name in _names(kind))
    return "{" + ",".join(parts) + "}"


def _value(value: Value) -> str:
    parts = []
    for name in _names(Value):
        item = getattr(value, name)
        written = None
        if name == "body" and item is None:
            continue  # a body that is null is another thing
        if name == "body" and value.encoding == "j1" and value.key_id is None:
            written = _json_of(item)
        if name == "body" and written is None:
            written = '{"$raw":"' + b64encode(item).decode() + '"}'
        parts.append(f"{_text(name)}:{_written(item) if written is None else written}")
    return "{" + ",".join(parts) + "}"


@lru_cache(maxsize=256)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _json_of(body: bytes) -> str | None:
    """The body as text if it is one JSON value, and not what stands for a body that is none."""
    try:
        text = body.decode()
        tree = json.loads(text, parse_constant=_refuse, parse_int=_as_it_is, parse_float=_as_it_is)
    except (ValueError, RecursionError):
        return None
    return None if type(tree) is dict and set(tree) == {"$raw"} else text


def _as_it_is(text: str) -> str:
    return text  # an integer of any length costs nothing


def _refuse(text: str) -> object:
    raise ValueError(text)


# ---- and back


def read_body(text: str, cls: Any) -> Any:
    """The event of class `cls` from its JSON text. Raises ValueError, KeyError or TypeError.

    A body that was JSON comes back as that JSON without blanks between its parts, which is how
    refold writes it.
    """
    return _reader(cls)(json.loads(text, parse_float=_Verbatim, parse_int=_Verbatim))


class _Verbatim(str):
    """A number as it stands in the text."""


@lru_cache(maxsize=256)
def _reader(annotation: Any) -> Callable[[Any], Any]:
    if annotation is str:
        return str
    if annotation is int:
        return int
    if annotation is bool:
        return _same
    if annotation is bytes:
        return lambda tree: b64decode(tree["$bytes"])
    if isinstance(annotation, types.UnionType):
        (inner,) = (one for one in typing.get_args(annotation) if one is not type(None))
        read = _reader(inner)
        return lambda tree: None if tree is None else read(tree)
    if typing.get_origin(annotation) is tuple:
        item = _reader(typing.get_args(annotation)[0])
        return lambda tree: tuple(map(item, tree))
    if isinstance(annotation, type) and is_dataclass(annotation):
        record: Callable[..., Any] = annotation
        hints = typing.get_type_hints(annotation)
        readers = {name: _reader(hint) for name, hint in hints.items()}
        if annotation is Value:
            readers["body"] = _read_value_body
            return lambda tree: Value(
                **{"body": None, **{n: readers[n](item) for n, item in tree.items()}}
            )
        return lambda tree: record(**{n: read(tree[n]) for n, read in readers.items()})
    raise TypeError(f"no event has a field of {annotation}")


def _same(tree: Any) -> Any:
    return tree


def _read_value_body(tree: Any) -> bytes:
    if type(tree) is dict and set(tree) == {"$raw"}:
        return b64decode(tree["$raw"])
    return _json(tree).encode()


def _json(tree: Any) -> str:
    if type(tree) is _Verbatim:
        return str(tree)
    if type(tree) is str:
        return _text(tree)
    if type(tree) is dict:
        return "{" + ",".join(f"{_text(key)}:{_json(item)}" for key, item in tree.items()) + "}"
    if type(tree) is list:
        return "[" + ",".join(map(_json, tree)) + "]"
    return {None: "null", True: "true", False: "false"}[tree]


__all__ = ["body_text", "read_body", "value_text"]
