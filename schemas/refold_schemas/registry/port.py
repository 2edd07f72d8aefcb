"""The port: what a codec needs to know of schemas and their ids."""

from typing import Any, Protocol

Schema = dict[str, Any]
"""An Avro schema as parsed JSON: one record type."""


class Registry(Protocol):
    """Schemas by id, ids by record name. Nothing here registers, and only `learn` asks others.

    What is not known yet but may be known elsewhere raises SchemaUnavailable; `learn` asks there.
    """

    def id_of(self, name: str, version: int | None = None) -> int:
        """Return the id of a record type by its full name; without a version, of the newest.

        Raises UnknownSchemaName.
        """
        ...

    def schema(self, schema_id: int) -> Schema:
        """Return the schema that an id names. Raises UnknownSchemaId, SchemaUnavailable."""
        ...

    def name_version(self, schema_id: int) -> tuple[str, int]:
        """Return the full record name and version of an id.

        Raises UnknownSchemaId, SchemaUnavailable.
        """
        ...

    async def learn(self, schema_id: int) -> None:
        """Return once the id's schema is known here; it is asked for where it is kept.

        Raises UnknownSchemaId where that place says that there is none, SchemaUnavailable where
        it cannot say: not reachable, too slow, broken.
        """
        ...
