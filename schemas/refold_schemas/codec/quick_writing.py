"""The writer of today's records: generated source for values that are exactly what they should be.

Every step writes a record or two, and the strict writer's closures are what it cost most. This one
checks the same (type and range of every field) but does not say what is wrong: whatever it does not
expect it leaves, and the strict writer writes again, or refuses with the field's name.
"""

from dataclasses import fields
from typing import Any, Final

from refold_schemas.codec.bounds import takes_bytes
from refold_schemas.codec.quick import Odd
from refold_schemas.codec.writing import LONG_MAX, LONG_MIN, Classes, Write, varint
from refold_schemas.registry.avro import BadSchema, Parsed


def quick_writer(parsed: Parsed, classes: Classes) -> Write:
    """Return the writer of a record whose name is in `classes`, as those of the records in it.

    Raises BadSchema for a field of a shape that no class has.
    """
    return _Compiler(parsed.names, classes).record(parsed.schema["name"])


def quick_part_writer(parsed: Parsed, classes: Classes, name: str) -> Write:
    """Return the writer of a record that stands inside the record `parsed`; its full name."""
    return _Compiler(parsed.names, classes).record(name)


TEXT_MAX, TEXTS_MAX = 64, 4_096
"""How long a text may be to be kept encoded, and how many are kept: names come again and again."""
_texts: dict[str, bytes] = {}
_some_texts: dict[str, bytes] = {}
"""The same behind the mark that they are not null."""
_SOME: Final = bytes([2])
_SOME_SIZES: Final = tuple(_SOME + varint(size) for size in range(1024))
"""The mark that bytes are not null and how many they are, for nearly all of them."""

USUAL: Final = {"refold.values.Value": ("", 1, "j1", None)}
"""With what nearly every instance of a record begins: written at once where it is just that.

Compared is by identity, so that nothing else can pass for it (1 is no True); a value that
`encode_value` made has these very objects, any other one is written field by field.
"""


def _text(value: str) -> bytes:
    """Encode a text with its length in front of it. Raises ValueError for a lone surrogate."""
    data = value.encode()
    return _keep(_texts, value, varint(len(data)) + data)


def _some_text(value: str) -> bytes:
    """The same behind the mark that it is not null."""
    return _keep(_some_texts, value, _SOME + _text(value))


def _keep(texts: dict[str, bytes], value: str, data: bytes) -> bytes:
    if len(value) <= TEXT_MAX:
        if len(texts) >= TEXTS_MAX:
            texts.clear()  # what comes again is soon here again
        texts[value] = data
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
        shown: dict[str, Any] = {
            "Odd": Odd,
            "varint": varint,
            "texts": _texts,
            "text": _text,
            "some_texts": _some_texts,
            "some_text": _some_text,
            "some_sizes": _SOME_SIZES,
            "some_size_max": len(_SOME_SIZES),
        }
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
        usual = USUAL.get(name, ())
        head: list[str] = []
        for index, field in enumerate(described):
            here = head if index < len(usual) else lines
            here.append(f"{of}_{index} = {of}.{field['name']}")
            here += self._field(field["type"], f"{of}_{index}", shown)
            if index + 1 == len(usual):
                lines += self._usual(described, usual, head, of, shown)
        self._within.pop()
        return lines

    def _usual(
        self,
        described: list[dict[str, Any]],
        usual: tuple[Any, ...],
        head: list[str],
        of: str,
        shown: dict[str, Any],
    ) -> list[str]:
        """Return the lines that write the first fields at once if they are the usual ones.

        `head` writes them one by one, and makes the bytes of the usual ones here.
        """
        lines = ["out = bytearray()"]
        tests: list[str] = []
        for index, (field, value) in enumerate(zip(described, usual, strict=False)):
            usual_at = f"usual_{of}_{index}"
            shown[usual_at] = value
            lines.append(f"{of}_{index} = {usual_at}")
            lines += self._field(field["type"], f"{of}_{index}", shown)
            tests.append(f"{of}.{field['name']} is {usual_at}")
        made = dict(shown)
        exec("\n".join(lines), made)
        return [
            f"if {' and '.join(tests)}: out += {bytes(made['out'])!r}",
            "else:",
            *(f"    {line}" for line in head),
        ]

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
            case ["null", "string"]:
                return [
                    f"if {of} is None: out.append(0)",
                    f"elif type({of}) is not str: raise Odd",
                    "else:",
                    f"    b = some_texts.get({of})",
                    f"    out += some_text({of}) if b is None else b",
                ]
            case ["null", "bytes"]:
                return [
                    f"if {of} is None: out.append(0)",
                    f"elif type({of}) is not bytes: raise Odd",
                    "else:",
                    f"    n = len({of})",
                    "    if n < some_size_max: out += some_sizes[n]",
                    "    else: out.append(2); out += varint(n)",
                    f"    out += {of}",
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
