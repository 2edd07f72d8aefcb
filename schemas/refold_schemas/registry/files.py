"""The embedded registry: the .avsc files of this package under checked-in ids, read when needed."""

import json
from pathlib import Path

from refold_schemas.errors import RegistryUnreadable, UnknownSchemaId, UnknownSchemaName
from refold_schemas.registry.port import Schema

PACKAGE = Path(__file__).resolve().parent.parent
IDS_FILE = "registry/ids.json"


class FileRegistry:
    """The schemas that this version of refold was released with.

    `ids.json` holds `{full name: {version: id}}`; version N of `refold.events.X` is the file
    `events/avro/X.vN.avsc`. Raises RegistryUnreadable where the two do not fit.

    >>> registry = FileRegistry()
    >>> registry.name_version(registry.id_of("refold.events.StepCompleted", 1))
    ('refold.events.StepCompleted', 1)
    """

    def __init__(self, root: Path = PACKAGE) -> None:
        self._root = root
        self._ids: dict[str, dict[int, int]] | None = None
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
        return found

    def schema(self, schema_id: int) -> Schema:
        """Return the schema that an id names; the file is read once."""
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
            raise UnknownSchemaId(
                "this version of refold knows no schema of that id", schema_id=schema_id
            ) from None

    def all_ids(self) -> tuple[int, ...]:
        """Return every id, in order: for checks over all of them."""
        self._loaded()
        return tuple(sorted(self._names))

    def _loaded(self) -> dict[str, dict[int, int]]:
        if self._ids is None:
            path = self._root / IDS_FILE
            try:
                listed = json.loads(path.read_text(encoding="utf-8"))
                self._ids = {
                    name: {int(version): int(schema_id) for version, schema_id in versions.items()}
                    for name, versions in listed.items()
                }
            except (OSError, ValueError, AttributeError) as error:
                raise RegistryUnreadable(f"{path}: {type(error).__name__}: {error}") from error
            for name, versions in self._ids.items():
                for version, schema_id in versions.items():
                    if self._names.setdefault(schema_id, (name, version)) != (name, version):
                        raise RegistryUnreadable(f"{path}: id {schema_id} is given twice")
        return self._ids

    def _read(self, full_name: str, version: int) -> Schema:
        _, room, name = full_name.split(".")
        path = self._root / room / "avro" / f"{name}.v{version}.avsc"
        try:
            schema: Schema = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RegistryUnreadable(f"{path}: {type(error).__name__}: {error}") from error
        if f"{schema.get('namespace')}.{schema.get('name')}" != full_name:
            raise RegistryUnreadable(f"{path} does not hold {full_name}")
        return schema
