"""The quick way to read a record into its class: generated source, without the checks of `reading`.

A fold reads every record of a log, so this is where its time goes (half of it is saved). The quick
reader believes a length only as far as a slice does: one that is too long ends early, allocates
nothing, and moves the position behind the end of the bytes. Its caller takes the value only if
reading stopped exactly at that end; whatever else happens, the checked reader reads again, and it
alone decides and says what is wrong.
"""

from dataclasses import fields, is_dataclass
from typing import Any

from refold_schemas.codec.reading import Read, ReaderCompiler, read_long
from refold_schemas.codec.shapes import Array, Fixed, Primitive, Record, Shape, Union, item_size_min
from refold_schemas.codec.writing import Classes


class Odd(Exception):
    """Bytes that the quick reader does not expect: rare, or broken."""


class QuickCompiler:
    """Compiles the records of classes; what is neither simple nor a record is read with checks."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._checked = ReaderCompiler(classes)
        self._records: dict[str, Read] = {}

    def compile(self, shape: Record) -> Read:
        """Return a function that reads one record, or raises anything at all."""
        if shape.name not in self._records:
            # a record that contains itself is read with checks from there on
            self._records[shape.name] = self._checked.compile(shape)
            self._records[shape.name] = self._generate(shape, self._classes[shape.name])
        return self._records[shape.name]

    def _generate(self, shape: Record, cls: type[Any]) -> Read:
        names: dict[str, Any] = {"cls": cls, "Odd": Odd, "read_long": read_long}
        lines = ["def read(data, at):"]
        for index, (_, field) in enumerate(shape.fields):
            lines += (f"    {line}" for line in self._field(field, f"v{index}", names))
        lines += (f"    {line}" for line in _construction(cls, len(shape.fields), names))
        exec(compile("\n".join(lines), f"<reader of {shape.name}>", "exec"), names)
        read: Read = names["read"]
        return read

    def _field(self, shape: Shape, to: str, names: dict[str, Any]) -> list[str]:
        match shape:
            case Primitive(kind="string"):
                return [*_LENGTH, f"{to} = data[at:at + n].decode(); at += n"]
            case Primitive(kind="bytes"):
                return [*_LENGTH, f"{to} = data[at:at + n]; at += n"]
            case Fixed(size=size):
                return [f"{to} = data[at:at + {size}]; at += {size}"]
            case Primitive(kind="long"):
                return [
                    "n = data[at]",
                    f"if n < 128: {to} = (n >> 1) ^ -(n & 1); at += 1",
                    f"else: {to}, at = read_long(data, at)",
                ]
            case Primitive(kind="boolean"):
                return ["n = data[at]; at += 1", "if n > 1: raise Odd", f"{to} = n == 1"]
            case Union(branches=(Primitive(kind="null"), other)):
                return [
                    "n = data[at]; at += 1",
                    f"if n == 0: {to} = None",
                    "elif n == 2:",
                    *(f"    {line}" for line in self._field(other, to, names)),
                    "else: raise Odd",
                ]
            case Record(name=name) if name in self._classes:
                names[f"read_{to}"] = self.compile(shape)
            case Array(items=Record(name=name) as items) if name in self._classes:
                names[f"read_{to}"] = self._checked.array(self.compile(items), item_size_min(items))
            case _:
                names[f"read_{to}"] = self._checked.compile(shape)
        return [f"{to}, at = read_{to}(data, at)"]


_LENGTH = [
    "n = data[at]",
    "if n < 128: at += 1",
    "else:",
    "    n, at = read_long(data, at)",
    "    n <<= 1",
    "if n & 1 or n < 0: raise Odd",
    "n >>= 1",
]
"""Read a length into `n`: one even byte, nearly always."""


def _construction(cls: type[Any], count: int, names: dict[str, Any]) -> list[str]:
    """Return the lines that make the object.

    The `__init__` of a frozen dataclass looks `object.__setattr__` up for each field; its slots are
    filled directly where nothing but the fields is to be set.
    """
    values = [f"v{index}" for index in range(count)]
    slots = [vars(cls).get(field.name) for field in fields(cls)] if is_dataclass(cls) else []
    if not all(hasattr(slot, "__set__") for slot in slots) or hasattr(cls, "__post_init__"):
        return [f"return cls({', '.join(values)}), at"]
    names["new"] = object.__new__
    for index, slot in enumerate(slots):
        names[f"set_{index}"] = slot.__set__  # type: ignore[union-attr]
    sets = [f"set_{index}(out, {value})" for index, value in enumerate(values)]
    return ["out = new(cls)", *sets, "return out, at"]
