"""Messages to framed Avro bytes and back: `0x00`, schema id (4 bytes big-endian), body."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from refold_schemas.codec import resolving
from refold_schemas.codec.bounds import Broken
from refold_schemas.codec.classes import CLASSES
from refold_schemas.codec.quick import quick_reader
from refold_schemas.codec.quick_writing import QuickWrite, quick_part_writer, quick_writer
from refold_schemas.codec.resolving import Unresolved
from refold_schemas.codec.writing import Classes, Unfit, Write, strict_writer
from refold_schemas.commands import Command
from refold_schemas.errors import (
    SchemaMismatch,
    SchemaUnavailable,
    UndecodableRecord,
    UnknownSchemaName,
)
from refold_schemas.events import Event
from refold_schemas.events.upcasts import UPCASTS, Upcast
from refold_schemas.registry import UNRELEASED, Registry
from refold_schemas.registry.avro import Parsed, parse
from refold_schemas.snapshots import Archived, Checkpoint, RunSnapshot, RunSnapshotPart

Message = Event | Command | RunSnapshot | RunSnapshotPart | Checkpoint | Archived

FRAME_MAGIC: Final = 0
FRAME_SIZE: Final = 5


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
        self._writers: dict[type, tuple[bytes, QuickWrite, Write]] = {}
        self._readers: dict[int, Callable[[bytes], Any]] = {}

    def encode(self, message: Message) -> bytes:
        """Return the framed bytes of a message under the newest version of its schema.

        Raises SchemaMismatch, naming record and field: every field has exactly its type and range,
        there is no field more and none less.
        """
        found = self._writers.get(type(message))
        if found is None:
            found = self._writers[type(message)] = self._writer(type(message))
        frame, quick, strict = found
        try:
            return quick(message, frame)
        except Exception:  # whatever it was, the strict writer finds it and says it
            out = bytearray(frame)
        try:
            strict(message, out)
        except Unfit as unfit:
            raise _mismatch(type(message).__name__, unfit) from None
        return bytes(out)

    def part_writer(self, whole: type, part: type) -> QuickWrite:
        """Return the writer of a record that stands inside messages of the class `whole`, unframed.

        For whoever makes many messages that differ in one such record alone. It raises, whatever
        it is, where a value does not fit; `encode` of the whole message says why.
        """
        schema_id = self._registry.id_of(self._names[whole])
        parsed = parse(self._registry.schema(schema_id))
        return quick_part_writer(parsed, self._classes, self._names[part])

    def decode(self, data: bytes) -> Any:
        """Return the message, in today's class whatever version wrote it.

        Raises UnknownSchemaId or UndecodableRecord; the caller adds the place with `.at`. Raises
        SchemaUnavailable where the registry has to be asked first (`learn`). No payload makes it
        crash, hang, or allocate more than a small multiple of its own size.
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

    async def learn(self, schema_id: int) -> None:
        """Ask the registry for a schema that `decode` did not know. Raises as `Registry.learn`."""
        await self._registry.learn(schema_id)

    async def ready(self, *kinds: type) -> None:
        """Return once messages of these classes, or of all, can be encoded without asking.

        Raises as `Registry.ready`. Whatever was encoded before has the ids of the files.
        """
        await self._registry.ready(
            [name for cls, name in self._names.items() if not kinds or cls in kinds]
        )
        if self._registry.asks:  # else its ids are those of the files, before and after
            self._writers.clear()

    @property
    def asks(self) -> bool:
        """Whether there is a registry outside that may be asked."""
        return self._registry.asks

    async def recheck(self) -> None:
        """Ask again for one of the schemas that are known. Raises as `Registry.recheck`."""
        await self._registry.recheck()

    def name_of(self, data: bytes, *, strict: bool = False) -> str | None:
        """Return the short record name by the frame's id alone; None if it is unknown.

        With `strict` raises SchemaUnavailable where the registry has to be asked first.
        """
        if len(data) < FRAME_SIZE or data[0] != FRAME_MAGIC:
            return None
        try:
            name, _ = self._registry.name_version(int.from_bytes(data[1:FRAME_SIZE], "big"))
        except UndecodableRecord:  # an unknown id is one
            return None
        except SchemaUnavailable:
            if strict:
                raise
            return None
        return name.rpartition(".")[2]

    def _writer(self, cls: type) -> tuple[bytes, QuickWrite, Write]:
        name = self._names.get(cls)
        if name is None:
            raise SchemaMismatch(cls.__qualname__, "", "it is no event, command or snapshot")
        try:
            schema_id = self._registry.id_of(name)
        except UnknownSchemaName:
            raise SchemaMismatch(cls.__qualname__, "", "it is no message of its own") from None
        try:
            parsed = parse(self._registry.schema(schema_id))
            strict = strict_writer(parsed, self._classes)
            quick = quick_writer(parsed, self._classes)
        except Unfit as unfit:
            raise _mismatch(cls.__name__, unfit) from None
        return bytes([FRAME_MAGIC]) + schema_id.to_bytes(4, "big"), quick, strict

    def _reader(self, schema_id: int) -> Callable[[bytes], Any]:
        name, version = self._registry.name_version(schema_id)
        if name not in self._classes:
            raise UndecodableRecord(f"{name} is no message", schema_id=schema_id)
        newest_id = self._registry.id_of(name)
        newest = self._registry.name_version(newest_id)[1]
        ours = parse(self._registry.schema(newest_id))
        quick = quick_reader(ours, self._classes)
        if version == UNRELEASED:  # a newer writer's, or somebody else's: as far as Avro resolves
            theirs = parse(self._registry.schema(schema_id))
            hops: tuple[_Hop, ...] = (_Hop(theirs, ours, None, ours, version, newest),)
        else:
            hops = tuple(self._hops(name, version, newest))

        def read_checked(data: bytes) -> Any:
            body = data[FRAME_SIZE:]
            try:
                for hop in hops:
                    body = hop.take(body)
            except (Broken, Unresolved) as error:
                where = getattr(error, "path", "")
                raise UndecodableRecord(
                    f"{name.rpartition('.')[2]}{where}: {error}", schema_id=schema_id
                ) from None
            try:
                return quick(body, 0)[0]
            except (TypeError, ValueError) as fault:
                raise UndecodableRecord(
                    f"{self._classes[name].__name__} refuses it ({fault})", schema_id=schema_id
                ) from fault

        def read(data: bytes) -> Any:
            try:
                value, end = quick(data, FRAME_SIZE)
                if end == len(data):
                    return value
            except Exception:  # whatever it was, the checked way finds it and says it
                pass
            return read_checked(data)

        return read if version == newest else read_checked

    def _hops(self, name: str, version: int, newest: int) -> Iterator["_Hop"]:
        def schema(number: int) -> Parsed:
            return parse(self._registry.schema(self._registry.id_of(name, number)))

        while True:
            steps = (one for one in range(version, newest) if (name, one) in self._upcasts)
            reached = next(steps, newest)
            writer = schema(version)
            reader = writer if reached == version else schema(reached)
            upcast = self._upcasts.get((name, reached))
            if upcast is None:
                yield _Hop(writer, reader, None, reader, version, reached)
                return
            version = reached + 1
            yield _Hop(writer, reader, upcast, schema(version), reached, version)
            if version == newest:
                return


