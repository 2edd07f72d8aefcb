"""The writer of today's records: generated source for values that are exactly what they should be.

Every step writes a record or two, and the strict writer's closures are what it cost most. This one
checks the same (type and range of every field) but does not say what is wrong: whatever it does not
expect it leaves, and the strict writer writes again, or refuses with the field's name.
"""

from dataclasses import fields
from typing import Any

from refold_schemas.codec.bounds import takes_bytes
from refold_schemas.codec.quick import Odd
from refold_schemas.codec.writing import LONG_MAX, LONG_MIN, Classes, Write, varint
from refold_schemas.registry.avro import BadSchema, Parsed


def quick_writer(parsed: Parsed, classes: Classes) -> Write:
    """Return the writer of a record whose name is in `classes`, as those of the records in it.

    Raises BadSchema for a field of a shape that no class has.
    """
    return _Compiler(parsed.names, classes).record(parsed.schema["name"])


TEXT_MAX, TEXTS_MAX = 64, 4_096
"""How long a text may be to be kept encoded, and how many are kept: names come again and again."""
_texts: dict[str, bytes] = {}


def _text(value: str) -> bytes:
    """Encode a text with its length in front of it. Raises ValueError for a lone surrogate."""
    data = value.encode()
    data = varint(len(data)) + data
    if len(value) <= TEXT_MAX:
        if len(_texts) >= TEXTS_MAX:
            _texts.clear()  # what comes again is soon here again
        _texts[value] = data
    return data


class _Compiler:
    def __init__(self, schemas: dict[str, Any], classes: Classes) -> None:
        self._schemas, self._classes = schemas, classes
        self._records: dict[str, Write] = {}
        self._within: list[str] = []

    def record(self, name: str) -> Write:
        if name in self._records:
            return self._records[name]

        def write_later(value: Any, out: bytearray) -> None:
            self._records[name](value, out)

        self._records[name] = write_later  # a record may contain itself
        self._records[name] = self._generate(name)
        return self._records[name]

    def _generate(self, name: str) -> Write:
        shown: dict[str, Any] = {"Odd": Odd, "varint": varint, "texts": _texts, "text": _text}
        within, self._within = self._within, []  # a writer of its own
        lines = ["def write(v, out):", *(f"    {line}" for line in self._body(name, "v", shown))]
        self._within = within
        exec(compile("\n".join(lines), f"<writer of {name}>", "exec"), shown)
        write: Write = shown["write"]
        return write

    def _body(self, name: str, of: str, shown: dict[str, Any]) -> list[str]:
        """Return the lines that write the fields of the record in `of`."""
        cls = self._classes[name]
        described = self._schemas[name]["fields"]
        if [field.name for field in fields(cls)] != [field["name"] for field in described]:
            raise BadSchema(f"{cls.__name__} has other fields than {name}")
        shown[f"cls_{of}"] = cls
        lines = [f"if type({of}) is not cls_{of}: raise Odd"]
        self._within.append(name)
        for index, field in enumerate(described):
            lines.append(f"{of}_{index} = {of}.{field['name']}")
            lines += self._field(field["type"], f"{of}_{index}", shown)
        self._within.pop()
        return lines

    def _field(self, schema: Any, of: str, shown: dict[str, Any]) -> list[str]:
        match schema:
            case "string":
                return [
                    f"if type({of}) is not str: raise Odd",
                    f"b = texts.get({of})",
                    f"out += text({of}) if b is None else b",
                ]
            case "bytes":
                return [f"if type({of}) is not bytes: raise Odd", *_length(of), f"out += {of}"]
            case "long":
                return [
                    f"if type({of}) is not int: raise Odd",
                    f"if 0 <= {of} < 64: out.append({of} << 1)",
                    f"elif {LONG_MIN} <= {of} <= {LONG_MAX}: out += varint({of})",
                    "else: raise Odd",
                ]
            case "boolean":
                return [
                    f"if {of} is True: out.append(1)",
                    f"elif {of} is False: out.append(0)",
                    "else: raise Odd",
                ]
            case ["null", other]:
                return [
                    f"if {of} is None: out.append(0)",
                    "else:",
                    "    out.append(2)",
                    *(f"    {line}" for line in self._field(other, of, shown)),
                ]
            case {"type": "fixed", "size": size}:
                return [
                    f"if type({of}) is not bytes or len({of}) != {size}: raise Odd",
                    f"out += {of}",
                ]
            case {"type": "array", "items": items} if takes_bytes(items, self._schemas):
                return [
                    f"if type({of}) is not tuple: raise Odd",
                    f"if {of}:",
                    *(f"    {line}" for line in _length(of)),
                    f"    for {of}i in {of}:",
                    *(f"        {line}" for line in self._field(items, f"{of}i", shown)),
                    "out.append(0)",
                ]
            case {"type": "record", "name": name} if name in self._classes:
                if name not in self._within:
                    return self._body(name, of, shown)
                shown[f"write_{of}"] = self.record(name)  # a record that contains itself
                return [f"write_{of}({of}, out)"]
            case str() if schema in self._schemas:
                return self._field(self._schemas[schema], of, shown)
        raise BadSchema(f"no class has a field of the shape {schema}")


def _length(of: str) -> list[str]:
    """Return the lines that write how long `of` is: one byte, nearly always."""
    return [
        f"n = len({of})",
        "if n < 64: out.append(n << 1)",
        "else: out += varint(n)",
    ]
