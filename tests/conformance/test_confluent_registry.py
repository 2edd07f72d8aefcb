"""The registry by Confluent's API, a real Apicurio, against the suite; and what it withstands."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from refold.testing.registry_conformance import MakeRegistry, RegistryConformance
from refold_schemas.codec import Codec
from refold_schemas.codec.resolving import write
from refold_schemas.errors import (
    RegistryRefused,
    RegistryUnavailable,
    SchemaChanged,
    SchemasUnregistered,
    SchemaUnavailable,
    UndecodableRecord,
    UnknownSchemaId,
)
from refold_schemas.events import TimerCancelled, TimerFired
from refold_schemas.registry import FileRegistry, Schema
from refold_schemas.registry.asking import Asking, RegistryAccess
from refold_schemas.registry.avro import parse
from refold_schemas.registry.confluent import ConfluentRegistry
from refold_schemas.registry.subjects import register, survey
from support.registry_proxy import FAIL, HTML, STALL, RegistryProxy

NAME = "refold.events.TimerFired"
MESSAGE = TimerFired("sleep#1", 3)
FILES = FileRegistry()


class TestConfluentRegistry(RegistryConformance):
    @pytest.fixture
    def make_registry(self, registry_url: str) -> MakeRegistry:
        return lambda: ConfluentRegistry(RegistryAccess(registry_url))


@pytest.fixture
def proxy(registry_url: str) -> Iterator[RegistryProxy]:
    proxy = RegistryProxy(registry_url)
    yield proxy
    proxy.refuse()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent registry is given up sooner."""
    monkeypatch.setattr("refold_schemas.registry.asking.REQUEST_S", 0.3)
    monkeypatch.setattr("refold_schemas.registry.asking.RETRIES_MAX", 1)


def at(url: str, **more: Any) -> ConfluentRegistry:
    return ConfluentRegistry(RegistryAccess(url, **more))


def schema_of(name: str) -> Schema:
    return FILES.schema(FILES.id_of(name))


def framed(schema_id: int, schema: Schema, record: dict[str, Any]) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + write(record, parse(schema))


async def registered(url: str, subject: str, schema: Schema) -> int:
    async with Asking(RegistryAccess(url)) as asking:
        return await asking.register(subject, schema)


def test_ids_are_cached_and_nothing_is_asked_twice(proxy: RegistryProxy) -> None:
    async def main() -> None:
        codec = Codec(at(proxy.url))
        await codec.ready(TimerFired)
        data = codec.encode(MESSAGE)
        count = len(proxy.asked)
        proxy.refuse()
        await codec.ready(TimerFired)
        await codec.learn(int.from_bytes(data[1:5], "big"))
        assert codec.decode(codec.encode(MESSAGE)) == MESSAGE
        assert len(proxy.asked) == count
        proxy.listen()

    asyncio.run(main())


def test_one_that_only_reads_is_ready_at_once_and_writes_under_the_files_ids(
    proxy: RegistryProxy,
) -> None:
    async def main() -> None:
        codec = Codec(ConfluentRegistry(RegistryAccess(proxy.url), writes=False))
        await codec.ready()
        assert proxy.asked == []
        assert codec.encode(MESSAGE) == Codec(FILES).encode(MESSAGE)
        writer = Codec(at(proxy.url))
        await writer.ready(TimerFired)
        data = writer.encode(MESSAGE)
        await codec.learn(int.from_bytes(data[1:5], "big"))
        assert codec.decode(data) == MESSAGE

    asyncio.run(main())


def test_an_id_that_names_another_schema_later_stops_with_both_fingerprints(
    proxy: RegistryProxy,
) -> None:
    async def main() -> None:
        registry = at(proxy.url)
        await registry.ready([NAME, "refold.events.TimerCancelled"])
        fired, cancelled = registry.id_of(NAME), registry.id_of("refold.events.TimerCancelled")
        proxy.lies[fired] = cancelled
        if fired > cancelled:  # they are looked at in order
            await registry.recheck()
        with pytest.raises(SchemaChanged) as caught:
            await registry.recheck()
        assert caught.value.schema_id == fired
        assert caught.value.pinned == FILES.fingerprint(FILES.id_of(NAME))
        assert caught.value.found == FILES.fingerprint(FILES.id_of("refold.events.TimerCancelled"))
        assert caught.value.pinned in str(caught.value)
        assert caught.value.found in str(caught.value)
        assert proxy.url in str(caught.value)
        assert registry.name_version(fired)[0] == NAME, "what is known is not given up"
        # One that begins now sees by the subject that the id cannot be what it says.
        with pytest.raises(SchemaChanged):
            await at(proxy.url).ready([NAME])

    asyncio.run(main())


