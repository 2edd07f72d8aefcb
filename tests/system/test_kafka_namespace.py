"""F21: somebody raises the partition count of a namespace with open runs, on a real broker."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from refold import Client
from refold.log import open_log, partition_for
from refold.log.kafka import KafkaLog
from refold.projector import Projector
from refold_schemas.errors import PartitionsRaised
from refold_tools.cli import main
from support.kafka_broker import Broker
from support.postgres import until as wait_until
from support.projecting import QUICK

REFOLD = [sys.executable, "-m", "refold_tools.cli"]
WITHIN_S = 120.0
RUNS = 50
APP = """
from datetime import timedelta
from pathlib import Path

from refold import App, Effect, Policy, RunContext

app = App("shop")
PAID = Path(__file__).parent / "paid"

@app.step(policy=Policy.RE_EXECUTABLE)
async def is_paid(fx: Effect) -> bool:
    return PAID.exists()

@app.run("order")
async def order(ctx: RunContext, pence: int) -> str:
    while not await ctx.step(is_paid):
        await ctx.sleep(timedelta(seconds=1))
    return "paid"
"""
SOON = timedelta(seconds=90)


class Refold:
    """The command line in this process: what stands in the last line of its JSON."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.capsys = url, capsys

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        self.capsys.readouterr()
        ended = main([*arguments, "--log", self.url, "--json"])
        out, err = self.capsys.readouterr()
        assert ended == code, f"exit {ended}\n{out}\n{err}"
        return json.loads(out.splitlines()[-1])


def until(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not check():
        time.sleep(0.1)
        assert time.monotonic() < end, f"not within {WITHIN_S:g} s: {what}"


def raise_count(broker: Broker, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.server})
    for done in admin.create_partitions([NewPartitions(topic, count)]).values():
        done.result(30)


class Worker:
    """`refold worker`, and what it says."""

    def __init__(self, folder: Path, url: str) -> None:
        self.told = folder / "worker.log"
        with self.told.open("wb") as said:
            self.process = subprocess.Popen(
                [*REFOLD, "worker", "shop:app", "--log", url, "--json"],
                cwd=folder,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(folder)},
            )

    def said(self) -> str:
        return self.told.read_text()

    def claims(self) -> int:
        assert self.process.poll() is None, self.said()
        return self.said().count('"event": "claimed"')

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


def start_runs(url: str, first: int, count: int) -> None:
    async def main() -> None:
        async with Client(url) as client:
            names = [f"r{number}" for number in range(first, first + count)]
            await asyncio.gather(
                *(client.start("order", 5, run_id=name, within=SOON) for name in names)
            )

    asyncio.run(main())


def homes_of(url: str, *status: str) -> dict[str, int]:
    """In which partition each run of this status is found."""

    async def main() -> dict[str, int]:
        async with Client(url) as client:
            return {one.run_id: one.partition for one in await client.runs(status=status)}

    return asyncio.run(main())


