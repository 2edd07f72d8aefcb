"""Archiving, and logs that something else has trimmed, on a real broker: F22, F23 (and F18).

The logic has its tests in the simulation (test_archiving.py); here is what only a broker does.
"""

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import App, Client, Effect, Policy, RunContext
from refold.engine import checkpoints
from refold.log import Entry, Topic
from refold.log.kafka import KafkaLog
from refold.log.kafka_access import Access
from refold.worker import Worker, WorkerEvent, WorkerSettings
from refold_projections.fold import PartitionFold, state_hash
from refold_schemas.codec import Codec
from refold_schemas.commands import StartRun
from refold_schemas.errors import EventsGone, RefoldError
from refold_schemas.events import CommandRejected
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value
from support.kafka_broker import Broker

CODEC = Codec(FileRegistry())
SETTINGS = WorkerSettings(checkpoint_ms=200, idle_after_ms=500)
WITHIN_S = 90.0
JUNK = b"\0" + (2_000_003_999).to_bytes(4, "big") + b" of a later version"
SHOP = """
from datetime import timedelta
from refold import App, RunContext

app = App("shop")

@app.run("reminder")
async def reminder(ctx: RunContext, pence: int) -> int:
    await ctx.sleep(timedelta(days=30))
    return pence
"""


class Shop:
    """One namespace with one partition, its worker, and what the worker did in the world."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.url = f"kafka://{broker.server}/trim-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.charged: list[str] = []
        self.told: list[WorkerEvent] = []
        self.app = App("shop")

        @self.app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(seconds=30))
        async def charge(fx: Effect, name: str) -> str:
            self.charged.append(name)
            return fx.key

        @self.app.run("order")
        async def order(ctx: RunContext, name: str) -> str:
            return await ctx.step(charge, name)

        @self.app.run("reminder")
        async def reminder(ctx: RunContext, pence: int) -> int:
            await ctx.sleep(timedelta(days=30))
            return pence

    def log(self) -> KafkaLog:
        return KafkaLog(f"{self.url}?partitions=1", access=Access(), session_ms=1_500)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[KafkaLog]:
        log = self.log()
        await log.open(create=True)
        try:
            yield log
        finally:
            await log.close()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """A worker that serves the partition; ended without a hand-over, as by SIGKILL."""
        async with self.opened() as log:
            worker = Worker(
                self.app, log, settings=SETTINGS, on_event=self.told.append, watch=False
            )
            serving = asyncio.create_task(worker.run())
            try:
                await until(lambda: bool(worker.owners) or serving.done(), "claimed")
                if serving.done():
                    serving.result()
                yield worker
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError, RefoldError):
                    await serving

    async def start(self, log: KafkaLog, *names: str, run: str = "order") -> None:
        """Append the commands, and wait for nothing."""
        entries = []
        for name in names:
            given = encode_value(name if run == "order" else 1)
            command = StartRun(str(uuid.uuid4()), name, run, given, None, "test")
            entries.append(Entry(name.encode(), CODEC.encode(command)))
        await log.append(Topic.COMMANDS, 0, entries)

    async def checkpointed(self, worker: Worker) -> None:
        """Wait until a position stands that has everything in it which was appended by now."""
        async with self.opened() as log:
            _, end = await log.bounds(Topic.EVENTS, 0)
            async with asyncio.timeout(WITHIN_S):
                while (await self.restored(log)).base.position.offset_next < end:  # noqa: ASYNC110 - a log has no event for it
                    await asyncio.sleep(0.1)

    async def restored(self, log: KafkaLog) -> checkpoints.Restored:
        return await checkpoints.load(log, 0, CODEC)

    async def seen(self, log: KafkaLog) -> PartitionFold:
        """What a reader of the log sees now."""
        fold = (await self.restored(log)).fold
        _, end = await log.bounds(Topic.EVENTS, 0)
        while fold.position.offset_next < end:
            records = await log.read(Topic.EVENTS, 0, fold.position.offset_next)
            if not records:
                break
            fold.apply_all(records)
        return fold

    async def damage(self, log: KafkaLog, wanted: Callable[[str], bool]) -> int:
        """Write junk over the snapshots that are wanted, under their keys."""
        found: dict[bytes, bytes | None] = {}
        offset, end = await log.bounds(Topic.SNAPSHOTS, 0)
        while offset < end:
            records = await log.read(Topic.SNAPSHOTS, 0, offset)
            if not records:
                break
            found.update((r.key or b"", r.value) for r in records)
            offset = records[-1].offset + 1
        keys = [k for k, value in found.items() if value is not None and wanted(k.decode())]
        await log.append(Topic.SNAPSHOTS, 0, [Entry(key, JUNK) for key in keys])
        return len(keys)

    def refold(self, *arguments: str, code: int = 0) -> Any:
        """The last line of its JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "refold_tools.cli", *arguments, "--log", self.url, "--json"],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def shop(broker: Broker, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path)


