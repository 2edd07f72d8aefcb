"""Runs on Kafka as people run them: the demo, and a worker that is frozen and comes back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from support.kafka_broker import Broker

REFOLD = [sys.executable, "-m", "refold_tools.cli"]
WITHIN_S = 120.0
APP = """
import asyncio
from datetime import timedelta
from pathlib import Path

from refold import App, Effect, Policy, RunContext

app = App("shop")
FOLDER = Path(__file__).parent

def note(name: str, line: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(line + "\\n")

@app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(seconds=60))
async def charge(fx: Effect, pence: int) -> str:
    note("began", f"{fx.attempt}")
    await asyncio.sleep(1.5)
    note("charged", f"{fx.key}")
    return "charged"

@app.run("order")
async def order(ctx: RunContext, pence: int) -> str:
    return await ctx.step(charge, pence)
"""


def refold(folder: Path, *arguments: str, code: int = 0) -> Any:
    """The last line of its JSON."""
    done = subprocess.run(
        [*REFOLD, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd=folder,
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def until(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, f"not within 60 s: {what}"
        time.sleep(0.05)


def test_the_demo_on_kafka_dies_twice_and_refunds_once(broker: Broker, tmp_path: Path) -> None:
    url = f"kafka://{broker.server}/demo?partitions=4"
    told = refold(tmp_path, "demo", "--log", url)
    assert told["completed"] is True
    assert told["effects"] == {"ticket": 1, "email": 1, "refund": 1, "note": 1}
    assert told["executed_twice"] == ["decide#31"]
    assert [kill["turn"] for kill in told["kills"]] == [22, 31]
    seen = refold(tmp_path, "boundary", "order-48211", "--log", url)
    assert seen["status"] == "completed"
    assert refold(tmp_path, "doctor", "--log", url)
    made = refold(tmp_path, "export", "--to", "out", "--log", url)
    assert (made["complete"], made["rows"]["runs"]) == (True, 1)
    assert made["rows"]["effects"] >= 3
    events = [one for one in made["files"] if one["table"] == "events"]
    assert len(events) == 4  # each of the partitions was claimed


def test_a_frozen_worker_is_replaced_and_what_it_does_late_is_evidence(
    broker: Broker, tmp_path: Path
) -> None:
    """SIGSTOP inside a call for longer than the session: the same key, and a report for all."""
    (tmp_path / "shop.py").write_text(APP)
    url = f"kafka://{broker.server}/frozen"
    refold(tmp_path, "namespace", "create", "--log", f"{url}?partitions=1")
    workers: list[subprocess.Popen[bytes]] = []

    def worker() -> subprocess.Popen[bytes]:
        with (tmp_path / f"worker-{len(workers)}").open("wb") as said:
            made = subprocess.Popen(
                [*REFOLD, "worker", "shop:app", "--log", url],
                cwd=tmp_path,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(tmp_path)},
            )
        workers.append(made)
        return made

    try:
        first = worker()
        refold(tmp_path, "start", "order", "--input", "4160", "--run-id", "r1", "--within", "60",
               "--log", url)  # fmt: skip
        until(lambda: lines(tmp_path / "began") == ["1"], "the call has begun")
        first.send_signal(signal.SIGSTOP)
        worker()
        until(lambda: lines(tmp_path / "charged") != [], "the second worker repeats under the key")
        until(
            lambda: refold(tmp_path, "boundary", "r1", "--log", url)["status"] == "completed",
            "the run ends",
        )
        first.send_signal(signal.SIGCONT)
        until(lambda: len(lines(tmp_path / "charged")) == 2, "the call of the first goes on")
        assert len(set(lines(tmp_path / "charged"))) == 1, "both went under one key"

        def reported() -> list[str]:
            history = subprocess.run(
                [*REFOLD, "history", "r1", "--log", url],
                capture_output=True,
                text=True,
                timeout=WITHIN_S,
                cwd=tmp_path,
                check=True,
            ).stdout
            return [line for line in history.splitlines() if "AttemptReported" in line]

        until(lambda: len(reported()) == 1, "what it learnt is in the log")
        assert "completed" in reported()[0]
        assert refold(tmp_path, "boundary", "r1", "--log", url)["status"] == "completed"
    finally:
        for one in workers:
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.terminate()
        for one in workers:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def test_topics_that_forget_are_served_by_no_worker_and_doctor_says_so(
    broker: Broker, tmp_path: Path
) -> None:
    """F19: a retention on the events would lose runs that wait for longer."""
    (tmp_path / "shop.py").write_text(APP)
    url = f"kafka://{broker.server}/forgetful"
    refold(tmp_path, "namespace", "create", "--log", f"{url}?partitions=1")
    seen = refold(tmp_path, "doctor", "--log", url)
    assert "not a disk" in json.dumps(seen)
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource("topic", "forgetful.events", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": broker.server})
    for altered in admin.incremental_alter_configs([topic]).values():
        altered.result(30)
    until(lambda: "retention.ms=1000" in json.dumps(doctor(tmp_path, url)), "the topic has changed")
    told = refold(tmp_path, "worker", "shop:app", "--log", url, code=4)
    assert told["error"]["code"] == "R316"
    assert "forgetful.events has retention.ms=1000, not -1" in told["error"]["message"]


def doctor(folder: Path, url: str) -> Any:
    done = subprocess.run(
        [*REFOLD, "doctor", "--log", url, "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd=folder,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1])
