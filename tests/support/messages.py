"""Every message class with examples: random ones, and one fixed example for the golden bytes."""

import dataclasses
import types
import typing
from typing import Any

from hypothesis import strategies as st

from refold_schemas.codec.classes import COMMAND_CLASSES, EVENT_CLASSES, SNAPSHOT_CLASSES

MESSAGE_CLASSES: tuple[type, ...] = (*EVENT_CLASSES, *COMMAND_CLASSES, *SNAPSHOT_CLASSES)
CLAIM_FIELDS = frozenset({"claim_id", "record_claim_id", "last_claim_id"})
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 63, 64, 1023, 1024, -1, -64, -65])


def hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def optional(annotation: Any) -> Any | None:
    """The X of `X | None`, else None."""
    if isinstance(annotation, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(annotation) if arg is not type(None))
        return inner
    return None


def messages(cls: type) -> st.SearchStrategy[Any]:
    """Random instances of one class."""
    fields = {name: _random(annotation, name) for name, annotation in hints(cls).items()}
    return st.builds(cls, **fields)


def _random(annotation: Any, name: str) -> st.SearchStrategy[Any]:
    inner = optional(annotation)
    if inner is not None:
        return st.none() | _random(inner, name)
    if typing.get_origin(annotation) is tuple:
        return st.lists(_random(typing.get_args(annotation)[0], name), max_size=3).map(tuple)
    if annotation is bytes:
        size = 16 if name in CLAIM_FIELDS else 0
        return st.binary(min_size=size, max_size=size or 40)
    if dataclasses.is_dataclass(annotation):
        return messages(typing.cast(type, annotation))
    simple: dict[Any, st.SearchStrategy[Any]] = {str: TEXT, int: LONGS, bool: st.booleans()}
    return simple[annotation]


def example(cls: type, *, bare: bool = False) -> Any:
    """One fixed instance: every field set, or with `bare` everything that may be absent absent."""
    counter = iter(range(1, 10_000))
    return _example(cls, "", counter, bare)


def _example(annotation: Any, name: str, counter: typing.Iterator[int], bare: bool) -> Any:
    inner = optional(annotation)
    if inner is not None:
        return None if bare else _example(inner, name, counter, bare)
    if typing.get_origin(annotation) is tuple:
        item = typing.get_args(annotation)[0]
        return () if bare else tuple(_example(item, name, counter, bare) for _ in range(2))
    if dataclasses.is_dataclass(annotation):
        made = {
            field: _example(hint, field, counter, bare)
            for field, hint in hints(typing.cast(type, annotation)).items()
        }
        return typing.cast(Any, annotation)(**made)
    number = next(counter)
    if annotation is bytes:
        return bytes([number % 256]) * (16 if name in CLAIM_FIELDS else 5)
    simple = {str: f"{name} {number} é", int: number * 37, bool: number % 2 == 1}
    return simple[annotation]


def plain(value: Any) -> Any:
    """A message as JSON data: records as dicts, tuples as lists, bytes as `hex:…`."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return f"hex:{value.hex()}" if isinstance(value, bytes) else value
