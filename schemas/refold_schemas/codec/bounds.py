"""Walks over bytes under their schema and builds nothing: whether they can be read without harm.

fastavro reads what passes here. On its own it would believe a length before it has the bytes, read
an integer that does not end, take index -1 of a union, and ignore what follows the end.
Source: Avro 1.12 specification, binary encoding.
"""

from typing import Any, Final

from refold_schemas.registry.avro import BadSchema, Parsed

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
VARINT_BYTES_MAX: Final = 10
DEPTH_MAX: Final = 100
"""Values inside values; the records of refold need six."""

CUT: Final = "the bytes end in the middle of it"


class Broken(Exception):
    """Bytes that are no encoding of the schema; `path` grows from the inside out."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(reason)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag integer of at most 64 bits: `(number, position after it)`.

    Raises Broken, or IndexError where the bytes end.
    """
    byte = data[at]
    bits, shift, end = byte & 0x7F, 7, at + VARINT_BYTES_MAX
    at += 1
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


def takes_bytes(schema: Any, names: dict[str, Any]) -> bool:
    """Whether each value of a schema takes a byte at least.

    Four bytes could claim any number of items that take none (nulls, empty records), so no reader
    could bound its work; nothing needs them.
    """
    match schema:
        case "null":
            return False
        case str() if schema in names:
            return takes_bytes(names[schema], names)
        case {"type": "fixed", "size": size}:
            return bool(size)
        case {"type": "record" | "error", "fields": fields}:
            return any(takes_bytes(field["type"], names) for field in fields)
        case {"type": "null"}:
            return False
    return True


def check(parsed: Parsed, data: bytes) -> None:
    """Check that `data` is one value of the schema, whole and nothing else.

    Raises Broken, and BadSchema for an array of items that take no bytes. Works in proportion to
    `len(data)` and allocates no more than its longest text.
    """
    try:
        end = _Walk(parsed.names, data).value(parsed.schema, 0, 0)
    except IndexError:  # a byte was read after the last one
        raise Broken(CUT) from None
    if end != len(data):
        raise Broken(f"{len(data) - end} bytes follow its end")


class _Walk:
    """One walk. Each method takes a position and returns the one behind what it walked over."""

    def __init__(self, names: dict[str, Any], data: bytes) -> None:
        self._names, self._data = names, data

    def value(self, schema: Any, at: int, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise Broken("it is nested too deep")
        match schema:
            case "null":
                return at
            case "boolean":
                if self._data[at] > 1:
                    raise Broken(f"{self._data[at]} is neither true nor false")
                return at + 1
            case "int" | "long":
                number, at = read_long(self._data, at)
                if schema == "int" and not INT_MIN <= number <= INT_MAX:
                    raise Broken("an integer has more than 32 bits")
                return at
            case "float" | "double":
                return self._over(4 if schema == "float" else 8, at)
            case "bytes":
                return self._sized(at)[1]
            case "string":
                return self._text(at)[1]
            case str():
                return self.value(self._names[schema], at, depth + 1)
            case list():
                index, at = read_long(self._data, at)
                if not 0 <= index < len(schema):
                    raise Broken(f"a union has no branch {index}")
                return self.value(schema[index], at, depth + 1)
        return self._complex(schema, at, depth)

    def _complex(self, schema: Any, at: int, depth: int) -> int:
        match schema["type"]:
            case "fixed":
                return self._over(schema["size"], at)
            case "enum":
                index, at = read_long(self._data, at)
                if not 0 <= index < len(schema["symbols"]):
                    raise Broken(f"an enum has no symbol {index}")
                return at
            case "array":
                return self._array(schema["items"], at, depth)
            case "map":
                return self._map(schema["values"], at, depth)
            case "record" | "error":
                return self._record(schema["fields"], at, depth)
            case kind:  # {"type": "string"}
                return self.value(kind, at, depth)

    def _record(self, fields: list[dict[str, Any]], at: int, depth: int) -> int:
        for field in fields:
            try:
                at = self.value(field["type"], at, depth + 1)
            except IndexError:
                raise Broken(CUT, f".{field['name']}") from None
            except Broken as broken:
                broken.path = f".{field['name']}{broken.path}"
                raise
        return at

    def _array(self, items: Any, at: int, depth: int) -> int:
        if not takes_bytes(items, self._names):
            raise BadSchema("an array of items that take no bytes")
        done = 0
        while True:
            count, at = self._block(at)
            if count == 0:
                return at
            for _ in range(count):
                try:
                    at = self.value(items, at, depth + 1)
                except Broken as broken:
                    broken.path = f"[{done}]{broken.path}"
                    raise
                done += 1

    def _map(self, values: Any, at: int, depth: int) -> int:
        while True:
            count, at = self._block(at)
            if count == 0:
                return at
            for _ in range(count):
                key, at = self._text(at)
                try:
                    at = self.value(values, at, depth + 1)
                except Broken as broken:
                    broken.path = f".{key}{broken.path}"
                    raise

    def _block(self, at: int) -> tuple[int, int]:
        """Read the head of a block; a negative count is followed by the block's size in bytes."""
        count, at = read_long(self._data, at)
        if count < 0:
            _, _ = self._sized(at)
            count, (_, at) = -count, read_long(self._data, at)
        if count > len(self._data) - at:
            raise Broken(f"a block says {count} items, {len(self._data) - at} bytes are left")
        return count, at

    def _over(self, size: int, at: int) -> int:
        if size > len(self._data) - at:
            raise Broken(CUT)
        return at + size

    def _sized(self, at: int) -> tuple[int, int]:
        size, at = read_long(self._data, at)
        if size < 0:
            raise Broken(f"a length is negative ({size})")
        if size > len(self._data) - at:
            raise Broken(f"a length says {size} bytes, {len(self._data) - at} are left")
        return at, at + size

    def _text(self, at: int) -> tuple[str, int]:
        start, end = self._sized(at)
        try:
            return self._data[start:end].decode(), end
        except UnicodeDecodeError as error:
            raise Broken(f"text is not UTF-8 ({error.reason} at byte {error.start})") from None
