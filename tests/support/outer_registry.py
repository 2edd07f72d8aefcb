"""A schema registry outside, in memory: it passes the suite, and can be away, forget and lie."""

from collections.abc import Iterable

from refold_schemas.errors import (
    RegistryUnavailable,
    SchemaChanged,
    SchemasUnregistered,
    SchemaUnavailable,
    UnknownSchemaId,
)
from refold_schemas.registry import FileRegistry, Schema
from refold_schemas.registry.files import is_outer

URL = "memory://registry"
FILES = FileRegistry()


class Place:
    """Where the ids are given out: from 1 on, in the order of the files."""

    def __init__(self) -> None:
        self.ids = {n: FILES.name_version(one) for n, one in enumerate(FILES.all_ids(), 1)}
        self.away = False
        self.asked = 0

    def id_of(self, name: str) -> int:
        """That of the newest version."""
        return max((version, one) for one, (found, version) in self.ids.items() if found == name)[1]

    def ask(self) -> dict[int, tuple[str, int]]:
        """What it has. Raises RegistryUnavailable while it is away."""
        self.asked += 1
        if self.away:
            raise RegistryUnavailable(URL, "nobody is at home")
        return self.ids


class OuterRegistry:
    """What one process knows of the place."""

    asks = True

    def __init__(self, place: Place) -> None:
        self.place = place
        self._known: dict[int, tuple[str, int]] = {}
        self._written: dict[str, int] = {}

    def id_of(self, name: str, version: int | None = None) -> int:
        if version is None and name in self._written:
            return self._written[name]
        return FILES.id_of(name, version)

    def schema(self, schema_id: int) -> Schema:
        return FILES.schema(FILES.id_of(*self.name_version(schema_id)))

    def name_version(self, schema_id: int) -> tuple[str, int]:
        if not is_outer(schema_id):
            return FILES.name_version(schema_id)
        if schema_id not in self._known:
            raise SchemaUnavailable(schema_id, "nobody was asked for it")
        return self._known[schema_id]

    async def learn(self, schema_id: int) -> None:
        if not is_outer(schema_id):
            FILES.name_version(schema_id)
        elif schema_id not in self._known:
            try:
                found = self.place.ask().get(schema_id)
            except RegistryUnavailable as error:
                raise SchemaUnavailable(schema_id, error.message) from error
            if found is None:
                raise UnknownSchemaId(f"{URL} has none", schema_id=schema_id)
            self._known[schema_id] = found

    async def ready(self, names: Iterable[str]) -> None:
        own = {FILES.name_version(one)[0] for one in FILES.all_ids()}
        wanted = [name for name in names if name in own and name not in self._written]
        if not wanted:
            return
        newest = {FILES.name_version(FILES.id_of(name)): name for name in wanted}
        there: dict[str, int] = {}
        for one, what in self.place.ask().items():
            if what in newest:
                there.setdefault(newest[what], one)
        missing = [name for name in wanted if name not in there]
        if missing:
            raise SchemasUnregistered(URL, missing)
        self._written.update((name, there[name]) for name in wanted)
        self._known.update((there[name], what) for what, name in newest.items())

    async def recheck(self) -> None:
        if not self._known:
            return
        there = self.place.ask()
        for schema_id, (name, version) in self._known.items():
            found = there.get(schema_id, (name, version))
            if found != (name, version):
                prints = (FILES.fingerprint(FILES.id_of(*one)) for one in ((name, version), found))
                pinned, now = prints
                raise SchemaChanged(
                    name, version, schema_id=schema_id, pinned=pinned, found=now, registry=URL
                )