def test_a_raised_partition_count_moves_no_run(
    broker: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    url = f"kafka://{broker.server}/f21"
    Refold(f"{url}?partitions=6", capsys)("namespace", "create")
    refold = Refold(url, capsys)
    running = Worker(tmp_path, url)
    try:
        until(lambda: running.claims() == 6, "all partitions are claimed")
        start_runs(url, 0, RUNS)

        def stands(run_id: str) -> str:
            seen = refold("boundary", run_id)
            return f"{seen['status']} in {seen['position']['partition']}"

        homes = homes_of(url, "running", "waiting")
        assert len(homes) == RUNS
        assert homes == {name: partition_for(name, 6) for name in homes}

        # Only one topic: the running worker notices, names the counts, hands over and ends.
        raise_count(broker, "f21.commands", 12)
        until(lambda: running.process.poll() is not None, "the worker ends")
        assert running.process.returncode == 4
        told = json.loads(running.said().splitlines()[-1])["error"]
        assert told["code"] == "R320"
        assert "f21.commands 12, f21.events 6" in told["message"]
        assert "namespace upgrade" in told["next"]

        # Two of them, as in the report: no worker starts, every run can be read where it is.
        raise_count(broker, "f21.events", 12)
        refused = refold("worker", "shop:app", code=4)["error"]
        assert refused["code"] == "R320"
        assert "f21.events 12, f21.snapshots 6" in refused["message"]
        assert "record 6" in refused["message"]
        assert homes_of(url, "running", "waiting") == homes
        assert stands("r7") == f"waiting in {homes['r7']}"
        orders = refold("cancel", "r7", "--within", "0", code=3)
        assert orders["error"]["code"] == "R512", "nobody decides it now; it waits where r7 lives"
        found = refold("doctor", code=1)["findings"]
        assert any("f21.snapshots 6" in one["said"] for one in found)

        wanted = refold("namespace", "upgrade", "--dry-run")
        assert wanted["adopted"] == [6, 7, 8, 9, 10, 11]
        assert wanted["changes"][0] == "f21.snapshots: 6 partitions become 12"
        done = refold("namespace", "upgrade")
        assert (done["changes"], done["routed"]) == (wanted["changes"], 6)
        assert refold("namespace", "upgrade")["changes"] == []
        shown = refold("namespace", "show")
        assert (shown["partitions"], shown["routed"], shown["problems"]) == (12, 6, [])
        assert [one["epoch"] > 0 for one in shown["claims"]] == [True] * 12
        assert {one["app"] for one in shown["claims"]} == {"shop"}

        # All fifty go on where they are; the new partitions are owned, and hold no runs.
        running = Worker(tmp_path, url)
        until(lambda: running.claims() == 12, "all partitions are claimed")
        refold("cancel", "r8")
        until(lambda: len(homes_of(url, "cancelled")) == 2, "orders reach old runs")
        (tmp_path / "paid").touch()
        start_runs(url, RUNS, 5)
        until(
            lambda: len(homes_of(url, "completed")) == RUNS - 2 + 5, "the others end, new ones too"
        )
        ended = homes_of(url, "completed", "cancelled")
        assert len(ended) == RUNS + 5
        assert ended == {name: partition_for(name, 6) for name in ended}
        assert running.end() == 0
        shown = refold("namespace", "show")
        assert {one["released"] for one in shown["claims"]} == {True}, "handed over at SIGTERM"
    finally:
        running.end()


def test_a_projector_notices_partitions_that_it_does_not_know(
    broker: Broker, postgres: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"kafka://{broker.server}/f21p"
    Refold(f"{url}?partitions=2", capsys)("namespace", "create")
    refold = Refold(url, capsys)
    seen = "select partition from v1_partitions order by partition"

    async def projected() -> tuple[KafkaLog, Projector, "asyncio.Task[None]"]:
        log = open_log(url)
        assert isinstance(log, KafkaLog)
        await log.open(create=False)
        one = Projector(log, postgres, settings=QUICK)
        await one.prepare()
        return log, one, asyncio.create_task(one.run())

    async def main() -> None:
        log, _, running = await projected()
        await wait_until(postgres, f"select 1 from ({seen}) p having count(*) = 2")
        for topic in ("commands", "events", "snapshots"):
            await asyncio.to_thread(raise_count, broker, f"f21p.{topic}", 4)
        with pytest.raises(PartitionsRaised, match="events 4") as caught:
            async with asyncio.timeout(WITHIN_S):
                await running
        assert "start workers and projectors again" in caught.value.next
        await log.close()
        await asyncio.to_thread(refold, "namespace", "upgrade")
        log, one, running = await projected()
        await wait_until(postgres, f"select 1 from ({seen}) p having count(*) = 4")
        one.stop()
        await running
        await log.close()

    asyncio.run(main())


def alter(broker: Broker, topic: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.server})
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[change])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def delete(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.server})
    for done in admin.delete_topics([topic]).values():
        done.result(30)


def test_an_upgrade_corrects_what_can_be_and_says_it(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """F19: retention and timestamps; snapshots, which are made anew; events, which never are."""
    url = f"kafka://{broker.server}/worn"
    refold = Refold(url, capsys)
    assert refold("namespace", "upgrade", code=4)["error"]["code"] == "R304"
    Refold(f"{url}?partitions=2", capsys)("namespace", "create")
    assert refold("namespace", "upgrade")["changes"] == []
    alter(broker, "worn.events", "retention.ms", "1000")
    alter(broker, "worn.commands", "message.timestamp.type", "CreateTime")
    delete(broker, "worn.snapshots")
    wanted = [
        "makes worn.snapshots with 2 partitions",
        "worn.commands: message.timestamp.type=CreateTime becomes LogAppendTime",
        "worn.events: retention.ms=1000 becomes -1",
    ]
    until(lambda: refold("namespace", "upgrade", "--dry-run")["changes"] == wanted, "it is seen")
    assert refold("namespace", "upgrade")["changes"] == wanted
    shown = refold("namespace", "show")
    assert shown["problems"] == []
    assert shown["topics"]["worn.events"]["settings"]["retention.ms"] == "-1"
    assert shown["topics"]["worn.snapshots"]["settings"]["cleanup.policy"] == "compact"
    delete(broker, "worn.events")
    until(lambda: lost(url, capsys) == "R321", "the broker has forgotten the events")


def lost(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The code of what an upgrade says; empty if it finds nothing."""
    capsys.readouterr()
    ended = main(["namespace", "upgrade", "--dry-run", "--log", url, "--json"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    return str(answer["error"]["code"]) if ended else ""
