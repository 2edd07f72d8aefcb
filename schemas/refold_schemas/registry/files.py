"""The embedded registry: the .avsc files of this package under checked-in ids, read when needed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from refold_schemas.errors import (
    RegistryUnreadable,
    SchemaChanged,
    SchemaUnavailable,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.registry.avro import fingerprint
from refold_schemas.registry.port import Schema

PACKAGE = Path(__file__).resolve().parent.parent
IDS_FILE = "registry/ids.json"


ID_MIN = 2_000_000_001
"""The lowest id of the files. Below it lie those of schema registries, which count from 1."""
NO_REGISTRY = "it is an id of a schema registry, and none is set"


def is_outer(schema_id: int) -> bool:
    """Whether the id is one that a schema registry gave out.

    >>> is_outer(11), is_outer(ID_MIN)
    (True, False)
    """
    return schema_id < ID_MIN


class Pinned(NamedTuple):
    """What is checked in of one schema: its id, and the SHA-256 of its canonical form."""

    schema_id: int
    fingerprint: str


class FileRegistry:
    """The schemas that this version of refold was released with.

    `ids.json` holds `{full name: {version: {"id", "fingerprint"}}}`; version N of `refold.events.X`
    is the file `events/avro/X.vN.avsc`. Raises RegistryUnreadable where the two do not fit, and
    SchemaChanged where a file says something else than it did when it was released.

    >>> registry = FileRegistry()
    >>> registry.name_version(registry.id_of("refold.events.StepCompleted", 1))
    ('refold.events.StepCompleted', 1)
    """

    asks = False

    def __init__(self, root: Path = PACKAGE) -> None:
        self._root = root
        self._pinned: dict[str, dict[int, Pinned]] | None = None
        self._names: dict[int, tuple[str, int]] = {}
        self._schemas: dict[int, Schema] = {}

    def id_of(self, name: str, version: int | None = None) -> int:
        """Return the id of a record type by its full name; without a version, of the newest."""
        versions = self._loaded().get(name)
        if versions is None:
            raise UnknownSchemaName(name, version)
        found = versions.get(max(versions) if version is None else version)
        if found is None:
            raise UnknownSchemaName(name, version)
        return found.schema_id

    def schema(self, schema_id: int) -> Schema:
        """Return the schema that an id names; the file is read and checked once."""
        schema = self._schemas.get(schema_id)
        if schema is None:
            name, version = self.name_version(schema_id)
            schema = self._schemas[schema_id] = self._read(name, version)
        return schema

    def name_version(self, schema_id: int) -> tuple[str, int]:
        """Return the full record name and version of an id."""
        self._loaded()
        try:
            return self._names[schema_id]
        except KeyError:
            if is_outer(schema_id):
                raise SchemaUnavailable(schema_id, NO_REGISTRY, mends=False) from None
            raise UnknownSchemaId(
                "this version of refold knows no schema of that id", schema_id=schema_id
            ) from None

    async def learn(self, schema_id: int) -> None:
        """Nothing more is ever learnt of files: raises UnknownSchemaId where they hold none."""
        if is_outer(schema_id):
            raise UnknownSchemaId(NO_REGISTRY, schema_id=schema_id)
        self.name_version(schema_id)

    async def ready(self, names: Iterable[str]) -> None:
        """What is in the files can be written at any time."""

    async def recheck(self) -> None:
        """Each file is checked when it is read."""

    def version_of(self, name: str, fingerprint: str) -> int | None:
        """Return the version of a record type that was released with this fingerprint, if any."""
        versions = self._loaded().get(name, {})
        return next(
            (v for v, pinned in versions.items() if pinned.fingerprint == fingerprint), None
        )

    def fingerprint(self, schema_id: int) -> str:
        """Return the fingerprint that an id was released with: SHA-256 in hexadecimal."""
        name, version = self.name_version(schema_id)
        return self._loaded()[name][version].fingerprint

    def all_ids(self) -> tuple[int, ...]:
        """Return every id, in order: for checks over all of them."""
        self._loaded()
        return tuple(sorted(self._names))

    def files_without_id(self) -> tuple[str, ...]:
        """Return the .avsc files that no id stands for, as paths below the package."""
        named = {
            "{1}/avro/{2}.v{0}.avsc".format(version, *name.split(".")[1:])
            for name, versions in self._loaded().items()
            for version in versions
        }
        there = {str(path.relative_to(self._root)) for path in self._root.glob("*/avro/*.avsc")}
        return tuple(sorted(there - named))

    def _loaded(self) -> dict[str, dict[int, Pinned]]:
        if self._pinned is None:
            path = self._root / IDS_FILE
            try:
                listed = json.loads(path.read_text(encoding="utf-8"))
                pinned = {
                    name: {
                        int(version): Pinned(int(entry["id"]), str(entry["fingerprint"]))
                        for version, entry in versions.items()
                    }
                    for name, versions in listed.items()
                }
            except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
                raise RegistryUnreadable(f"{path}: {type(error).__name__}: {error}") from error
            for name, versions in pinned.items():
                for version, (schema_id, _) in versions.items():
                    if self._names.setdefault(schema_id, (name, version)) != (name, version):
                        raise RegistryUnreadable(f"{path}: id {schema_id} is given twice")
            self._pinned = pinned
        return self._pinned

    def _read(self, full_name: str, version: int) -> Schema:
        _, room, name = full_name.split(".")
        path = self._root / room / "avro" / f"{name}.v{version}.avsc"
        try:
            schema: Schema = json.loads(path.read_text(encoding="utf-8"))
            found = fingerprint(schema)
        except (OSError, ValueError) as error:  # BadSchema is a ValueError
            raise RegistryUnreadable(f"{path}: {type(error).__name__}: {error}") from error
        if f"{schema.get('namespace')}.{schema.get('name')}" != full_name:
            raise RegistryUnreadable(f"{path} does not hold {full_name}")
        schema_id, pinned = self._loaded()[full_name][version]
        if found != pinned:
            raise SchemaChanged(full_name, version, schema_id=schema_id, pinned=pinned, found=found)
        return schema
