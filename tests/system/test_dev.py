"""`refold dev` as a developer has it: one command, real processes, a real database, Ctrl-C."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.client import BlockingClient
from refold.log import open_log
from refold_schemas.events import StepResolved
from refold_tools.dev.page import Page, choose_port
from refold_tools.devstack import Stack, daemons
from refold_tools.devstack.layout import HOST

APP = """
from datetime import timedelta

from refold import App, Effect, Policy, RunContext

app = App("shop")


@app.step(policy=Policy.ESCALATE)
async def charge(fx: Effect, kind: str) -> str:
    if kind == "doubt":
        raise ConnectionError("the bank closed the connection")
    return f"charged {kind}"


@app.run("shop")
async def shop(ctx: RunContext, kind: str) -> str:
    charged = await ctx.step(charge, kind)
    if kind == "slow":
        await ctx.sleep(timedelta(seconds=3))
    return charged + "!"
"""
REFOLD = [sys.executable, "-m", "refold_tools.cli"]
PATIENCE_S = 60.0


class Dev:
    """A `refold dev` in a folder, and what it has said so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*REFOLD, "dev", "shop:app", "--json", *arguments],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream,))
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            self.said += iter(stream.readline, "")  # appended line by line

    def says(self, word: str, count: int = 1) -> str:
        """The line in which `word` comes for the `count`th time."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [line for line in list(self.said) if word in line]
            return len(found) >= count

        until(there, lambda: f"no {word!r} in\n{''.join(self.said)}")
        return found[count - 1]

    @property
    def url(self) -> str:
        return str(json.loads(self.says('"ready"'))["url"])

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code


def until(there: Callable[[], object], told: Callable[[], str] = lambda: "it never came") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


def environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("REFOLD_")}
    return {**kept, "USER": "ada", "NO_COLOR": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "shop.py").write_text(APP)
    yield tmp_path
    Stack(tmp_path / ".refold/dev").down(delete=True)


def call(folder: Path, *arguments: str, code: int = 0) -> Any:
    """The answer of a command in another terminal."""
    done = subprocess.run(
        [*REFOLD, *arguments, "--json"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def children(parent: int, named: str) -> list[int]:
    """Processes of a parent whose command line has that word."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in found if named in Path(f"/proc/{one}/cmdline").read_text()]


