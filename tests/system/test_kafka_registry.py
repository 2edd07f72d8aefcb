"""A namespace on Kafka under the ids of a registry, Apicurio, which is away now and then."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.client import Client
from refold.log import Entry, Topic, open_log
from refold_schemas.codec import Codec
from refold_schemas.codec.resolving import read, write
from refold_schemas.commands import CancelRun, StartRun
from refold_schemas.registry import FileRegistry
from refold_schemas.registry.asking import Asking, RegistryAccess
from refold_schemas.registry.avro import parse
from refold_schemas.registry.files import ID_MIN
from refold_schemas.values import encode_value
from refold_tools.cli import main
from support.kafka_broker import Broker
from support.registry_proxy import FAIL, STALL, RegistryProxy

REFOLD = [sys.executable, "-m", "refold_tools.cli"]
FILES = FileRegistry()
APP = """
from datetime import timedelta
from refold import App, Policy, RunContext

app = App("shop")

@app.step(policy=Policy.RE_EXECUTABLE)
async def price(pence: int) -> int:
    return pence + 1

@app.run("order")
async def order(ctx: RunContext, pence: int) -> int:
    return await ctx.step(price, pence)

@app.run("waits")
async def waits(ctx: RunContext, pence: int) -> int:
    await ctx.sleep(timedelta(days=1))
    return pence
"""


@pytest.fixture
def proxy(registry_url: str) -> Iterator[RegistryProxy]:
    proxy = RegistryProxy(registry_url)
    yield proxy
    proxy.refuse()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop_with_ids.py").write_text(APP)
    return tmp_path


def environment(folder: Path, registry: str | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("REFOLD_")}
    url = {} if registry is None else {"REFOLD_REGISTRY_URL": registry}
    return {**kept, **url, "PYTHONPATH": str(folder)}


class Cli:
    """The command line in this process, under a registry or none; a process each would be slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        for name in [one for one in os.environ if one.startswith("REFOLD_")]:
            monkeypatch.delenv(name)

    def __call__(self, registry: str | None, *arguments: str, code: int | None = 0) -> Any:
        """The last line of its JSON. `code` None: whatever it is."""
        with self._patch.context() as patch:
            if registry is not None:
                patch.setenv("REFOLD_REGISTRY_URL", registry)
            self._capsys.readouterr()
            ended = main([*arguments, "--json"])
        out, err = self._capsys.readouterr()
        assert code is None or ended == code, f"exit {ended}\n{out}\n{err}"
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def refold(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield Cli(monkeypatch, capsys)
    sys.modules.pop("shop_with_ids", None)


def until(check: Callable[[], bool], what: str, within_s: float = 90) -> None:
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)


class Serving:
    """A worker process, and what it says."""

    def __init__(self, folder: Path, registry: str, url: str) -> None:
        self._file = folder / "worker.out"
        with self._file.open("wb") as said:
            self._process = subprocess.Popen(
                [*REFOLD, "worker", "shop_with_ids:app", "--log", url],
                cwd=folder,
                stdout=said,
                stderr=said,
                env=environment(folder, registry),
            )

    @property
    def said(self) -> str:
        return self._file.read_text()

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ids_of(url: str, topic: Topic) -> set[int]:
    """The schema ids of all records of a topic's first partition."""

    async def read() -> set[int]:
        log = open_log(url)
        await log.open(create=False)
        try:
            offset, end = await log.bounds(topic, 0)
            found: set[int] = set()
            while offset < end and (records := await log.read(topic, 0, offset)):
                found |= {int.from_bytes((r.value or b"")[1:5], "big") for r in records}
                offset = records[-1].offset + 1
            return found
        finally:
            await log.close()

    return asyncio.run(read())


def findings(refold: Cli, registry: str, url: str) -> dict[str, Any]:
    """What doctor says, by what it is about."""
    told = refold(registry, "doctor", "--log", url, code=None)
    return {one["what"]: one for one in told["findings"]}


