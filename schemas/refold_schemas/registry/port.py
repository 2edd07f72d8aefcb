"""The port: what a codec needs to know of schemas and their ids."""

from collections.abc import Iterable
from typing import Any, Protocol

Schema = dict[str, Any]
"""An Avro schema as parsed JSON: one record type."""


UNRELEASED = 0
"""The version of a schema that is of the name of ours, but none that this package knows."""


class Registry(Protocol):
    """Schemas by id, ids by record name. Nothing here registers; what is not async asks nobody.

    What is not known yet but may be known elsewhere raises SchemaUnavailable; `learn` asks there.
    """

    @property
    def asks(self) -> bool:
        """Whether there is somebody outside whom `learn`, `ready` and `recheck` ask."""
        ...

    def id_of(self, name: str, version: int | None = None) -> int:
        """Return the id of a record type by its full name; without a version, of the newest.

        Raises UnknownSchemaName.
        """
        ...

    def schema(self, schema_id: int) -> Schema:
        """Return the schema that an id names. Raises UnknownSchemaId, SchemaUnavailable."""
        ...

    def name_version(self, schema_id: int) -> tuple[str, int]:
        """Return the full record name and version of an id; UNRELEASED for a version of others.

        Raises UnknownSchemaId, SchemaUnavailable; UndecodableRecord where the id names something
        that is no Avro record.
        """
        ...

    async def learn(self, schema_id: int) -> None:
        """Return once the id's schema is known here; it is asked for where it is kept.

        Raises UnknownSchemaId where that place says that there is none, SchemaUnavailable where
        it cannot say: not reachable, too slow, broken.
        """
        ...

    async def ready(self, names: Iterable[str]) -> None:
        """Return once records of these full names can be written without asking anybody.

        Raises SchemasUnregistered, naming those that the place lacks where ids are given out;
        RegistryUnavailable where it cannot say.
        """
        ...

    async def recheck(self) -> None:
        """Ask again for one of the schemas that are known, a different one each time.

        Raises SchemaChanged if its id names another one now; RegistryUnavailable.
        """
        ...
