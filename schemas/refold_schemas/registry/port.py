"""The port: what a codec needs to know of schemas and their ids."""

from typing import Any, Protocol

Schema = dict[str, Any]
"""An Avro schema as parsed JSON: one record type."""


class Registry(Protocol):
    """Schemas by id and ids by record name. Nothing here registers: released ids are checked in."""

    def id_of(self, name: str, version: int | None = None) -> int:
        """Return the id of a record type by its full name; without a version, of the newest.

        Raises UnknownSchemaName.
        """
        ...

    def schema(self, schema_id: int) -> Schema:
        """Return the schema that an id names. Raises UnknownSchemaId."""
        ...

    def name_version(self, schema_id: int) -> tuple[str, int]:
        """Return the full record name and version of an id. Raises UnknownSchemaId."""
        ...
