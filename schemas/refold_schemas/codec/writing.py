"""Strict Avro writing of messages: closures compiled once for each schema, which coerce nothing.

fastavro writes null for a missing field, 3 for 3.7, 1 for True, drops a field it does not know and
writes integers outside their type; validating each record before it costs more than writing it.
Here each of these is refused with the field's name. The bytes are fastavro's (tests compare them).
Source: Avro 1.12 specification, binary encoding.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from refold_schemas.codec.bounds import takes_bytes
from refold_schemas.registry.avro import BadSchema, Parsed

Write = Callable[[Any, bytearray], None]
Classes = Mapping[str, type[Any]]
"""Full record name -> the class whose instances are read and written."""

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


class Unfit(Exception):
    """A value that its schema does not take; `path` grows from the inside out."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(reason)


def _varint(number: int) -> bytes:
    bits = (number << 1) ^ (number >> 63)
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


_SMALL: Final = tuple(_varint(number) for number in range(1024))
"""Lengths, counters and small numbers, which is nearly all of them."""


def varint(number: int) -> bytes:
    """Return a 64-bit integer in Avro's zigzag encoding.

    >>> varint(-1), varint(64)
    (b'\\x01', b'\\x80\\x01')
    """
    return _SMALL[number] if 0 <= number < 1024 else _varint(number)


def _write_boolean(value: Any, out: bytearray) -> None:
    if value is True:
        out.append(1)
    elif value is False:
        out.append(0)
    else:
        raise Unfit(f"{_kind(value)}, not bool")


def _write_long(value: Any, out: bytearray) -> None:
    if type(value) is not int:
        raise Unfit(f"{_kind(value)}, not int")
    if 0 <= value < 1024:
        out += _SMALL[value]
    elif LONG_MIN <= value <= LONG_MAX:
        out += _varint(value)
    else:
        raise Unfit("an integer outside 64 bits")


def _write_bytes(value: Any, out: bytearray) -> None:
    if type(value) is not bytes:
        raise Unfit(f"{_kind(value)}, not bytes")
    size = len(value)
    out += _SMALL[size] if size < 1024 else _varint(size)
    out += value


def _write_string(value: Any, out: bytearray) -> None:
    if type(value) is not str:
        raise Unfit(f"{_kind(value)}, not str")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise Unfit(f"text with a lone surrogate at character {error.start}") from None
    size = len(data)
    out += _SMALL[size] if size < 1024 else _varint(size)
    out += data


_PRIMITIVES: dict[str, Write] = {
    "boolean": _write_boolean,
    "long": _write_long,
    "bytes": _write_bytes,
    "string": _write_string,
}


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__qualname__


def strict_writer(parsed: Parsed, classes: Classes) -> Write:
    """Return a function that appends the encoding of an instance, or raises Unfit.

    Raises Unfit where class and schema differ, BadSchema for a shape that no class has
    (`quick_reader` names them).
    """
    return _Compiler(parsed.names, classes).compile(parsed.schema)


class _Compiler:
    def __init__(self, schemas: dict[str, Any], classes: Classes) -> None:
        self._schemas, self._classes = schemas, classes
        self._records: dict[str, Write] = {}

    def compile(self, schema: Any) -> Write:
        match schema:
            case str() if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            case str() if schema in self._schemas:
                return self.compile(self._schemas[schema])
            case ["null", other]:
                return _nullable(self.compile(other))
            case {"type": "fixed", "size": size}:
                return _fixed(size)
            case {"type": "array", "items": items} if takes_bytes(items, self._schemas):
                return _array(self.compile(items))
            case {"type": "record", "name": name, "fields": fields} if name in self._classes:
                return self._record(name, fields)
        raise BadSchema(f"no class has a field of the shape {schema}")

    def _record(self, name: str, fields: list[dict[str, Any]]) -> Write:
        if name in self._records:
            return self._records[name]

        def write_later(value: Any, out: bytearray) -> None:
            self._records[name](value, out)

        self._records[name] = write_later  # a record may contain itself
        writers = [self.compile(field["type"]) for field in fields]
        names = [field["name"] for field in fields]
        self._records[name] = _class_record(name, self._classes[name], names, writers)
        return self._records[name]


def _array(item: Write) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not tuple:
            raise Unfit(f"{_kind(value)}, not tuple")
        if value:
            out += varint(len(value))
            done = 0
            try:
                for one in value:
                    item(one, out)
                    done += 1
            except Unfit as unfit:
                unfit.path = f"[{done}]{unfit.path}"
                raise
        out.append(0)

    return write


def _nullable(writer: Write) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            writer(value, out)

    return write


def _fixed(size: int) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not bytes:
            raise Unfit(f"{_kind(value)}, not bytes")
        if len(value) != size:
            raise Unfit(f"{len(value)} bytes, not {size}")
        out += value

    return write


def _class_record(name: str, cls: type[Any], names: list[str], writers: list[Write]) -> Write:
    held = list(getattr(cls, "__dataclass_fields__", {}))
    if held != names:
        different = sorted(set(held) ^ set(names)) or ["the order of its fields"]
        raise Unfit(f"class {cls.__name__} and schema {name} differ in {', '.join(different)}")
    if len(names) == 1:
        return _single(cls, names[0], writers[0])
    values_of = attrgetter(*names)

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not cls:
            raise Unfit(f"{_kind(value)}, not {cls.__name__}")
        index = -1
        try:
            for index, item in enumerate(values_of(value)):
                writers[index](item, out)
        except Unfit as unfit:
            unfit.path = f".{names[index]}{unfit.path}"
            raise

    return write


def _single(cls: type[Any], name: str, writer: Write) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not cls:
            raise Unfit(f"{_kind(value)}, not {cls.__name__}")
        try:
            writer(getattr(value, name), out)
        except Unfit as unfit:
            unfit.path = f".{name}{unfit.path}"
            raise

    return write