async def until(check: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not check():  # noqa: ASYNC110 - many things are waited for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN_S:g} s: {what}") from None


def hashes(fold: PartitionFold) -> dict[str, str]:
    return {run_id: state_hash(state) for run_id, state in fold.runs.items()}


def test_archived_runs_are_gone_from_the_log_and_known_all_the_same(shop: Shop) -> None:
    async def main() -> None:
        async with shop.opened() as log:
            await shop.start(log, *(f"r-{number}" for number in range(20)))
            async with shop.worker() as worker:
                await until(lambda: len(shop.charged) == 20, "20 charged")
                await shop.start(log, "sleeper", run="reminder")
                await until(lambda: "sleeper" in worker.owners[0].books.states, "it sleeps")
                await shop.checkpointed(worker)
                before = await shop.seen(log)
                told = await asyncio.to_thread(
                    shop.refold,
                    *("archive", "--before", "0s", "--commands-before", "0s", "--to", "files"),
                )
                (only,) = told["partitions"]
                assert (only["events"]["runs"], only["events"]["held_by"]) == (20, "sleeper")
                start, _ = await log.bounds(Topic.EVENTS, 0)
                assert start == only["events"]["next"] > 40
                assert await log.bounds(Topic.COMMANDS, 0) == (21, 21)
                assert hashes(await shop.seen(log)) == hashes(before)
                # The owner works on, and knows the ids that are taken.
                async with Client(log) as client:
                    again = await client.start("order", "r-3", run_id="r-3")
                    assert await again.result(as_type=str)
                    await client.start("order", "new", run_id="new")
                    await until(lambda: "new" in shop.charged, "the new run")
            # Without any checkpoint the next one begins behind the archive.
            assert await shop.damage(log, lambda k: k[0] == "/" and "archived" not in k) > 0
            assert set(hashes(await shop.seen(log))) == {*hashes(before), "new"}
            async with shop.worker(), Client(log) as client:
                await client.start("order", "r-7", run_id="r-7")
                said = [one async for one in client.history("r-7")]
                assert [type(one.event) for one in said] == [CommandRejected]
            assert sorted(shop.charged) == sorted({*shop.charged})
            # A run of which nothing is left: nobody serves on.
            assert await shop.damage(log, lambda k: k.startswith("r-5/")) == 1

    asyncio.run(main())
    seen = shop.refold("history", "r-7")
    (file,) = seen["archived"]
    assert (shop.folder / "files" / file).exists()
    (shop.folder / "shop.py").write_text(SHOP)
    error = shop.refold("worker", "shop:app", code=4)["error"]
    assert error["code"] == "R317"
    assert "runs r-5" in error["message"]


def test_new_emptied_and_overtaken_partitions_are_ready_or_stop_at_once_f23(shop: Shop) -> None:
    async def main() -> None:
        async with shop.opened() as log:
            async with shop.worker() as worker:  # (a) nothing is in it
                assert worker.owners[0].position.offset_next == 1
                await shop.start(log, "sleeper", run="reminder")
                await until(lambda: "sleeper" in worker.owners[0].books.states, "it sleeps")
                await shop.checkpointed(worker)
            _, end = await log.bounds(Topic.EVENTS, 0)
            assert await log.trim(Topic.EVENTS, 0, end) == end  # (b) low = high
            async with shop.worker() as worker:
                assert "sleeper" in worker.owners[0].books.states
            # (c) trimmed where a checkpoint stands behind it, and then where none does.
            position = (await shop.restored(log)).base.position.offset_next
            await log.append(Topic.EVENTS, 0, [Entry(b"other", b"junk")] * 200)
            await log.trim(Topic.EVENTS, 0, position)
            assert "sleeper" in (await shop.seen(log)).runs
            await log.trim(Topic.EVENTS, 0, position + 100)
            _, end = await log.bounds(Topic.EVENTS, 0)
            with pytest.raises(EventsGone) as gone:
                async with shop.worker():
                    raise AssertionError("it was claimed")
            assert f"events {position}\u2013{position + 99} are gone" in str(gone.value)
            assert gone.value.runs == ("sleeper",)
            assert (await log.bounds(Topic.EVENTS, 0))[1] == end

    asyncio.run(main())


def test_commands_that_are_gone_are_said_once_f22(shop: Shop) -> None:
    async def main() -> None:
        async with shop.opened() as log:
            await shop.start(log, *(f"early-{number}" for number in range(121)))
            async with shop.worker():
                await until(lambda: len(shop.charged) == 121, "the early ones")
            await log.append(Topic.COMMANDS, 0, [Entry(b"lost", b"lost")] * 379)
            assert await log.trim(Topic.COMMANDS, 0, 500) == 500
            await shop.start(log, *(f"late-{number}" for number in range(30)))
            async with shop.worker() as worker:
                await until(lambda: len(shop.charged) >= 151, "the late ones")
                await until(lambda: worker.owners[0].tail.quiet, "all of it is durable")
            async with shop.worker():  # said already: the next one goes on behind it
                pass
            assert len(shop.charged) == len({*shop.charged}) == 151
            offset, end = await log.bounds(Topic.EVENTS, 0)
            rejected = []
            while offset < end:
                for record in await log.read(Topic.EVENTS, 0, offset):
                    event = CODEC.decode(record.value or b"")
                    if isinstance(event, CommandRejected):
                        rejected.append(event)
                    offset = record.offset + 1
            assert [(one.reason, one.command_offset) for one in rejected] == [("gone", 121)]
            assert "commands 121\u2013499 are gone" in rejected[0].detail
            assert sum("R318" in event.text for event in shop.told) == 1

    asyncio.run(main())
