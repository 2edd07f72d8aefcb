"""Avro reading that no payload can hurt: every length and count is checked before it is believed.

Closures compiled once for each schema, from bytes straight to the classes. Source: Avro 1.12
specification, binary encoding.
"""

from collections.abc import Callable
from struct import unpack_from
from typing import Any

from refold_schemas.codec.shapes import (
    Array,
    Fixed,
    Map,
    Primitive,
    Record,
    Shape,
    Symbols,
    Union,
    item_size_min,
    size_min,
)
from refold_schemas.codec.writing import INT_MAX, INT_MIN, LONG_MAX, Classes

Read = Callable[[bytes, int], tuple[Any, int]]
"""`(data, position) -> (value, position after it)`."""

VARINT_BYTES_MAX = 10


class Broken(Exception):
    """Bytes that are no encoding of the schema; `path` grows from the inside out."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(reason)


CUT = "the bytes end in the middle of it"


def _read_null(data: bytes, at: int) -> tuple[Any, int]:
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[Any, int]:
    if data[at] > 1:
        raise Broken(f"{data[at]} is neither true nor false")
    return data[at] == 1, at + 1


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag integer of at most 64 bits. Raises IndexError where the bytes end."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    at += 1
    bits, shift = byte & 0x7F, 7
    end = at - 1 + VARINT_BYTES_MAX
    while byte & 0x80:
        if at >= end:
            raise Broken("an integer does not end")
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        shift += 7
    if bits >> 64:
        raise Broken("an integer has more than 64 bits")
    return (bits >> 1) ^ -(bits & 1), at


def _read_int(data: bytes, at: int) -> tuple[Any, int]:
    number, at = read_long(data, at)
    if not INT_MIN <= number <= INT_MAX:
        raise Broken("an integer has more than 32 bits")
    return number, at


def _read_float(data: bytes, at: int) -> tuple[Any, int]:
    if at + 4 > len(data):
        raise Broken(CUT)
    return unpack_from("<f", data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[Any, int]:
    if at + 8 > len(data):
        raise Broken(CUT)
    return unpack_from("<d", data, at)[0], at + 8


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    size, at = read_long(data, at)
    if size < 0:
        raise Broken(f"a length is negative ({size})")
    if size > len(data) - at:
        raise Broken(f"a length says {size} bytes, {len(data) - at} are left")
    return at, at + size


def _read_bytes(data: bytes, at: int) -> tuple[Any, int]:
    start, end = _read_length(data, at)
    return data[start:end], end


def _read_string(data: bytes, at: int) -> tuple[Any, int]:
    # nearly all texts are short: their length is one even byte
    size = data[at]
    start = at + 1
    end = start + (size >> 1)
    if size > 0x7F or size & 1 or end > len(data):
        start, end = _read_length(data, at)
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise Broken(f"text is not UTF-8 ({error.reason} at byte {error.start})") from None


_PRIMITIVES: dict[str, Read] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


class ReaderCompiler:
    """Compiles the reader of a shape: to classes and tuples if given, else to dicts and lists."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._records: dict[str, Read] = {}

    def compile(self, shape: Shape) -> Read:
        """Return a function that reads one value, or raises Broken."""
        match shape:
            case Primitive(kind=kind):
                return _PRIMITIVES[kind]
            case Fixed(size=size):
                return _fixed(size)
            case Symbols(symbols=symbols):
                return _symbols(symbols)
            case Array(items=items):
                return self.array(self.compile(items), item_size_min(items))
            case Map(values=values):
                return _map(self.compile(values), 1 + size_min(values))
            case Union(branches=branches):
                return self._union(branches)
            case Record():
                return self._record(shape)

    def array(self, item: Read, size_min: int) -> Read:
        """Return the reader of an array whose items take at least `size_min` bytes."""
        finish: Callable[[list[Any]], Any] = tuple if self._classes else list

        def read(data: bytes, at: int) -> tuple[Any, int]:
            out: list[Any] = []
            while True:
                count, at = _block(data, at, size_min)
                if count == 0:
                    return finish(out), at
                try:
                    for _ in range(count):
                        one, at = item(data, at)
                        out.append(one)
                except Broken as broken:
                    broken.path = f"[{len(out)}]{broken.path}"
                    raise

        return read

    def _union(self, branches: tuple[Shape, ...]) -> Read:
        readers = tuple(self.compile(branch) for branch in branches)
        if len(branches) == 2 and branches[0] == Primitive("null"):
            return _nullable(readers[1])

        def read(data: bytes, at: int) -> tuple[Any, int]:
            index, at = read_long(data, at)
            if not 0 <= index < len(readers):
                raise Broken(f"a union has no branch {index}")
            return readers[index](data, at)

        return read

    def _record(self, shape: Record) -> Read:
        if shape.name in self._records:
            return self._records[shape.name]

        def read_later(data: bytes, at: int) -> tuple[Any, int]:
            return self._records[shape.name](data, at)

        self._records[shape.name] = read_later  # a record may contain itself
        names = tuple(name for name, _ in shape.fields)
        readers = tuple(self.compile(field) for _, field in shape.fields)
        cls = self._classes.get(shape.name)
        read = _record(names, readers, cls)
        self._records[shape.name] = read
        return read


def _record(names: tuple[str, ...], readers: tuple[Read, ...], cls: type[Any] | None) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        try:
            for reader in readers:
                value, at = reader(data, at)
                values.append(value)
        except Broken as broken:
            broken.path = f".{names[len(values)]}{broken.path}"
            raise
        except IndexError:  # a byte was read after the last one
            raise Broken(CUT, f".{names[len(values)]}") from None
        if cls is None:
            return dict(zip(names, values, strict=True)), at
        try:
            return cls(*values), at
        except (TypeError, ValueError) as error:
            raise Broken(f"{cls.__name__} refuses it ({error})") from error

    return read


def _nullable(reader: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        byte = data[at]
        if byte == 0:
            return None, at + 1
        if byte == 2:
            return reader(data, at + 1)
        index, at = read_long(data, at)
        if index == 0:
            return None, at
        if index == 1:
            return reader(data, at)
        raise Broken(f"a union has no branch {index}")

    return read


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        end = at + size
        if end > len(data):
            raise Broken(CUT)
        return data[at:end], end

    return read


def _symbols(symbols: tuple[str, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise Broken(f"an enum has no symbol {index}")
        return symbols[index], at

    return read


def _map(reader: Read, entry_size_min: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        out: dict[str, Any] = {}
        while True:
            count, at = _block(data, at, entry_size_min)
            if count == 0:
                return out, at
            for _ in range(count):
                key, at = _read_string(data, at)
                try:
                    out[key], at = reader(data, at)
                except Broken as broken:
                    broken.path = f".{key}{broken.path}"
                    raise

    return read


def _block(data: bytes, at: int, size_min: int) -> tuple[int, int]:
    """Read the head of a block of items; a negative count is followed by its size in bytes."""
    if data[at] == 0:
        return 0, at + 1
    count, at = read_long(data, at)
    if count < 0:
        count = -count
        size, at = read_long(data, at)
        if count > LONG_MAX or not 0 <= size <= len(data) - at:
            raise Broken(f"a block says {size} bytes, {len(data) - at} are left")
    left = len(data) - at
    if count > left // size_min:
        raise Broken(f"a block says {count} items, {left} bytes are left")
    return count, at
