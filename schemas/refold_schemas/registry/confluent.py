"""The schema registry outside, by Confluent's API, on top of the embedded one.

Ids of the files are always readable. An id of the registry is asked for once (`learn`), kept for
the life of the process, and its fingerprint with it: what a log says must not depend on what the
registry says later, or whether it is there. Nothing here registers.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from refold_schemas.errors import (
    RegistryRefused,
    RegistryUnavailable,
    SchemaChanged,
    SchemasUnregistered,
    SchemaUnavailable,
    UndecodableRecord,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.registry.asking import Asking, Fetched, RegistryAccess
from refold_schemas.registry.avro import BadSchema, fingerprint, parse
from refold_schemas.registry.files import FileRegistry, is_outer
from refold_schemas.registry.port import UNRELEASED, Schema

AT_ONCE = 8
"""Subjects looked at, hence questions, under way at the same time."""
SCHEMA_SIZE_MAX = 1 << 20
"""Characters; a schema of more is not read."""


class Known(NamedTuple):
    """What an id of the registry names. `problem`: why no record can be read with it, or empty."""

    name: str
    version: int
    schema: Schema
    fingerprint: str
    problem: str = ""


class ConfluentRegistry:
    """The files, and what was learnt of a schema registry.

    With `writes`, `ready` looks up the registry's ids of what is to be written, and `id_of` gives
    those from then on; without, records are written under the ids of the files.
    """

    asks = True

    def __init__(
        self, access: RegistryAccess, *, files: FileRegistry | None = None, writes: bool = True
    ) -> None:
        self.access = access
        self.files = files or FileRegistry()
        self.writes = writes
        self._known: dict[int, Known] = {}
        self._written: dict[str, int] = {}
        self._rechecked = 0

    @property
    def url(self) -> str:
        """Where the registry is, without credentials."""
        return self.access.url

    @property
    def known_count(self) -> int:
        """How many ids of the registry are known."""
        return len(self._known)

    def id_of(self, name: str, version: int | None = None) -> int:
        """Return the id of a record type: the registry's for what is written, else the files'."""
        if version is None:
            found = self._written.get(name)
            if found is not None:
                return found
        return self.files.id_of(name, version)

    def schema(self, schema_id: int) -> Schema:
        """Return the schema that an id names."""
        return (
            self._found(schema_id).schema if is_outer(schema_id) else self.files.schema(schema_id)
        )

    def name_version(self, schema_id: int) -> tuple[str, int]:
        """Return the full record name and version of an id."""
        if not is_outer(schema_id):
            return self.files.name_version(schema_id)
        known = self._found(schema_id)
        return known.name, known.version

    async def learn(self, schema_id: int) -> None:
        """Ask the registry for the schema of an id, unless it is known."""
        if not is_outer(schema_id):
            self.files.name_version(schema_id)
            return
        if schema_id in self._known:
            return
        try:
            async with Asking(self.access) as asking:
                fetched = await asking.schema(schema_id)
        except RegistryUnavailable as error:
            raise SchemaUnavailable(schema_id, error.message) from error
        if fetched is None:
            raise UnknownSchemaId(
                f"the schema registry at {self.url} has no schema of that id", schema_id=schema_id
            )
        self._keep(fetched)

    async def ready(self, names: Iterable[str]) -> None:
        """Look up under which ids the registry has the newest version of these record types.

        Names that have no id of their own are parts of others.
        """
        if not self.writes:
            return
        own = {self.files.name_version(one)[0] for one in self.files.all_ids()}
        wanted = [name for name in names if name in own and name not in self._written]
        if not wanted:
            return
        room = asyncio.Semaphore(AT_ONCE)
        async with Asking(self.access) as asking:

            async def look_up(name: str) -> int | None:
                async with room:
                    return await self._look_up(asking, name)

            looking = [asyncio.ensure_future(look_up(name)) for name in wanted]
            try:
                found = await asyncio.gather(*looking)
            finally:
                for one in looking:  # the first that fails speaks for all
                    one.cancel()
                await asyncio.gather(*looking, return_exceptions=True)
        missing = [name for name, one in zip(wanted, found, strict=True) if one is None]
        if missing:
            raise SchemasUnregistered(self.url, missing)
        self._written.update(
            (name, one) for name, one in zip(wanted, found, strict=True) if one is not None
        )

    async def recheck(self) -> None:
        """Ask again for one of the ids that are known, in turn.

        One that is gone from the registry stays known here: nothing that was written is lost.
        """
        if not self._known:
            return
        ids = sorted(self._known)
        schema_id = ids[self._rechecked % len(ids)]
        self._rechecked += 1
        async with Asking(self.access) as asking:
            fetched = await asking.schema(schema_id)
        if fetched is not None:
            self._keep(fetched)

    async def _look_up(self, asking: Asking, name: str) -> int | None:
        """The id of the newest released version, and its schema as the registry shows it."""
        newest = self.files.id_of(name)
        schema_id = await asking.id_of(name, self.files.schema(newest))
        if schema_id is None:
            # A registry may take another description for another schema; readers do not.
            pinned = self.files.fingerprint(newest)
            versions = [
                one for one in await asking.versions(name) if read_schema(one).fingerprint == pinned
            ]
            if not versions:
                return None
            schema_id = versions[-1].schema_id
        if not is_outer(schema_id):
            told = f"its id {schema_id} lies where the ids of refold's own schemas are"
            raise RegistryRefused(self.url, name, told)
        fetched = await asking.schema(schema_id)
        if fetched is None:
            told = f"it gives {name} the id {schema_id} and has no schema of that id"
            raise RegistryUnavailable(self.url, told)
        known = self._keep(fetched)
        _, version = self.files.name_version(newest)
        if (known.name, known.version) != (name, version):
            raise SchemaChanged(
                name,
                version,
                schema_id=schema_id,
                pinned=self.files.fingerprint(newest),
                found=known.fingerprint,
                registry=self.url,
            )
        return schema_id

    def _found(self, schema_id: int) -> Known:
        known = self._known.get(schema_id)
        if known is None:
            raise SchemaUnavailable(schema_id, f"the registry at {self.url} was not asked for it")
        if known.problem:
            raise UndecodableRecord(known.problem, schema_id=schema_id)
        return known

    def _keep(self, fetched: Fetched) -> Known:
        """Pin what an id names. Raises SchemaChanged where it was another schema before."""
        known, pinned = self._identify(fetched), self._known.get(fetched.schema_id)
        if pinned is None:
            self._known[fetched.schema_id] = known
            return known
        if pinned.fingerprint != known.fingerprint:
            raise SchemaChanged(
                pinned.name,
                pinned.version,
                schema_id=fetched.schema_id,
                pinned=pinned.fingerprint,
                found=known.fingerprint,
                registry=self.url,
            )
        return pinned

    def _identify(self, fetched: Fetched) -> Known:
        schema, found, problem = read_schema(fetched)
        if problem:
            return Known("", UNRELEASED, {}, found, problem)
        name = parse(schema).schema["name"]
        version = self.files.version_of(name, found)
        if version is not None:
            schema = self.files.schema(self.files.id_of(name, version))
        else:
            try:
                self.files.id_of(name)
            except UnknownSchemaName:
                problem = f"{name} is no message"
        return Known(name, version or UNRELEASED, schema, found, problem)


class ReadSchema(NamedTuple):
    """What a registry's text is: the schema, its fingerprint, and why it cannot be used if so."""

    schema: Schema
    fingerprint: str
    problem: str


def read_schema(fetched: Fetched) -> ReadSchema:
    """Read what a registry holds: it is as hostile as any input. Never raises."""
    raw = hashlib.sha256(fetched.text.encode("utf-8", "surrogatepass")).hexdigest()
    if fetched.kind != "AVRO":
        return ReadSchema({}, raw, f"its schema is {fetched.kind}, not Avro")
    if fetched.has_references:
        return ReadSchema({}, raw, "its schema refers to others, which no schema of refold does")
    if len(fetched.text) > SCHEMA_SIZE_MAX:
        return ReadSchema({}, raw, f"its schema has {len(fetched.text):,} characters")
    try:
        schema = json.loads(fetched.text)
        if not isinstance(schema, dict) or schema.get("type") != "record":
            return ReadSchema({}, raw, "its schema is no record")
        return ReadSchema(schema, fingerprint(schema), "")
    except (BadSchema, ValueError, RecursionError) as error:
        return ReadSchema({}, raw, f"its schema cannot be read: {str(error)[:200]}")