class _Hop(NamedTuple):
    """From the bytes of one version to those of a later one: Avro's resolution, then an upcast.

    Versions without an upcast between them are one hop: a new field has its schema's default.
    """

    writer: Parsed
    reader: Parsed
    upcast: Callable[[Any], Any] | None  # what it makes is checked, whatever its type promises
    after: Parsed
    version: int
    version_after: int

    def take(self, body: bytes) -> bytes:
        """Raises Broken or Unresolved. What comes out fits `after` exactly, in plain encoding."""
        record = resolving.read(body, self.writer, self.reader)
        if self.upcast is None:
            return resolving.write(record, self.after)
        step = f"its upcast from version {self.version} to {self.version_after}"
        try:
            record = self.upcast(record)
        except Exception as error:  # a fault of the upcast; the record stays as it is in the log
            raise Unresolved(f"{step} fails: {type(error).__name__}: {error}") from error
        try:
            return resolving.write(record, self.after)
        except Unresolved as fault:
            raise Unresolved(f"{step} does not fit: {fault}") from fault


def _mismatch(record: str, unfit: Unfit) -> SchemaMismatch:
    return SchemaMismatch(record, unfit.path.removeprefix("."), unfit.reason)


def decode_with(schema: Any, data: bytes) -> Any:
    """Read unframed bytes under a given schema (parsed JSON) to plain data, records as dicts.

    Raises UndecodableRecord for whatever is no encoding of one value, whole and nothing else, as
    `Codec.decode` does; BadSchema.

    >>> decode_with({"type": "array", "items": "string"}, bytes([2, 4, 104, 105, 0]))
    ['hi']
    """
    parsed = parse(schema)
    try:
        return resolving.read(data, parsed, parsed)
    except (Broken, Unresolved) as error:
        raise UndecodableRecord(f"value{getattr(error, 'path', '')}: {error}") from None
