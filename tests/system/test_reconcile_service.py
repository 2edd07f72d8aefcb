"""`refold reconcile --every` beside real workers that are killed, on an SQLite log."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SHOP = """
import os
from datetime import timedelta

from refold import Absent, App, Effect, Found, Policy, RunContext

app = App("shop")


def find(key):
    try:
        with open(f"books/{key}") as file:
            return Found(file.read())
    except FileNotFoundError:
        return Absent()


@app.step(policy=Policy.KEYED, key_ttl=None, lookup=find, settle=timedelta(0),
          timeout=timedelta(milliseconds=300))
async def pay(fx: Effect, pence: int) -> str:
    if pence != 200:  # of those the bank says that they are booked, and loses them
        with open(f"books/{fx.key}", "w") as file:
            file.write(str(pence))
    return str(pence)


@app.run("shop")
async def shop(ctx: RunContext, pence: int) -> str:
    return await ctx.step(pay, pence)
"""
REFOLD = [sys.executable, "-m", "refold_tools.cli"]
PATIENCE_S = 30.0


class Shop:
    """A folder with the app, its books and its log; processes in it end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.books = folder / "books"
        self.books.mkdir()
        (folder / "shop.py").write_text(SHOP)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("REFOLD_")}
        self.environment = {**kept, "REFOLD_LOG": "sqlite:///log.db"}
        self.children: list[subprocess.Popen[str]] = []

    def begin(self, *arguments: str, out: str = "out.txt") -> subprocess.Popen[str]:
        with (self.folder / out).open("w") as file:
            child = subprocess.Popen(
                [*REFOLD, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.children.append(child)
        return child

    def call(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [*REFOLD, *arguments, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    def looks(self) -> list[dict[str, Any]]:
        """What the service has reported so far."""
        lines = (self.folder / "looks.txt").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait(self, until: Callable[[list[dict[str, Any]]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until(self.looks()):
            assert time.monotonic() < deadline, (self.folder / "looks.txt").read_text()
            time.sleep(0.05)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.wait()


def found(looks: list[dict[str, Any]]) -> list[str]:
    return [f"{one['kind']} {one['run_id']}" for look in looks for one in look["findings"]]


def test_every_second_beside_workers_that_die(shop: Shop) -> None:
    shop.call("namespace", "create")
    first = shop.begin("worker", "shop:app")
    told = shop.call("start", "shop", "--input", "100", "--run-id", "a", "--wait", "--within", "60")
    assert told["status"] == "completed"
    (key,) = os.listdir(shop.books)
    service = shop.begin(
        *("reconcile", "shop:app", "--every", "1s", "--json", "--within", "5"), out="looks.txt"
    )
    shop.wait(lambda looks: sum(look["agreed"] for look in looks) >= 1)
    assert found(shop.looks()) == []
    first.send_signal(signal.SIGKILL)
    (shop.books / key).write_text("999")  # after it was asked: another window has it no more
    shop.begin("worker", "shop:app", out="second.txt")
    told = shop.call("start", "shop", "--input", "200", "--run-id", "b", "--wait", "--within", "60")
    assert told["status"] == "completed"
    shop.wait(lambda looks: "missing b" in found(looks))
    assert "different a" not in found(shop.looks())
    keys = {one["effect_key"] for look in shop.looks() for one in look["findings"]}
    (lost,) = keys
    (shop.books / lost).write_text("200")
    shop.wait(lambda looks: any(look["settled"] for look in looks))
    service.send_signal(signal.SIGTERM)
    assert service.wait(PATIENCE_S) == 0
    told = shop.call("reconcile", "shop:app", "--window", "1h", code=1)
    assert [(one["kind"], one["run_id"]) for one in told["findings"]] == [("different", "a")]
    records = shop.call("history", "b")["records"]
    said = [one["what"] for one in records if one["event"] == "FindingRecorded"]
    assert [text.startswith("missing: settled: ") for text in said] == [False, True]