def test_who_writes_needs_the_schemas_and_who_reads_needs_the_registry(
    broker: Broker, registry_url: str, refold: Cli
) -> None:
    url = f"kafka://{broker.server}/bound"
    refold(None, "namespace", "create", "--log", f"{url}?partitions=1")
    nobody = "http://127.0.0.1:1/apis/ccompat/v7"
    told = refold(nobody, "worker", "shop_with_ids:app", "--log", url, code=4)
    assert told["error"]["code"] == "R209"
    told = refold(registry_url, "worker", "shop_with_ids:app", "--log", url, code=3)
    assert told["error"]["code"] == "R210"
    assert "refold schemas register" in told["error"]["next"]
    start = ("start", "order", "--input", "1", "--within", "0", "--log", url)
    assert refold(registry_url, *start, code=3)["error"]["code"] == "R210"
    assert ids_of(url, Topic.EVENTS) == ids_of(url, Topic.COMMANDS) == set()

    checked = refold(registry_url, "schemas", "check", code=1)
    assert len(checked["problems"]) == checked["schemas"]
    would = refold(registry_url, "schemas", "register", "--dry-run")
    did = refold(registry_url, "schemas", "register")
    assert [(one["what"], one["name"]) for one in would["did"]] == [
        (one["what"], one["name"]) for one in did["did"]
    ]
    assert refold(registry_url, "schemas", "register")["did"] == []
    assert refold(registry_url, "schemas", "check")["problems"] == []
    listed = refold(registry_url, "schemas", "list")["schemas"]
    given = {one["registry_id"] for one in listed}
    assert None not in given

    begun = ("run", "shop_with_ids:app", "order", "--input", "4160", "--run-id", "r1")
    ran = refold(registry_url, *begun, "--log", url)
    assert ran["status"] == "completed"
    assert ran["result"] == 4161
    for topic in (Topic.EVENTS, Topic.COMMANDS):
        found = ids_of(url, topic)
        assert found
        assert found <= given
        assert max(found) < ID_MIN
    for command in (("boundary", "r1"), ("history", "r1"), ("runs",)):
        told = refold(None, *command, "--log", url, code=4)
        assert told["error"]["code"] == "R208"
        assert "REFOLD_REGISTRY_URL" in told["error"]["next"]
        assert refold(registry_url, *command, "--log", url)
    assert refold(nobody, "boundary", "r1", "--log", url, code=4)["error"]["code"] == "R208"

    seen = findings(refold, registry_url, url)
    assert seen["registry"]["verdict"] == "ok"
    seen = findings(refold, nobody, url)
    assert seen["registry"]["verdict"] == "wrong"
    assert "registry unreachable" in seen["registry"]["said"]
    assert "cannot be read" in seen["runs"]["said"]


def test_tools_that_make_what_is_missing_register_and_a_log_in_a_file_needs_nobody(
    broker: Broker, registry_url: str, refold: Cli, folder: Path
) -> None:
    """As after `eval "$(refold devstack up)"`: what the README says works with it exported."""
    url = f"kafka://{broker.server}/made"
    refold(registry_url, "namespace", "create", "--log", f"{url}?partitions=1")
    assert refold(registry_url, "schemas", "check")["problems"] == []
    told = refold(
        registry_url, "demo", "--log", f"kafka://{broker.server}/demo-with-ids?partitions=1"
    )
    assert told["completed"] is True
    nobody = "http://127.0.0.1:1/"
    file = f"sqlite:///{folder}/log.db"
    ran = refold(nobody, "run", "shop_with_ids:app", "order", "--input", "1", "--log", file)
    assert ran["status"] == "completed"
    assert min(ids_of(file, Topic.EVENTS)) >= ID_MIN
    assert refold(nobody, "runs", "--log", file)["total"] == 1


def with_a_note(name: str) -> dict[str, Any]:
    """The schema of a newer producer: one field more, with a default."""
    ours = FILES.schema(FILES.id_of(name))
    note = {"name": "note", "type": "string", "default": ""}
    return {**ours, "fields": [*ours["fields"], note]}