def test_an_id_that_is_gone_is_not_there_for_new_processes_and_stays_for_old_ones(
    proxy: RegistryProxy,
) -> None:
    async def main() -> None:
        codec = Codec(at(proxy.url))
        await codec.ready(TimerFired)
        data = codec.encode(MESSAGE)
        schema_id = int.from_bytes(data[1:5], "big")
        proxy.lies[schema_id] = None
        await codec.recheck()
        assert codec.decode(data) == MESSAGE
        late = Codec(at(proxy.url))
        with pytest.raises(UnknownSchemaId, match="has no schema of that id"):
            await late.learn(schema_id)
        with pytest.raises(SchemaUnavailable):  # never empty, and no verdict on the record
            late.decode(data)
        with pytest.raises(RegistryUnavailable, match="has no schema of that id"):
            await late.ready(TimerFired)

    asyncio.run(main())


def test_the_same_schema_under_another_id_is_the_same(registry_url: str) -> None:
    async def main() -> None:
        described = {**schema_of(NAME), "doc": "The same, told in other words."}
        other = await registered(registry_url, "somewhere.else", described)
        registry = at(registry_url)
        await registry.ready([NAME])
        assert other != registry.id_of(NAME)
        await registry.learn(other)
        assert registry.name_version(other) == (NAME, 1)
        data = Codec(FILES).encode(MESSAGE)
        assert Codec(registry).decode(b"\0" + other.to_bytes(4, "big") + data[5:]) == MESSAGE

    asyncio.run(main())


def test_what_a_newer_writer_added_is_left_aside(registry_url: str) -> None:
    async def main() -> None:
        ours = schema_of(NAME)
        newer = {
            **ours,
            "fields": [*ours["fields"], {"name": "why", "type": "string", "default": ""}],
        }
        schema_id = await registered(registry_url, "somewhere.newer", newer)
        codec = Codec(at(registry_url))
        await codec.learn(schema_id)
        record = {"timer_id": "sleep#1", "generation": 3, "why": "due"}
        assert codec.decode(framed(schema_id, newer, record)) == MESSAGE

    asyncio.run(main())


def test_what_cannot_be_resolved_or_is_none_of_ours_is_undecodable(registry_url: str) -> None:
    async def main() -> None:
        ours = schema_of(NAME)
        unlike = {**ours, "fields": [{"name": "timer_id", "type": "long"}]}
        strange = {"type": "record", "name": "Order", "namespace": "shop", "fields": []}
        number = await registered(registry_url, "somewhere.unlike", unlike)
        order = await registered(registry_url, "shop.Order", strange)
        codec = Codec(at(registry_url))
        for schema_id, schema, record, said in (
            (number, unlike, {"timer_id": 5}, "TimerFired"),
            (order, strange, {}, "shop.Order is no message"),
        ):
            await codec.learn(schema_id)
            with pytest.raises(UndecodableRecord, match=said) as caught:
                codec.decode(framed(schema_id, schema, record))
            assert caught.value.schema_id == schema_id
        assert codec.name_of(framed(order, strange, {})) is None

    asyncio.run(main())


def test_a_deleted_subject_breaks_nothing_that_runs_and_is_named_at_the_next_start(
    registry_url: str,
) -> None:
    name = "refold.events.TimerCancelled"

    async def main() -> None:
        running = Codec(at(registry_url))
        await running.ready()
        data = running.encode(TimerCancelled("sleep#1", 1))
        request = Request(f"{registry_url}/subjects/{name}", method="DELETE")
        await asyncio.to_thread(urlopen, request)
        try:
            assert running.decode(running.encode(TimerCancelled("sleep#1", 1)))
            await running.recheck()
            with pytest.raises(SchemasUnregistered) as caught:
                await Codec(at(registry_url)).ready()
            assert caught.value.names == (name,)
            assert "refold schemas register" in str(caught.value)
            (missing,) = [
                one for one in await survey(RegistryAccess(registry_url), FILES) if one.missing
            ]
            assert (missing.name, missing.missing) == (name, (1,))
        finally:
            did = [one async for one in register(RegistryAccess(registry_url), FILES)]
        assert ("register", name) in [(one.what, one.name) for one in did]
        again = Codec(at(registry_url))
        await again.ready()
        await again.learn(int.from_bytes(data[1:5], "big"))
        assert again.decode(data) == running.decode(data)

    asyncio.run(main())


