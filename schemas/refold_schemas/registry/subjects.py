"""What a schema registry has of the released schemas, and registering what it lacks.

A subject is the full record name (RecordNameStrategy) and FULL_TRANSITIVE. Only people and the
tools that make what is missing call `register`; it does nothing twice.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from refold_schemas.registry.asking import Asking, RegistryAccess
from refold_schemas.registry.confluent import AT_ONCE, read_schema
from refold_schemas.registry.files import FileRegistry

COMPATIBILITY = "FULL_TRANSITIVE"


class Subject(NamedTuple):
    """One record type at the registry.

    `ids`: released version -> its id there, None where it is missing. `foreign`: ids of what else
    stands under the subject. `compatibility`: None where none was set for it. `unfit`: missing
    versions that the registry would refuse.
    """

    name: str
    ids: dict[int, int | None]
    foreign: tuple[int, ...]
    compatibility: str | None
    unfit: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """The released versions that the registry lacks, in order."""
        return tuple(version for version, found in sorted(self.ids.items()) if found is None)


class Did(NamedTuple):
    """One thing that `register` did, or would do: `set` a compatibility, `register` a version.

    `schema_id` is None where nothing was done yet.
    """

    what: str
    name: str
    version: int | None
    schema_id: int | None


async def survey(access: RegistryAccess, files: FileRegistry) -> tuple[Subject, ...]:
    """Look at every subject, in the order of the embedded ids.

    Raises RegistryUnavailable, RegistryClientMissing.
    """
    room = asyncio.Semaphore(AT_ONCE)
    async with Asking(access) as asking:

        async def look(name: str, versions: dict[int, int]) -> Subject:
            async with room:
                return await _look(asking, files, name, versions)

        looking = [asyncio.ensure_future(look(*one)) for one in _released(files).items()]
        try:
            return tuple(await asyncio.gather(*looking))
        finally:
            for one in looking:
                one.cancel()
            await asyncio.gather(*looking, return_exceptions=True)


async def register(
    access: RegistryAccess, files: FileRegistry, *, dry_run: bool = False
) -> AsyncIterator[Did]:
    """Set the compatibility and register what is missing, older versions first.

    One after the other in the order of the embedded ids, so that an empty registry gives out the
    same ids each time. Raises RegistryRefused at the first that is refused; what was registered
    before it stays.
    """
    released = _released(files)
    async with Asking(access) as asking:
        for one in await survey(access, files):
            if one.compatibility != COMPATIBILITY:
                if not dry_run:
                    await asking.set_compatibility(one.name, COMPATIBILITY)
                yield Did("set", one.name, None, None)
            for version in one.missing:
                made = None
                if not dry_run:
                    schema = files.schema(released[one.name][version])
                    made = await asking.register(one.name, schema)
                yield Did("register", one.name, version, made)


def _released(files: FileRegistry) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for schema_id in files.all_ids():
        name, version = files.name_version(schema_id)
        found.setdefault(name, {})[version] = schema_id
    return found


async def _look(
    asking: Asking, files: FileRegistry, name: str, versions: dict[int, int]
) -> Subject:
    there = await asking.versions(name)
    by_fingerprint = {read_schema(one).fingerprint: one.schema_id for one in there}
    pinned = {version: files.fingerprint(one) for version, one in versions.items()}
    ids = {version: by_fingerprint.get(one) for version, one in pinned.items()}
    ours = set(pinned.values())
    foreign = tuple(one for found, one in by_fingerprint.items() if found not in ours)
    unfit = [
        version
        for version, found in ids.items()
        if found is None and there and not await asking.fits(name, files.schema(versions[version]))
    ]
    return Subject(name, ids, foreign, await asking.compatibility(name), tuple(unfit))
