"""The reader of today's records: generated source that fills the classes without checks.

A fold reads every record of a log, so this is where its time goes; fastavro and a class built from
its dict take several times as long. The quick reader believes a length only as far as a slice
does: one that is too long ends early, allocates nothing, and moves the position behind the end of
the bytes. Its caller takes the value only if reading stopped exactly at that end; whatever else
happens, the checked way (`bounds`, then fastavro) reads again, and it alone decides and says what
is wrong.
"""

from dataclasses import fields, is_dataclass
from typing import Any, Final, Protocol

from refold_schemas.codec.bounds import read_long, takes_bytes
from refold_schemas.codec.writing import Classes, strict_writer
from refold_schemas.registry.avro import BadSchema, Parsed
from refold_schemas.values.frozen import blank_of
from refold_schemas.values.generated import generated


class Read(Protocol):
    """`(data, position) -> (value, position after it)`."""

    def __call__(self, data: bytes, at: int) -> tuple[Any, int]:
        """Read one record, or raise anything at all."""
        ...


class Odd(Exception):
    """Bytes that the quick reader does not expect: rare, or broken."""


USUAL: Final = {"refold.values.Value": ("", 1, "j1", None)}
"""With what nearly every instance of a record begins: read and written at once where it is that."""


def usual_bytes(name: str, schemas: dict[str, Any]) -> bytes:
    """The encoding of the usual fields of a record; none where it has none."""
    written = bytearray()
    for field, value in zip(schemas[name]["fields"], USUAL.get(name, ()), strict=False):
        strict_writer(Parsed(field["type"], schemas), {})(value, written)
    return bytes(written)


def quick_reader(parsed: Parsed, classes: Classes) -> Read:
    """Return the reader of a record whose name is in `classes`, as those of the records in it.

    Raises BadSchema for a field of a shape that no class has (text, bytes, fixed, long, boolean,
    records, arrays, and each of these or null).
    """
    return _Compiler(parsed.names, classes).record(parsed.schema["name"])


class _Compiler:
    def __init__(self, schemas: dict[str, Any], classes: Classes) -> None:
        self._schemas, self._classes = schemas, classes
        self._records: dict[str, Read] = {}

    def record(self, name: str) -> Read:
        if name in self._records:
            return self._records[name]

        def read_later(data: bytes, at: int) -> tuple[Any, int]:
            return self._records[name](data, at)

        self._records[name] = read_later  # a record may contain itself
        self._records[name] = self._generate(name)
        return self._records[name]

    def _generate(self, name: str) -> Read:
        cls = self._classes[name]
        usual = USUAL.get(name, ())
        shown: dict[str, Any] = {"cls": cls, "Odd": Odd, "read_long": read_long, "usual": usual}
        lines = ["def read(data, at):"]
        described = self._schemas[name]["fields"]
        head: list[str] = []
        for index, field in enumerate(described):
            here = head if index < len(usual) else lines
            here += (f"    {line}" for line in self._field(field["type"], f"v{index}", shown))
            if index + 1 == len(usual):
                lines += self._usual(name, head)
        names = [field["name"] for field in described]
        lines += (f"    {line}" for line in _construction(cls, names, shown))
        read: Read = generated(lines, shown, title=f"<reader of {name}>")
        return read

    def _usual(self, name: str, head: list[str]) -> list[str]:
        """Return the lines that read the first fields at once, or as `head` does it."""
        written = usual_bytes(name, self._schemas)
        values = ", ".join(f"v{index}" for index in range(len(USUAL[name])))
        return [
            f"    if data.startswith({written!r}, at):",
            f"        {values} = usual; at += {len(written)}",
            "    else:",
            *(f"    {line}" for line in head),
        ]

    def _field(self, schema: Any, to: str, shown: dict[str, Any]) -> list[str]:
        match schema:
            case "string":
                return [*_LENGTH, f"{to} = data[at:at + n].decode(); at += n"]
            case "bytes":
                return [*_LENGTH, f"{to} = data[at:at + n]; at += n"]
            case "long":
                return [*_number("n"), f"{to} = n"]
            case "boolean":
                return ["n = data[at]; at += 1", "if n > 1: raise Odd", f"{to} = n == 1"]
            case ["null", other]:
                return [
                    "n = data[at]; at += 1",
                    f"if n == 0: {to} = None",
                    "elif n == 2:",
                    *(f"    {line}" for line in self._field(other, to, shown)),
                    "else: raise Odd",
                ]
            case {"type": "fixed", "size": size}:
                return [f"{to} = data[at:at + {size}]; at += {size}"]
            case {"type": "array", "items": items} if takes_bytes(items, self._schemas):
                return self._array(items, to, shown)
            case {"type": "record", "name": name} if name in self._classes:
                shown[f"read_{to}"] = self.record(name)
                return [f"{to}, at = read_{to}(data, at)"]
            case str() if schema in self._schemas:
                return self._field(self._schemas[schema], to, shown)
        raise BadSchema(f"no class has a field of the shape {schema}")

    def _array(self, items: Any, to: str, shown: dict[str, Any]) -> list[str]:
        return [
            f"{to}s = []",
            "while True:",
            *(f"    {line}" for line in _number("n")),
            "    if n == 0: break",
            "    if n < 0 or n > len(data) - at: raise Odd",
            "    for _ in range(n):",
            *(f"        {line}" for line in self._field(items, f"{to}i", shown)),
            f"        {to}s.append({to}i)",
            f"{to} = tuple({to}s)",
        ]


def _number(to: str) -> list[str]:
    """Return the lines that read an integer: one byte, nearly always."""
    return [
        f"{to} = data[at]",
        f"if {to} < 128: {to} = ({to} >> 1) ^ -({to} & 1); at += 1",
        f"else: {to}, at = read_long(data, at)",
    ]


_LENGTH: Final = [
    "n = data[at]",
    "if n < 128: at += 1",
    "else:",
    "    n, at = read_long(data, at)",
    "    n <<= 1",
    "if n & 1 or n < 0: raise Odd",
    "n >>= 1",
]
"""Read a length into `n`: one even byte, nearly always."""


def _construction(cls: type[Any], names: list[str], shown: dict[str, Any]) -> list[str]:
    """Return the lines that make the object: of a class of the log, filled before it is guarded."""
    blank = blank_of(cls)
    held = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    if blank is None or held != names:
        return [f"return cls({', '.join(f'v{index}' for index in range(len(names)))}), at"]
    shown["blank"] = blank
    sets = [f"out.{name} = v{index}" for index, name in enumerate(names)]
    return ["out = blank()", *sets, "out.__class__ = cls", "return out, at"]