def test_registering_twice_does_nothing_and_what_does_not_fit_is_refused(
    registry_url: str,
) -> None:
    async def main() -> None:
        access = RegistryAccess(registry_url)
        assert [one async for one in register(access, FILES)] == []
        ours = schema_of(NAME)
        needs = {**ours, "fields": [*ours["fields"], {"name": "must", "type": "string"}]}
        async with Asking(access) as asking:
            assert await asking.compatibility(NAME) == "FULL_TRANSITIVE"
            assert not await asking.fits(NAME, needs)
            with pytest.raises(RegistryRefused, match=NAME):
                await asking.register(NAME, needs)

    asyncio.run(main())


Ask = Callable[[ConfluentRegistry], Awaitable[None]]


@pytest.mark.parametrize("way", ["refused", STALL, FAIL, HTML])
@pytest.mark.usefixtures("quick")
def test_a_registry_that_is_away_is_said_and_learnt_from_when_it_is_back(
    proxy: RegistryProxy, way: str
) -> None:
    async def main() -> None:
        writer = Codec(at(proxy.url))
        await writer.ready(TimerFired)
        data = writer.encode(MESSAGE)
        schema_id = int.from_bytes(data[1:5], "big")
        registry = at(proxy.url)
        if way == "refused":
            proxy.refuse()
        else:
            proxy.mode = way
        with pytest.raises(SchemaUnavailable, match="cannot be asked") as caught:
            await registry.learn(schema_id)
        assert caught.value.mends
        for ask in (registry.ready([NAME]), writer.recheck()):
            with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1"):
                await ask
        if way == "refused":
            proxy.listen()
        else:
            proxy.refuse()
            proxy.listen()
        await registry.learn(schema_id)
        assert Codec(registry).decode(data) == MESSAGE

    asyncio.run(main())


def test_a_wrong_address_is_not_an_unknown_id(registry_url: str) -> None:
    async def main() -> None:
        registry = at(registry_url.removesuffix("/apis/ccompat/v7") + "/elsewhere")
        with pytest.raises(SchemaUnavailable, match="no schema registry"):
            await registry.learn(1)

    asyncio.run(main())


def test_credentials_are_sent_and_never_shown(registry_url: str) -> None:
    async def main() -> None:
        proxy = RegistryProxy(registry_url, user="ada:correct-horse")
        try:
            known = at(proxy.url, username="ada", password="correct-horse")
            await known.ready([NAME])
            stranger = at(proxy.url, username="eve", password="battery-staple")
            with pytest.raises(RegistryUnavailable, match="credentials") as caught:
                await stranger.ready([NAME])
            shown = f"{caught.value!r} {caught.value} {stranger.access!r} {stranger.url}"
            assert "battery-staple" not in shown
        finally:
            proxy.refuse()

    asyncio.run(main())


def test_tls_is_checked_against_the_authority_that_is_given(
    registry_url: str, tmp_path: Path
) -> None:
    key, cert, both = (tmp_path / name for name in ("key.pem", "cert.pem", "both.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    both.write_text(key.read_text() + cert.read_text())

    async def main() -> None:
        proxy = RegistryProxy(registry_url, certificate=both)
        try:
            await at(proxy.url, cafile=str(cert)).ready([NAME])
            with pytest.raises(RegistryUnavailable, match="CERTIFICATE"):
                await at(proxy.url).ready([NAME])
            with pytest.raises(RegistryUnavailable):
                await at(proxy.url, cafile=str(tmp_path / "absent.pem")).ready([NAME])
        finally:
            proxy.refuse()

    asyncio.run(main())
