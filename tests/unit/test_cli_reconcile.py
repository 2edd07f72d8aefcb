"""`refold reconcile` on the command line: exit codes, JSON, what a person reads, bad input."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.log.memory import MemoryBroker, MemoryLog
from refold.telemetry import CATALOGUE
from refold.worker import WorkerSettings
from refold_schemas.errors import LogUnavailable, OffsetOutOfRange, RefoldError, SchemaUnavailable
from refold_tools.cli import main, reconciling
from refold_tools.cli.inputs import load_app
from refold_tools.reconcile import Report, Window
from refold_tools.reconcile.metrics import ReconcileMetrics
from support.command_line import answer_of, folder_with
from support.worker_thread import worker_of

URL = "memory://reconciled"
SHOP = """
import threading
from datetime import timedelta

from refold import Absent, App, Effect, Found, Policy, RunContext

app = App("shop")
books = {}
hang = threading.Event()


def find(key):
    if hang.is_set():
        threading.Event().wait(60)
    return Found(books[key]) if key in books else Absent()


@app.step(policy=Policy.KEYED, key_ttl=None, lookup=find, settle=timedelta(0),
          timeout=timedelta(milliseconds=200), amounts=("pence",))
async def pay(fx: Effect, pence: int) -> dict:
    return books.setdefault(fx.key, {"paid": pence})


@app.run("shop")
async def shop(ctx: RunContext, pence: int) -> dict:
    return await ctx.step(pay, pence)
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    """A log in memory, and a working directory with the module `reconciled_shop`."""
    with folder_with("reconciled_shop", SHOP, tmp_path, monkeypatch):
        keeper = MemoryLog(URL)
        keeper.broker.recreate()
        yield keeper.broker


@pytest.fixture
def shop(broker: MemoryBroker) -> Iterator[Any]:
    """The module, and a worker on a loop in a thread, as another process would be."""
    app, settings = load_app("reconciled_shop:app"), WorkerSettings(checkpoint_ms=100)
    with worker_of(app, URL, settings):
        yield sys.modules["reconciled_shop"]


def told(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    return answer_of(capsys, URL, *arguments, code=code)


RECONCILE = ("reconcile", "reconciled_shop:app")


def paid(capsys: Capture, *run_ids: str) -> None:
    for run_id in run_ids:
        answer = told(capsys, "start", "shop", "--input", "4160", "--run-id", run_id, "--wait")
        assert answer["status"] == "completed"
    threading.Event().wait(0.3)  # timeout and settle


def test_a_finding_from_the_look_to_its_settlement(capsys: Capture, shop: Any) -> None:
    paid(capsys, "r1", "r2")
    answer = told(capsys, *RECONCILE)
    assert (answer["asked"], answer["agreed"], answer["findings"]) == (2, 2, [])
    key = told(capsys, "history", "r1")["records"]
    (intended,) = [one for one in key if one["event"] == "StepIntended"]
    (taken,) = [k for k in shop.books if k in intended["what"]]
    shop.books[taken] = {"paid": 4610}
    answer = told(capsys, *RECONCILE, code=1)
    (finding,) = answer["findings"]
    assert (finding["kind"], finding["run_id"], finding["slot"]) == ("different", "r1", "pay#1")
    assert (finding["state"], finding["recorded"]) == ("new", True)
    assert "result.paid 4160 → 4610" in finding["detail"]
    again = told(capsys, *RECONCILE, code=1)["findings"]
    assert [one["state"] for one in again] == ["known"]
    doctor = told(capsys, "doctor", code=1)
    assert [one["finding_id"] for one in doctor["open_findings"]] == [finding["finding_id"]]
    why = told(capsys, "why", "r1")
    assert finding["detail"] in why["text"]
    assert finding["command"] in why["commands"]
    accepted = told(capsys, "reconcile", "--accept", finding["finding_id"], "--why", "my mistake")
    assert accepted == {
        "run_id": "r1",
        "finding_id": finding["finding_id"],
        "status": "accepted",
    }
    assert told(capsys, *RECONCILE)["findings"][0]["state"] == "accepted"
    said = [
        one["what"]
        for one in told(capsys, "history", "r1")["records"]
        if one["event"] == "FindingRecorded"
    ]
    assert said[0].startswith("different: pay#1 is done here and there under key ")
    assert said[1].startswith("different: dealt with by ")
    assert said[1].endswith("(my mistake)")
    error = told(capsys, "reconcile", "--accept", finding["finding_id"], code=2)["error"]
    assert error["code"] == "R820"


def test_what_a_person_reads(capsys: Capture, shop: Any) -> None:
    paid(capsys, "r1")
    shop.books.clear()
    assert main([*RECONCILE, "--log", URL, "--dry-run"]) == 1
    out, _ = capsys.readouterr()
    assert "1 asked, 0 agree, 1 finding, 0 unknown" in out
    assert "missing     r1: pay#1 is done here (attempt 1), and under its key " in out
    assert "refold reconcile --accept " in out
    assert told(capsys, "doctor")["open_findings"] == []


def test_a_lookup_in_a_thread_that_hangs_is_unknown(capsys: Capture, shop: Any) -> None:
    paid(capsys, "r1")
    shop.hang.set()
    answer = told(capsys, *RECONCILE, "--timeout", "0.1")
    assert (answer["findings"], answer["asked"], answer["lookups"]) == ([], 1, 3)
    assert answer["unknown"][0]["why"] == "no answer within 0.1 s"
    assert main([*RECONCILE, "--timeout", "0.1", "--log", URL]) == 0
    out, _ = capsys.readouterr()
    assert "unknown     r1 pay#1, key " in out


def test_a_window_without_effects(capsys: Capture, shop: Any) -> None:
    paid(capsys, "r1")
    assert told(capsys, *RECONCILE, "--until", "1h")["asked"] == 0
    assert told(capsys, *RECONCILE, "--window", "15m")["asked"] == 1
    assert told(capsys, *RECONCILE, "--since", "2026-01-01")["asked"] == 1


def test_looks_that_go_on_answer_prometheus(capsys: Capture, shop: Any) -> None:
    paid(capsys, "r1", "r2")
    shop.books.clear()  # the far system has lost both
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    scraped: list[dict[tuple[str, ...], float]] = []

    def scrape() -> None:
        try:
            while True:
                with suppress(OSError):
                    url = f"http://127.0.0.1:{port}/metrics"
                    with urllib.request.urlopen(url, timeout=10) as answer:
                        scraped.append(samples(answer.read().decode()))
                    if scraped[-1]["refold_reconcile_rounds_total", "done"] >= 2:
                        return
                threading.Event().wait(0.05)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=scrape)
    thread.start()
    looking = (*RECONCILE, "--every", "1s", "--metrics-port", str(port))
    found = main([*looking, "--json", "--log", URL])
    thread.join()
    out, err = capsys.readouterr()
    assert f"metrics at http://127.0.0.1:{port}/metrics" in err
    looks = [json.loads(line) for line in out.splitlines()]
    assert len(looks[0]["findings"]) == 2
    assert found == (1 if looks[-1]["findings"] else 0)
    last = scraped[-1]
    assert last["refold_reconcile_findings_total", "missing"] == 2
    assert last["refold_reconcile_findings_total", "conflict"] == 0
    assert last["refold_reconcile_rounds_total", "failed"] == 0
    assert last["refold_reconcile_asked_total",] >= 2
    named = {m.name for m in CATALOGUE if m.of == "reconcile"}
    assert named <= {name for name, *_ in last}


