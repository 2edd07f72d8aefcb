"""A schema registry that is away, slow or empty when a test says so: it injects faults, as the log
in memory does. The schemas that it keeps are those of the package, under ids of its own.
"""

import asyncio
from collections.abc import Iterable

from refold_schemas.codec import Codec
from refold_schemas.errors import SchemaUnavailable, UnknownSchemaId
from refold_schemas.registry import FileRegistry, Schema

FILES = FileRegistry()


class Kept:
    """What the registry service keeps, and how it answers; many processes ask it."""

    def __init__(self) -> None:
        self.schemas: dict[int, tuple[str, int]] = {}
        self.away = False
        self.answer_s = 0.0
        self.asked: list[int] = []

    def register(self, schema_id: int, name: str, version: int = 1) -> None:
        self.schemas[schema_id] = (name, version)

    def codec(self) -> Codec:
        """That of a process which has asked for nothing yet."""
        return Codec(ScriptedRegistry(self))


class ScriptedRegistry:
    """The port, as one process has it: what it has learnt stays known."""

    asks = True

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._known: dict[int, tuple[str, int]] = {}

    def id_of(self, name: str, version: int | None = None) -> int:
        return FILES.id_of(name, version)

    def schema(self, schema_id: int) -> Schema:
        name, version = self.name_version(schema_id)
        return FILES.schema(FILES.id_of(name, version))

    def name_version(self, schema_id: int) -> tuple[str, int]:
        if schema_id in FILES.all_ids():
            return FILES.name_version(schema_id)
        if schema_id not in self._known:
            raise SchemaUnavailable(schema_id, "the registry was not asked for it yet")
        return self._known[schema_id]

    async def learn(self, schema_id: int) -> None:
        if schema_id in FILES.all_ids():
            return
        self._kept.asked.append(schema_id)
        await asyncio.sleep(self._kept.answer_s)
        if self._kept.away:
            raise SchemaUnavailable(schema_id, "the registry refuses connections")
        if schema_id not in self._kept.schemas:
            raise UnknownSchemaId("the registry has no schema of that id", schema_id=schema_id)
        self._known[schema_id] = self._kept.schemas[schema_id]

    async def ready(self, names: Iterable[str]) -> None: ...

    async def recheck(self) -> None: ...
