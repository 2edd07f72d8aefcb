"""Errors about records of the log: what does not fit its schema, what cannot be decoded."""

from typing import ClassVar, Self

from refold_schemas.errors.base import RefoldError


class SchemaMismatch(RefoldError, ValueError):
    """A record does not fit its schema exactly, so nothing was written.

    `record` is the record's name, `field` the path in it (`result.body`), `reason` what is wrong.
    """

    code: ClassVar[str] = "R201"
    exit_code: ClassVar[int] = 1

    def __init__(self, record: str, field: str, reason: str) -> None:
        self.record, self.field, self.reason = record, field, reason
        super().__init__(
            f"{record}{'.' if field[:1].isidentifier() else ''}{field}: {reason}",
            kept="the log as it was; nothing of this record was written",
            next="this is a fault of the program that made the record; report it with this text",
        )


class UndecodableRecord(RefoldError, ValueError):
    """Bytes in the log are not a record that this code can read.

    `reason` says what is wrong with them; `schema_id` is None where the frame holds none.
    `topic`, `partition` and `offset` are set by `at`, since only the reader of a log knows them.
    """

    code: ClassVar[str] = "R202"
    exit_code: ClassVar[int] = 1
    next_hint: ClassVar[str] = "refold history shows the run; see the page of this code"

    def __init__(
        self,
        reason: str,
        *,
        schema_id: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        self.reason, self.schema_id = reason, schema_id
        self.topic, self.partition, self.offset = topic, partition, offset
        where = "" if partition is None else f" at {topic} partition {partition} offset {offset}"
        named = "" if schema_id is None else f" (schema id {schema_id})"
        super().__init__(
            f"undecodable record{where}{named}: {reason}",
            kept="its bytes, unchanged in the log",
            next=self.next_hint,
        )

    def at(self, topic: str, partition: int, offset: int) -> Self:
        """Return the same error with the place of the record in it."""
        return type(self)(
            self.reason,
            schema_id=self.schema_id,
            topic=topic,
            partition=partition,
            offset=offset,
        )


class UnknownSchemaId(UndecodableRecord):
    """The record names a schema id unknown to this registry: most likely a newer writer."""

    code: ClassVar[str] = "R203"
    exit_code: ClassVar[int] = 3
    next_hint: ClassVar[str] = "read it with the version of refold that wrote it, or a newer one"


class HeaderUnreadable(RefoldError, ValueError):
    """The record header `refold` is absent, cut, or of a layout that this code does not know."""

    code: ClassVar[str] = "R204"
    exit_code: ClassVar[int] = 1

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the record header refold cannot be read: {reason}",
            kept="the record, unchanged in the log; it counts for no claim",
            next="if refold wrote it, read it with that version; if not, find out what writes here",
        )


class RegistryUnreadable(RefoldError):
    """The checked-in schemas do not hold together: an id without a file, or an id given twice."""

    code: ClassVar[str] = "R205"
    exit_code: ClassVar[int] = 4

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the embedded schema registry cannot be read: {reason}",
            kept="the log; nothing was read or written",
            next="install refold again; its schema files are part of the package",
        )


class SchemaChanged(RefoldError):
    """An id names a schema that differs from the one released under it, so neither is believed.

    Fingerprints are SHA-256 of the parsing canonical form: descriptions may change, fields may not.
    """

    code: ClassVar[str] = "R207"
    exit_code: ClassVar[int] = 4

    def __init__(
        self,
        name: str,
        version: int,
        *,
        schema_id: int,
        pinned: str,
        found: str,
        registry: str | None = None,
    ) -> None:
        """`registry`: the URL of the one outside, where the id is not one of the package's own."""
        self.name, self.version, self.schema_id = name, version, schema_id
        self.pinned, self.found, self.registry = pinned, found, registry
        kept = "the log; no record was read or written under the changed schema"
        if registry is None:
            super().__init__(
                f"schema id {schema_id}, {name} version {version}, has changed: it was released "
                f"with fingerprint {pinned}, what is there has {found}",
                kept=kept,
                next="put the released schema back (install refold again); a new shape is a new "
                "version with an id of its own",
            )
        else:
            super().__init__(
                f"schema id {schema_id}, known as {name}, has changed in the schema registry at "
                f"{registry}: its fingerprint was {pinned}, what is there has {found}",
                kept=kept,
                next="bring back the registry that this namespace was written with; an id never "
                "names another schema",
            )


class SchemaUnavailable(RefoldError):
    """The schema of an id is not known here yet: the registry has not been asked, or is away.

    It says nothing of the record, which may be as good as any: *unknown*, not undecodable.
    """

    code: ClassVar[str] = "R208"
    exit_code: ClassVar[int] = 4

    def __init__(self, schema_id: int, reason: str, *, mends: bool = True) -> None:
        """`mends`: whether waiting may help; not where the registry was asked, or none is set."""
        self.schema_id, self.reason, self.mends = schema_id, reason, mends
        super().__init__(
            f"the schema of id {schema_id} is not known here: {reason}",
            kept="the record, unchanged in the log; it waits and was not judged",
            next="see that the schema registry answers; whatever waits goes on by itself then"
            if mends
            else "if the log is written with a schema registry, set REFOLD_REGISTRY_URL to that "
            "one; if none was ever used, another version of refold, or another program, wrote the "
            "record: read the log with the version that did",
        )


class UnknownSchemaName(RefoldError, LookupError):
    """The registry has no schema of this record name, or not of this version."""

    code: ClassVar[str] = "R206"
    exit_code: ClassVar[int] = 1

    def __init__(self, name: str, version: int | None) -> None:
        self.name, self.version = name, version
        super().__init__(
            f"the registry knows no {name}" + ("" if version is None else f" version {version}"),
            kept="the log as it was; nothing was written",
            next="register the schema first; programs never do it on their own",
        )
