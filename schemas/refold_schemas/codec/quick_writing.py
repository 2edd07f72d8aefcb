"""The writer of today's records: generated source for values that are exactly what they should be.

Every step writes a record or two, and the strict writer's closures are what it cost most. This one
checks the same (type and range of every field) but does not say what is wrong: whatever it does not
expect it leaves, and the strict writer writes again, or refuses with the field's name. Its pieces
are joined once: a byte array that grows costs a call for each of them.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from refold_schemas.codec.bounds import takes_bytes
from refold_schemas.codec.quick import USUAL, Odd, usual_bytes
from refold_schemas.codec.writing import LONG_MAX, LONG_MIN, Classes, varint
from refold_schemas.registry.avro import BadSchema, Parsed
from refold_schemas.values.generated import generated

QuickWrite = Callable[[Any, bytes], bytes]
"""`(record, what stands in front of it) -> both`. Raises anything where a value does not fit."""


def quick_writer(parsed: Parsed, classes: Classes) -> QuickWrite:
    """Return the writer of a record whose name is in `classes`, as those of the records in it.

    Raises BadSchema for a field of a shape that no class has.
    """
    return _Compiler(parsed.names, classes).record(parsed.schema["name"])


def quick_part_writer(parsed: Parsed, classes: Classes, name: str) -> QuickWrite:
    """Return the writer of a record that stands inside the record `parsed`; its full name."""
    return _Compiler(parsed.names, classes).record(name)


TEXT_MAX, TEXTS_MAX = 64, 4_096
"""How long a text may be to be kept encoded, and how many are kept: names come again and again."""
_texts: dict[str, bytes] = {}
_some_texts: dict[str, bytes] = {}
"""The same behind the mark that they are not null."""
_SOME: Final = bytes([2])
_SIZES: Final = tuple(varint(size) for size in range(1024))
"""Small numbers, and how long nearly all bytes are."""
_SOME_SIZES: Final = tuple(_SOME + size for size in _SIZES)
"""The same behind the mark that something is not null."""
_NULL, _YES = repr(bytes([0])), repr(bytes([1]))
"""In generated source: null, false, the number 0 and the end of an array; and true."""


def _text(value: str) -> bytes:
    """Encode a text with its length in front of it. Raises ValueError for a lone surrogate."""
    data = value.encode()
    return _keep(_texts, value, varint(len(data)) + data)


def _some_text(value: str) -> bytes:
    """The same behind the mark that it is not null."""
    return _keep(_some_texts, value, _SOME + _text(value))


def _some_varint(number: int) -> bytes:
    return _SOME + varint(number)


def _keep(texts: dict[str, bytes], value: str, data: bytes) -> bytes:
    if len(value) <= TEXT_MAX:
        if len(texts) >= TEXTS_MAX:
            texts.clear()  # what comes again is soon here again
        texts[value] = data
    return data


class _Compiler:
    def __init__(self, schemas: dict[str, Any], classes: Classes) -> None:
        self._schemas, self._classes = schemas, classes
        self._records: dict[str, QuickWrite] = {}
        self._within: list[str] = []

    def record(self, name: str) -> QuickWrite:
        if name in self._records:
            return self._records[name]

        def write_later(value: Any, front: bytes) -> bytes:
            return self._records[name](value, front)

        self._records[name] = write_later  # a record may contain itself
        self._records[name] = self._generate(name)
        return self._records[name]

    def _generate(self, name: str) -> QuickWrite:
        shown: dict[str, Any] = {
            "Odd": Odd,
            "join": b"".join,
            "varint": varint,
            "some_varint": _some_varint,
            "texts": _texts,
            "text": _text,
            "some_texts": _some_texts,
            "some_text": _some_text,
            "sizes": _SIZES,
            "some_sizes": _SOME_SIZES,
        }
        within, self._within = self._within, []  # a writer of its own
        lines, pieces = self._body(name, "v", shown)
        self._within = within
        whole = [
            "def write(v, front):",
            *_in(lines),
            f"    return join(({_list('front', *pieces)}))",
        ]
        write: QuickWrite = generated(whole, shown, title=f"<writer of {name}>")
        return write

    def _body(self, name: str, of: str, shown: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the lines that encode the fields of the record in `of`, and their pieces."""
        cls = self._classes[name]
        described = self._schemas[name]["fields"]
        if [field.name for field in fields(cls)] != [field["name"] for field in described]:
            raise BadSchema(f"{cls.__name__} has other fields than {name}")
        shown[f"cls_{of}"] = cls
        lines = [f"if type({of}) is not cls_{of}: raise Odd"]
        self._within.append(name)
        pieces: list[str] = []
        usual_count = len(USUAL.get(name, ()))
        for index, field in enumerate(described):
            if index == usual_count > 0:
                lines, pieces = self._usual(name, lines, pieces, of, shown)
            at = f"{of}_{index}"
            lines.append(f"{at} = {of}.{field['name']}")
            more, its = self._field(field["type"], at, shown)
            lines += more
            pieces += its
        self._within.pop()
        return lines, pieces

    def _usual(
        self, name: str, lines: list[str], pieces: list[str], of: str, shown: dict[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Put the first fields' lines behind a look whether these are the usual ones.

        Compared is by identity, so that nothing else can pass for it (1 is no True); a value that
        `encode_value` made has these very objects, any other one is written field by field.
        """
        first, *each = lines
        tests: list[str] = []
        for index, (field, value) in enumerate(
            zip(self._schemas[name]["fields"], USUAL[name], strict=False)
        ):
            shown[f"usual_{of}_{index}"] = value
            tests.append(f"{of}.{field['name']} is usual_{of}_{index}")
        written = usual_bytes(name, self._schemas)
        head = [
            first,
            f"if {' and '.join(tests)}: {of}_head = {written!r}",
            "else:",
            *_in([*each, f"{of}_head = join(({_list(*pieces)}))"]),
        ]
        return head, [f"{of}_head"]

    def _field(self, schema: Any, of: str, shown: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the lines that encode what is in `of`, and the names of the pieces."""
        match schema:
            case "string":
                return [
                    f"if type({of}) is not str: raise Odd",
                    f"{of} = texts.get({of}) or text({of})",
                ], [of]
            case "bytes":
                return [f"if type({of}) is not bytes: raise Odd", *_size(of)], [f"{of}s", of]
            case "long":
                return [
                    f"if type({of}) is not int: raise Odd",
                    f"if 0 <= {of} < {len(_SIZES)}: {of} = sizes[{of}]",
                    f"elif {LONG_MIN} <= {of} <= {LONG_MAX}: {of} = varint({of})",
                    "else: raise Odd",
                ], [of]
            case "boolean":
                return [
                    f"if {of} is True: {of} = {_YES}",
                    f"elif {of} is False: {of} = {_NULL}",
                    "else: raise Odd",
                ], [of]
            case ["null", "string"]:
                return [
                    f"if {of} is None: {of} = {_NULL}",
                    f"elif type({of}) is not str: raise Odd",
                    f"else: {of} = some_texts.get({of}) or some_text({of})",
                ], [of]
            case ["null", "bytes"]:
                return [
                    f"if {of} is None: {of}s = {_NULL}; {of} = b''",
                    f"elif type({of}) is not bytes: raise Odd",
                    "else:",
                    *_in(_size(of, "some_sizes", "some_varint")),
                ], [f"{of}s", of]
            case ["null", other]:
                lines, pieces = self._field(other, of, shown)
                return [
                    f"if {of} is None: {of} = {_NULL}",
                    "else:",
                    *_in([*lines, f"{of} = join(({_list(str(_SOME), *pieces)}))"]),
                ], [of]
            case {"type": "fixed", "size": size}:
                return [f"if type({of}) is not bytes or len({of}) != {size}: raise Odd"], [of]
            case {"type": "array", "items": items} if takes_bytes(items, self._schemas):
                lines, pieces = self._field(items, f"{of}i", shown)
                return [
                    f"if type({of}) is not tuple: raise Odd",
                    f"if not {of}: {of} = {_NULL}",
                    "else:",
                    f"    {of}l = [varint(len({of}))]",
                    f"    for {of}i in {of}:",
                    *_in(_in([*lines, f"{of}l += ({_list(*pieces)})"])),
                    f"    {of}l.append({_NULL})",
                    f"    {of} = join({of}l)",
                ], [of]
            case {"type": "record", "name": name} if name in self._classes:
                if name not in self._within:
                    return self._body(name, of, shown)
                shown[f"write_{of}"] = self.record(name)  # a record that contains itself
                return [f"{of} = write_{of}({of}, b'')"], [of]
            case str() if schema in self._schemas:
                return self._field(self._schemas[schema], of, shown)
        raise BadSchema(f"no class has a field of the shape {schema}")


def _in(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _list(*pieces: str) -> str:
    return "".join(f"{piece}, " for piece in pieces)


def _size(of: str, kept: str = "sizes", other: str = "varint") -> list[str]:
    """Return the lines that put the encoded length of `of` beside it."""
    return [
        f"n = len({of})",
        f"{of}s = {kept}[n] if n < {len(_SIZES)} else {other}(n)",
    ]
