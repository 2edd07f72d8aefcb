"""Messages to framed Avro bytes and back: `0x00`, schema id (4 bytes big-endian), body."""

from collections.abc import Callable, Mapping
from typing import Any

from refold_schemas.codec.classes import CLASSES
from refold_schemas.codec.quick import QuickCompiler
from refold_schemas.codec.reading import CUT, Broken, Read, ReaderCompiler
from refold_schemas.codec.shapes import Record, Shape, shape_of
from refold_schemas.codec.writing import Classes, Unfit, Write, WriterCompiler
from refold_schemas.commands import Command
from refold_schemas.errors import (
    SchemaMismatch,
    UndecodableRecord,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.events import Event
from refold_schemas.events.upcasts import UPCASTS, Upcast
from refold_schemas.registry import Registry
from refold_schemas.snapshots import Checkpoint, RunSnapshot

Message = Event | Command | RunSnapshot | Checkpoint

FRAME_MAGIC = 0
FRAME_SIZE = 5


class Codec:
    """Encodes strictly, decodes safely; compiles each schema at its first use.

    `upcasts` and `classes` are those of this package unless a test brings its own.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        upcasts: Mapping[tuple[str, int], Upcast] = UPCASTS,
        classes: Classes = CLASSES,
    ) -> None:
        self._registry = registry
        self._upcasts = upcasts
        self._classes = classes
        self._names = {cls: name for name, cls in classes.items()}
        self._writers: dict[type, tuple[bytes, Write]] = {}
        self._readers: dict[int, Callable[[bytes], Any]] = {}

    def encode(self, message: Message) -> bytes:
        """Return the framed bytes of a message under the newest version of its schema.

        Raises SchemaMismatch, naming record and field: every field has exactly its type and range,
        there is no field more and none less.
        """
        found = self._writers.get(type(message))
        if found is None:
            found = self._writers[type(message)] = self._writer(type(message))
        frame, write = found
        out = bytearray(frame)
        try:
            write(message, out)
        except Unfit as unfit:
            raise _mismatch(type(message).__name__, unfit) from None
        return bytes(out)

    def decode(self, data: bytes) -> Any:
        """Return the message, in today's class whatever version wrote it.

        Raises UnknownSchemaId or UndecodableRecord; the caller adds the place with `.at`. No
        payload makes it crash, hang, or allocate more than a small multiple of its own size.
        """
        if len(data) < FRAME_SIZE:
            raise UndecodableRecord(f"{len(data)} bytes are less than a frame of {FRAME_SIZE}")
        if data[0] != FRAME_MAGIC:
            raise UndecodableRecord(f"its first byte is {data[0]}, not 0")
        schema_id = int.from_bytes(data[1:FRAME_SIZE], "big")
        read = self._readers.get(schema_id)
        if read is None:
            read = self._readers[schema_id] = self._reader(schema_id)
        return read(data)

    def name_of(self, data: bytes) -> str | None:
        """Return the short record name by the frame's id alone; None if it is unknown."""
        if len(data) < FRAME_SIZE or data[0] != FRAME_MAGIC:
            return None
        try:
            name, _ = self._registry.name_version(int.from_bytes(data[1:FRAME_SIZE], "big"))
        except UnknownSchemaId:
            return None
        return name.rpartition(".")[2]

    def _writer(self, cls: type) -> tuple[bytes, Write]:
        name = self._names.get(cls)
        if name is None:
            raise SchemaMismatch(cls.__qualname__, "", "it is no event, command or snapshot")
        try:
            schema_id = self._registry.id_of(name)
        except UnknownSchemaName:
            raise SchemaMismatch(cls.__qualname__, "", "it is no message of its own") from None
        try:
            write = WriterCompiler(self._classes).compile(
                shape_of(self._registry.schema(schema_id))
            )
        except Unfit as unfit:
            raise _mismatch(cls.__name__, unfit) from None
        return bytes([FRAME_MAGIC]) + schema_id.to_bytes(4, "big"), write

    def _reader(self, schema_id: int) -> Callable[[bytes], Any]:
        name, version = self._registry.name_version(schema_id)
        shape = shape_of(self._registry.schema(schema_id))
        newest_id = self._registry.id_of(name)
        if newest_id == schema_id:
            if name not in self._classes:
                raise UndecodableRecord(f"{name} is no message", schema_id=schema_id)
            return self._whole(shape, schema_id, name)
        return self._old_reader(schema_id, name, version, newest_id)

    def _whole(self, shape: Shape, schema_id: int, name: str) -> Callable[[bytes], Any]:
        checked = _whole(ReaderCompiler(self._classes).compile(shape), schema_id, name)
        if not isinstance(shape, Record):
            return checked
        quick = QuickCompiler(self._classes).compile(shape)

        def read(data: bytes) -> Any:
            try:
                value, end = quick(data, FRAME_SIZE)
                if end == len(data):
                    return value
            except Exception:  # whatever it was, the checked reader finds it and says it
                pass
            return checked(data)

        return read

    def _old_reader(
        self, schema_id: int, name: str, version: int, newest_id: int
    ) -> Callable[[bytes], Any]:
        _, newest = self._registry.name_version(newest_id)
        steps = []
        for step in range(version, newest):
            upcast = self._upcasts.get((name, step))
            if upcast is None:
                raise UndecodableRecord(
                    f"{name} version {version} has no upcast from {step} to {step + 1}",
                    schema_id=schema_id,
                )
            steps.append(upcast)
        old = shape_of(self._registry.schema(schema_id))
        new = shape_of(self._registry.schema(newest_id))
        read_old = _whole(ReaderCompiler({}).compile(old), schema_id, name)
        # through strict bytes: an upcast that forgets a field is caught here, with its name
        write_new = WriterCompiler({}).compile(new)
        read_new = self._whole(new, newest_id, name)

        def read(data: bytes) -> Any:
            record = read_old(data)
            for upcast in steps:
                record = upcast(record)
            out = bytearray(FRAME_SIZE)
            try:
                write_new(record, out)
            except Unfit as unfit:
                raise UndecodableRecord(
                    f"its upcast does not fit version {newest}: {unfit.path[1:]} {unfit.reason}",
                    schema_id=schema_id,
                ) from None
            return read_new(bytes(out))

        return read


def _mismatch(record: str, unfit: Unfit) -> SchemaMismatch:
    return SchemaMismatch(record, unfit.path.removeprefix("."), unfit.reason)


def _whole(
    read: Read, schema_id: int | None, name: str, start: int = FRAME_SIZE
) -> Callable[[bytes], Any]:
    short = name.rpartition(".")[2]

    def whole(data: bytes) -> Any:
        try:
            value, end = read(data, start)
        except Broken as broken:
            raise UndecodableRecord(
                f"{short}{broken.path}: {broken.reason}", schema_id=schema_id
            ) from None
        except IndexError:
            raise UndecodableRecord(f"{short}: {CUT}", schema_id=schema_id) from None
        except RecursionError:
            raise UndecodableRecord(
                f"{short}: it is nested too deep", schema_id=schema_id
            ) from None
        if end != len(data):
            raise UndecodableRecord(
                f"{short}: {len(data) - end} bytes follow its end", schema_id=schema_id
            )
        return value

    return whole


def decode_with(schema: Any, data: bytes) -> Any:
    """Read unframed bytes under a given schema (parsed JSON) to plain data, records as dicts.

    Raises UndecodableRecord as `Codec.decode` does: it is the same reader.

    >>> decode_with({"type": "array", "items": "string"}, bytes([2, 4, 104, 105, 0]))
    ['hi']
    """
    return _whole(ReaderCompiler({}).compile(shape_of(schema)), None, "value", start=0)(data)


def encode_with(schema: Any, record: Any) -> bytes:
    """Write plain data (records as dicts, arrays as lists) under a schema, strictly, unframed.

    Raises SchemaMismatch as `Codec.encode` does: it is the same writer.

    >>> encode_with({"type": "array", "items": "long"}, [3.7])
    Traceback (most recent call last):
        ...
    refold_schemas.errors.records.SchemaMismatch: value[0]: float, not int. Kept: the log as it \
was; nothing of this record was written. Next: this is a fault of the program that made the \
record; report it with this text. (R201)
    """
    out = bytearray()
    try:
        WriterCompiler({}).compile(shape_of(schema))(record, out)
    except Unfit as unfit:
        name = schema.get("name", "value") if isinstance(schema, dict) else "value"
        raise _mismatch(name, unfit) from None
    return bytes(out)
