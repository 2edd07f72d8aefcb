"""Avro schemas as small shapes, names resolved: what writer and reader are compiled from."""

from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class BadSchema(ValueError):
    """A schema that this codec does not take; the text says why."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """null, boolean, int, long, float, double, bytes or string."""

    kind: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly `size` bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Symbols:
    """An Avro enum: one of `symbols`, by its index."""

    name: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of items of one shape."""

    items: "Shape"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one shape under string keys."""

    values: "Shape"


@dataclass(frozen=True, slots=True)
class Union:
    """One of several shapes, by its index."""

    branches: tuple["Shape", ...]


@dataclass(eq=False, slots=True)
class Record:
    """Named fields in order. Not frozen: its fields come after it is known by name (recursion)."""

    name: str
    fields: list[tuple[str, "Shape"]] = field(default_factory=list)


Shape = Primitive | Fixed | Symbols | Array | Map | Union | Record


def shape_of(schema: Any) -> Shape:
    """Resolve a parsed Avro schema. Raises BadSchema.

    >>> shape_of(["null", "long"])
    Union(branches=(Primitive(kind='null'), Primitive(kind='long')))
    """
    return _shape(schema, "", {})


def _shape(schema: Any, namespace: str, names: dict[str, Shape]) -> Shape:
    if isinstance(schema, str):
        return _named(schema, namespace, names)
    if isinstance(schema, list):
        branches = tuple(_shape(branch, namespace, names) for branch in schema)
        if not branches:
            raise BadSchema("a union without branches")
        return Union(branches)
    if not isinstance(schema, dict) or "type" not in schema:
        raise BadSchema(f"{schema!r} is no schema")
    kind = schema["type"]
    if kind == "array":
        return Array(_shape(schema["items"], namespace, names))
    if kind == "map":
        return Map(_shape(schema["values"], namespace, names))
    if kind in ("record", "error", "enum", "fixed"):
        return _define(kind, schema, namespace, names)
    return _shape(kind, namespace, names)


def _named(name: str, namespace: str, names: dict[str, Shape]) -> Shape:
    if name in PRIMITIVES:
        return Primitive(name)
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    if full not in names:
        raise BadSchema(f"{full} is not defined before it is used")
    return names[full]


def _define(kind: str, schema: dict[str, Any], namespace: str, names: dict[str, Shape]) -> Shape:
    name = schema["name"]
    space = schema.get("namespace", namespace)
    if "." in name:
        space = name.rpartition(".")[0]
    full = name if "." in name or not space else f"{space}.{name}"
    if full in names:
        raise BadSchema(f"{full} is defined twice")
    if kind == "fixed":
        names[full] = made = Fixed(full, int(schema["size"]))
        return made
    if kind == "enum":
        symbols = names[full] = Symbols(full, tuple(schema["symbols"]))
        return symbols
    record = Record(full)
    names[full] = record
    for entry in schema["fields"]:
        record.fields.append((entry["name"], _shape(entry["type"], space, names)))
    return record


def size_min(shape: Shape, seen: frozenset[str] = frozenset()) -> int:
    """Return the fewest bytes an encoding of `shape` can have: counts are checked against it."""
    match shape:
        case Primitive(kind="null"):
            return 0
        case Primitive(kind="float"):
            return 4
        case Primitive(kind="double"):
            return 8
        case Fixed(size=size):
            return size
        case Record(name=name, fields=fields):
            if name in seen:
                return 0
            return sum(size_min(field, seen | {name}) for _, field in fields)
        case Union(branches=branches):
            return 1 + min(size_min(branch, seen) for branch in branches)
        case _:
            return 1


def item_size_min(items: Shape) -> int:
    """Return `size_min` of an array's items. Raises BadSchema where they may take no bytes.

    Four bytes could claim any number of such items (nulls, empty records), so no reader could
    bound what it allocates; nothing needs them.
    """
    size = size_min(items)
    if size == 0:
        raise BadSchema("an array of items that take no bytes")
    return size