class Looks:
    """A reconciler whose looks come to these in turn; with the last one it is told to stop."""

    def __init__(self, *said: Report | RefoldError) -> None:
        self.left = list(said)
        self.since: list[int] = []

    async def look(self, window: Window) -> Report:
        self.since.append(window.since_ms)
        if len(self.left) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        said = self.left.pop(0)
        if isinstance(said, RefoldError):
            raise said
        return said


def again(looks: Looks) -> dict[tuple[str, ...], object]:
    """Look every millisecond; how many looks were done and failed."""
    metrics = ReconcileMetrics("shop")
    given: Any = looks
    first = Window(7, 8)
    asyncio.run(reconciling._again(given, first, 1, UTC, metrics, as_json=True))
    return {(one.name, *one.labels): one.value for one in metrics()}


def test_what_passes_ends_no_service_and_nothing_is_left_out() -> None:
    window = Window(7, 8)
    away = SchemaUnavailable(7, "the registry does not answer")
    gone = OffsetOutOfRange(topic="events", partition=0, offset=1, start=2, end=3)
    log = LogUnavailable("memory://x", "its broker does not answer")
    looks = Looks(Report(window), away, gone, log, Report(window))
    found = again(looks)
    assert looks.since == [7, 8, 8, 8, 8]
    rounds = "refold_reconcile_rounds_total"
    assert (found[rounds, "done"], found[rounds, "failed"]) == (2, 3)
    with pytest.raises(SchemaUnavailable):
        again(Looks(Report(window), SchemaUnavailable(7, "there is none", mends=False), away))


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and the values of labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("reconcile",), "R518", "MODULE:APP"),
        ((*RECONCILE, "--since", "1d", "--window", "1d"), "R518", "give one of them"),
        ((*RECONCILE, "--since", "yesterday"), "R518", "neither an age like"),
        ((*RECONCILE, "--window", "0h"), "R518", "write a duration"),
        ((*RECONCILE, "--every", "1h", "--until", "1h"), "R518", "leave out --until"),
        ((*RECONCILE, "--since", "1h", "--until", "2h"), "R518", "the window is empty"),
        ((*RECONCILE, "--accept", "f-1"), "R518", "stands alone"),
        ((*RECONCILE, "--metrics-port", "0"), "R518", "give --every, too"),
        (("reconcile", "--accept", "f-1"), "R821", "has a finding"),
        (("reconcile", "nosuch:app"), "R516", "nosuch"),
    ],
)
def test_wrong_usage_is_exit_two(
    capsys: Capture, shop: Any, arguments: tuple[str, ...], code: str, said: str
) -> None:
    error = told(capsys, *arguments, code=2)["error"]
    assert error["code"] == code
    assert said in error["message"]


def test_a_log_that_is_not_there_is_exit_four(capsys: Capture, shop: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/log.db"
    found = main([*RECONCILE, "--json", "--log", url])
    out, _ = capsys.readouterr()
    assert (found, json.loads(out)["error"]["code"][0]) == (4, "R")