def get(url: str, place: str, form: dict[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        headers = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        body = None if form is None else urlencode(form)
        connection.request("GET" if form is None else "POST", place, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """What Prometheus would read: by name and the values of the labels, in their names' order."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    assert len(re.findall(r"(?m)^# TYPE (\S+)", text)) == len(
        set(re.findall(r"(?m)^# TYPE (\S+)", text))
    ), "no family comes twice"
    return {
        (one.name, *(one.labels[label] for label in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def start(folder: Path, kind: str, run_id: str, *more: str, code: int = 0) -> Any:
    return call(
        folder, "start", "shop", "--input", json.dumps(kind), "--run-id", run_id, *more, code=code
    )


def test_one_command_brings_everything_up_and_ctrl_c_ends_all_that_it_started(
    folder: Path,
) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    dev = Dev(folder, "--metrics-port", "0")
    try:
        url = dev.url
        metrics_url = json.loads(dev.says('"ready"'))["metrics"]
        dev.says('"claimed"')
        assert start(folder, "card", "r1", "--wait")["result"] == "charged card!"
        until(lambda: "r1" in get(url, "/runs")[1])
        assert "charged card!" in get(url, "/run?id=r1")[1]
        until(lambda: re.search(r"<dt>completed</dt><dd>1 <small>last hour", get(url, "/")[1]))
        until(lambda: scrape(metrics_url)["refold_projector_records_total",] >= 4)
        scraped = scrape(metrics_url)
        assert scraped["refold_runs_total", "completed", "shop"] == 1
        assert scraped["refold_worker_commands_total",] == 1
        assert scraped["refold_projector_lag_records", "0"] == 0
        assert scraped["refold_gateway_requests_total", "GET", "/runs", "2xx"] >= 1
        services = {labels[1] for name, *labels in scraped if name == "refold_service_info"}
        assert services == {"worker", "projector", "gateway", "live"}

        second = call(folder, "dev", "shop:app", code=2)["error"]
        assert second["code"] == "R560"
        assert f"pid {dev.process.pid}; its page is {url}" in second["message"]

        # Something is in doubt, and settled from the page, under the name of who works here.
        start(folder, "doubt", "r2")
        until(lambda: "r2" in get(url, "/")[1])
        form = {"id": "r2", "slot": "charge#1", "happened": "yes", "result": '"charged by hand"'}
        assert get(url, "/run/resolve", form)[0] == 303
        with BlockingClient(f"sqlite:///{folder}/.refold/log.db", by="test") as client:
            resolved = [
                one.event for one in client.history("r2") if isinstance(one.event, StepResolved)
            ]
            assert [event.by for event in resolved] == ["ada"]

        # A worker that is killed comes back by itself.
        (worker,) = children(dev.process.pid, "refold_tools.cli")
        os.kill(worker, signal.SIGKILL)
        dev.says("the worker was killed by SIGKILL")
        dev.says('"claimed"', 2)

        # Code that cannot be loaded: the worker stays away, what is asked for waits in the log.
        start(folder, "slow", "r3")
        (folder / "shop.py").write_text(APP + "\nthis is not Python (\n")
        assert "restarting the worker" in dev.says("dev: changed: shop.py")
        dev.says("SyntaxError")
        dev.says("Runs wait in the log")
        start(folder, "later", "r4", "--within", "0", code=3)
        assert "r3" in get(url, "/runs")[1], "the page goes on"

        (folder / "shop.py").write_text(APP.replace('charged + "!"', 'charged + "?"'))
        dev.says('"claimed"', 3)
        assert start(folder, "later", "r4", "--wait")["result"] == "charged later?"
        assert start(folder, "slow", "r3", "--wait")["result"] == "charged slow?"

        # A database that is killed comes back by itself, and the tables go on.
        stack = Stack(folder / ".refold/dev")
        os.kill(stack.pid("postgres"), signal.SIGKILL)
        dev.says("dev: the database has ended; it is started again")
        start(folder, "card", "r5", "--wait")
        until(lambda: "r5" in get(url, "/runs")[1])

        (database,) = stack.status()
        assert database.ready
        assert dev.end() == 0
        assert any('"stopped": true}' in line for line in dev.said)
        assert any('"handed_over": true' in line for line in dev.said), "the worker drained"
        assert not Path(f"/proc/{database.pid}").exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, urlsplit(url).port), 5)
        assert bystander.poll() is None, "it ends nothing that it has not started"

        again = Dev(folder)
        dev = again
        assert "r3" in get(again.url, "/runs")[1], "the tables were kept"
    finally:
        bystander.kill()
        bystander.wait()
        dev.end(signal.SIGKILL)
    (database,) = Stack(folder / ".refold/dev").status()
    assert daemons.wait_until(lambda: not Path(f"/proc/{database.pid}").exists(), PATIENCE_S), (
        "not even SIGKILL leaves a database behind"
    )


def test_a_port_that_is_taken_is_said_before_anything_starts(folder: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        error = call(folder, "dev", "shop:app", "--port", str(port), code=2)["error"]
    assert error["code"] == "R562"
    assert str(port) in error["message"]
    assert not (folder / ".refold/dev").exists()


def test_a_folder_that_cannot_be_used_is_said_before_anything_starts(folder: Path) -> None:
    (folder / ".refold").write_text("in the way")
    error = call(folder, "dev", "shop:app", code=2)["error"]
    assert error["code"] == "R564"
    assert str(folder / ".refold") in error["message"]
    (folder / ".refold").unlink()


def test_a_page_that_is_ended_before_it_has_begun_ends(folder: Path) -> None:
    url = f"sqlite:///{folder}/log.db"

    async def make() -> None:
        log = open_log(url)
        await log.open(create=True)
        await log.close()

    asyncio.run(make())
    page = Page(url, "postgresql://refold@127.0.0.1:1/no", choose_port(None), "UTC", "ada", print)
    page.start()
    page.end()
    assert not page.lives


def test_the_howto_names_what_there_is(folder: Path) -> None:
    howto = (Path(__file__).parents[2] / "docs/howto/dev.md").read_text()
    done = subprocess.run([*REFOLD, "dev", "--help"], capture_output=True, text=True, check=True)
    options = set(re.findall(r"`(--[a-z-]+)", howto))
    assert options, "it names options"
    assert {one for one in options if one not in done.stdout} == set()
