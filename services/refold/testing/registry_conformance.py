"""The contract of the Registry port as checks, which every adapter passes and broken ones do not.

Each check is a plain async function of a `MakeRegistry`: called, it gives a registry that knows
nothing yet, as in a process that has just started. The place behind it (if there is one) holds all
released schemas and may hold more. `RegistryConformance` runs the checks under pytest.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from refold_schemas.codec import Codec
from refold_schemas.errors import (
    SchemaUnavailable,
    UndecodableRecord,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.events import TimerFired
from refold_schemas.registry import FileRegistry, Registry, fingerprint

CHECK_TIMEOUT_S = 120.0
NOBODYS_ID = 1_999_999_999
"""An id of the range of registries that none has given out."""
NAME = "refold.events.TimerFired"
MESSAGE = TimerFired("sleep#1", 3)

MakeRegistry = Callable[[], Registry]
Check = Callable[[MakeRegistry], Awaitable[None]]
CHECKS: list[Check] = []


def _check(check: Check) -> Check:
    CHECKS.append(check)
    return check


async def run_check(check: Check, make: MakeRegistry) -> None:
    """Run one check within `CHECK_TIMEOUT_S`. One that fails raises AssertionError, or more."""
    async with asyncio.timeout(CHECK_TIMEOUT_S):
        await check(make)


class RegistryConformance:
    """Base of an adapter's test class: override `make_registry`."""

    @pytest.fixture
    def make_registry(self) -> MakeRegistry:
        """Gives registries that know nothing yet."""
        raise NotImplementedError("an adapter's test class provides the fixture `make_registry`")

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conforms(self, check: Check, make_registry: MakeRegistry) -> None:
        """One check of the suite."""
        asyncio.run(run_check(check, make_registry))


@_check
async def released_schemas_are_known_without_asking(make: MakeRegistry) -> None:
    """Whatever is outside: a log under the package's own ids is readable at once."""
    registry, files = make(), FileRegistry()
    for schema_id in files.all_ids():
        assert registry.name_version(schema_id) == files.name_version(schema_id)
        assert fingerprint(registry.schema(schema_id)) == files.fingerprint(schema_id)
        await registry.learn(schema_id)


@_check
async def ids_follow_from_names(make: MakeRegistry) -> None:
    """By name the newest version, by version that one; what is not there is said."""
    registry, files = make(), FileRegistry()
    for schema_id in files.all_ids():
        name, version = files.name_version(schema_id)
        assert registry.name_version(registry.id_of(name))[0] == name
        assert registry.name_version(registry.id_of(name, version)) == (name, version)
    for name, wanted in (("refold.events.Nothing", None), (NAME, 99)):
        with pytest.raises(UnknownSchemaName):
            registry.id_of(name, wanted)


@_check
async def an_id_of_the_files_that_is_none_is_undecodable(make: MakeRegistry) -> None:
    """A newer refold's, or rubbish: nobody outside can know it."""
    registry = make()
    nobodys = max(FileRegistry().all_ids()) + 77
    for asked in (registry.schema, registry.name_version):
        with pytest.raises(UnknownSchemaId) as caught:
            asked(nobodys)
        assert caught.value.schema_id == nobodys
    with pytest.raises(UnknownSchemaId):
        await registry.learn(nobodys)


@_check
async def an_id_that_was_not_asked_for_is_unknown_not_undecodable(make: MakeRegistry) -> None:
    """What is not async asks nobody, and says that it does not know."""
    registry = make()
    for asked in (registry.schema, registry.name_version):
        with pytest.raises(SchemaUnavailable) as caught:
            asked(NOBODYS_ID)
        assert caught.value.schema_id == NOBODYS_ID
        assert not isinstance(caught.value, UndecodableRecord)


@_check
async def an_id_that_nobody_gave_out_is_said_never_empty(make: MakeRegistry) -> None:
    """`learn` has the last word: there is none. And `schema` does not know more afterwards."""
    registry = make()
    with pytest.raises(UnknownSchemaId) as caught:
        await registry.learn(NOBODYS_ID)
    assert caught.value.schema_id == NOBODYS_ID
    with pytest.raises((SchemaUnavailable, UnknownSchemaId)):
        registry.schema(NOBODYS_ID)


@_check
async def what_is_ready_is_written_and_read_by_everybody(make: MakeRegistry) -> None:
    """A record of one process is read by another, which at most has to learn its id."""
    writer = Codec(make())
    await writer.ready()
    data = writer.encode(MESSAGE)
    assert writer.decode(data) == MESSAGE
    reader = Codec(make())
    await reader.learn(int.from_bytes(data[1:5], "big"))
    assert reader.decode(data) == MESSAGE
    assert reader.name_of(data) == "TimerFired"


@_check
async def ready_twice_gives_the_same_ids(make: MakeRegistry) -> None:
    """An id is given once, whoever asks and however often."""
    one, other = make(), make()
    await one.ready([NAME])
    first = one.id_of(NAME)
    await one.ready([NAME])
    await other.ready([NAME, "refold.events.TimerCancelled"])
    assert one.id_of(NAME) == first == other.id_of(NAME)
    assert one.name_version(first) == FileRegistry().name_version(FileRegistry().id_of(NAME))


@_check
async def records_under_the_ids_of_the_files_are_read_beside_others(make: MakeRegistry) -> None:
    """A namespace that got its registry later is readable from its beginning."""
    old = Codec(FileRegistry()).encode(MESSAGE)
    codec = Codec(make())
    assert codec.decode(old) == MESSAGE
    await codec.ready()
    assert codec.decode(old) == MESSAGE
    assert codec.decode(codec.encode(MESSAGE)) == MESSAGE


@_check
async def several_may_learn_at_once(make: MakeRegistry) -> None:
    """Tasks that meet the same id at the same time do not get into each other's way."""
    writer, reader = Codec(make()), Codec(make())
    await writer.ready(TimerFired)
    data = writer.encode(MESSAGE)
    schema_id = int.from_bytes(data[1:5], "big")
    await asyncio.gather(*(reader.learn(schema_id) for _ in range(8)))
    assert reader.decode(data) == MESSAGE


@_check
async def what_is_asked_again_says_the_same(make: MakeRegistry) -> None:
    """A registry that keeps its word passes every recheck."""
    registry = make()
    await registry.recheck()
    await registry.ready([NAME, "refold.events.TimerCancelled"])
    for _ in range(4):
        await registry.recheck()
    assert registry.name_version(registry.id_of(NAME))[0] == NAME