def newer(command: StartRun | CancelRun, schema_id: int, schema: dict[str, Any]) -> Entry:
    """The command as that producer writes it."""
    ours = Codec(FILES).encode(command)
    written = parse(FILES.schema(int.from_bytes(ours[1:5], "big")))
    record = {**read(ours[5:], written, written), "note": "from elsewhere"}
    body = write(record, parse(schema))
    return Entry(command.run_id.encode(), b"\0" + schema_id.to_bytes(4, "big") + body)


async def published(url: str, entries: list[Entry]) -> None:
    log = open_log(url)
    await log.open(create=False)
    try:
        for entry in entries:
            await log.append(Topic.COMMANDS, 0, [entry])
    finally:
        await log.close()


def test_commands_under_new_ids_wait_for_a_registry_that_refuses_stalls_and_fails(
    broker: Broker, registry_url: str, refold: Cli, folder: Path, proxy: RegistryProxy
) -> None:
    """F36: fifty commands, two ids not asked for yet. None is lost, refused or overtaken."""
    url = f"kafka://{broker.server}/away"
    refold(registry_url, "namespace", "create", "--log", f"{url}?partitions=1")
    starts, cancels = (with_a_note(f"refold.commands.{n}") for n in ("StartRun", "CancelRun"))

    async def registered() -> tuple[int, int]:
        async with Asking(RegistryAccess(registry_url)) as asking:
            return (
                await asking.register("refold.commands.StartRun", starts),
                await asking.register("refold.commands.CancelRun", cancels),
            )

    start_id, cancel_id = asyncio.run(registered())
    names = [f"order-{number}" for number in range(25)]
    pairs = [
        (
            newer(StartRun(f"s-{n}", n, "waits", encode_value(1), None, "shop"), start_id, starts),
            newer(CancelRun(f"c-{n}", n, "shop", "enough"), cancel_id, cancels),
        )
        for n in names
    ]
    entries = [entry for pair in pairs for entry in pair]

    def statuses() -> list[str]:
        found = refold(registry_url, "runs", "--run", "waits", "--log", url)["runs"]
        return [one["status"] for one in found]

    def known_run(run_id: str) -> None:
        """Under ids that the worker knows: it does not notice that anything is missing."""
        refold(registry_url, "start", "order", "--input", "1", "--run-id", run_id, "--wait",
               "--within", "60", "--log", url)  # fmt: skip

    with Serving(folder, proxy.url, url) as worker:
        until(lambda: "claimed" in worker.said or "claim " in worker.said, "it serves")
        proxy.refuse()
        asyncio.run(published(url, entries[:20]))
        known_run("known-1")
        until(lambda: "cannot be asked" in worker.said, "it says that the registry is away")
        seen = findings(refold, proxy.url, url)
        assert "registry unreachable" in seen["registry"]["said"]
        proxy.listen(STALL)
        asked = len(proxy.asked)
        asyncio.run(published(url, entries[20:40]))
        until(lambda: len(proxy.asked) > asked, "it asks again, and gets no answer")
        known_run("known-2")
        proxy.refuse()
        proxy.listen(FAIL)
        asked = len(proxy.asked)
        asyncio.run(published(url, entries[40:]))
        until(lambda: len(proxy.asked) > asked, "it asks again, and gets errors")
        known_run("known-3")
        assert statuses() == []
        proxy.refuse()
        proxy.listen()
        until(lambda: statuses() == ["cancelled"] * len(names), "all are decided, in their order")

    async def histories() -> dict[str, list[str]]:
        async with Client(url, registry_url=registry_url) as client:
            return {
                name: [type(one.event).__name__ async for one in client.history(name)]
                for name in names
            }

    for told in asyncio.run(histories()).values():
        assert "CommandRejected" not in told
        assert told.index("RunStarted") < told.index("RunCancelRequested")
    shown = refold(registry_url, "namespace", "show", "--log", url)
    assert shown["topics"]["away.dead-letters"]["bounds"] == [[0, 0]]
