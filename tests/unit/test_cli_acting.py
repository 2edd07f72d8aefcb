"""Commands that act, in this process: `run` with its own worker, others with one in a thread."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, date
from pathlib import Path
from typing import Any

import pytest

from refold.client import Client
from refold.client.words import event_words, seconds, short
from refold.log import Entry, Topic, partition_for
from refold.log.memory import MemoryBroker, MemoryLog
from refold.worker import Worker, WorkerSettings
from refold_schemas.codec.classes import EVENT_CLASSES
from refold_schemas.commands import StartRun
from refold_schemas.events import RunDiverged
from refold_schemas.values import encode_value
from refold_tools.cli import main
from refold_tools.cli.inputs import load_app
from support.command_line import answer_of, folder_with
from support.messages import example
from support.worker_thread import worker_of
from support.written_log import CODEC, Writer, done, started

URL = "memory://acting"
SHOP = """
import asyncio
from datetime import timedelta

from refold import App, Effect, NotDone, Policy, RunContext

app = App("shop", time_zone="Asia/Tokyo")
silent = declining = True
thinks_for_ever = False


@app.step(policy=Policy.ESCALATE, timeout=timedelta(milliseconds=500))
async def charge(fx: Effect, order_id: str) -> dict:
    if order_id == "declined" and declining:
        raise NotDone("no funds")
    if order_id == "silent" and silent:
        raise ConnectionError("no answer")
    return {"id": f"charge-{order_id}"}


@app.run("shop", plan=["charge"])
async def shop(ctx: RunContext, order_id: str) -> dict:
    ctx.log.info("begun", order=order_id)
    return await ctx.step(charge, order_id)


@app.step(policy=Policy.RE_EXECUTABLE)
async def think(seconds: float) -> float:
    await asyncio.sleep(seconds)
    while thinks_for_ever:
        await asyncio.sleep(0.01)
    return seconds


@app.run("beside")
async def beside(ctx: RunContext, first_s: float) -> None:
    await ctx.gather(ctx.step(charge, "silent"), ctx.step(think, first_s), ctx.step(think, 0.4))


@app.run("sleeper")
async def sleeper(ctx: RunContext) -> None:
    await ctx.sleep(timedelta(days=9))
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    """A log in memory, and a working directory with the module `acting_shop`."""
    with folder_with("acting_shop", SHOP, tmp_path, monkeypatch):
        keeper = MemoryLog(URL)
        keeper.broker.recreate()
        yield keeper.broker


@pytest.fixture
def worker(broker: MemoryBroker) -> Iterator[None]:
    """A worker on a loop in a thread, as another process would be."""
    with worker_of(load_app("acting_shop:app"), URL):
        yield


def answered(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    return answer_of(capsys, URL, *arguments, code=code)


def run(order_id: str, run_id: str = "r1") -> tuple[str, ...]:
    return ("run", "acting_shop:app", "shop", "--input", json.dumps(order_id), "--run-id", run_id)


BESIDE = ("run", "acting_shop:app", "beside", "--input", "0.0", "--run-id", "r1")


def done_slots(capsys: Capture) -> set[str]:
    return {one["slot"] for one in answered(capsys, "boundary", "r1")["done"]}


# ---- run


def test_run_prints_its_result_and_tells_the_rest_on_stderr(
    capsys: Capture, broker: MemoryBroker
) -> None:
    broker.exists = False
    assert main([*run("o1"), "--log", URL]) == 0
    out, err = capsys.readouterr()
    assert out == '{"id": "charge-o1"}\n'
    assert "made the log memory://acting" in err
    assert "starting r1" in err
    assert "info: begun order='o1'" in err
    assert "r1: one step complete, the run completed" in err


def test_run_with_json_prints_exactly_the_fixed_shape(
    capsys: Capture, broker: MemoryBroker
) -> None:
    expected = {
        "run_id": "r1",
        "status": "completed",
        "result": {"id": "charge-o1"},
        "sentence": "one step complete, the run completed",
    }
    assert answered(capsys, *run("o1")) == expected
    assert answered(capsys, *run("o1")) == expected, "the outcome of one that has ended"
    assert answered(capsys, *run("o2"), code=2)["error"]["code"] == "R505"
    error = answered(capsys, "run", "acting_shop:app", "sleeper", "--run-id", "r1", code=2)["error"]
    assert "run r1 exists as shop" in error["message"]


def test_run_of_a_run_that_fails_is_exit_one(capsys: Capture, broker: MemoryBroker) -> None:
    answer = answered(capsys, *run("declined"), code=1)
    assert set(answer) == {"run_id", "status", "error", "sentence"}
    assert answer["status"] == "failed"
    message = answer["error"]["message"]
    assert message.startswith("run r1 failed: NotDone: no funds (in acting_shop.py:")
    assert main([*run("declined"), "--log", URL]) == 1
    assert "(R501)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("start", "s" * 1_001, "--run-id", "r2"), "run has 1,001"),
        (("start", "shop", "--run-id", "r2", "--by", "x" * 1_001), "by has 1,001"),
        (("cancel", "r1", "--why", "x" * 10_001), "why has 10,001"),
    ],
)
def test_a_text_that_no_worker_takes_is_refused_before_it_is_sent(
    capsys: Capture, broker: MemoryBroker, arguments: tuple[str, ...], field: str
) -> None:
    assert answered(capsys, *run("silent"), code=3)["status"] == "in_doubt"
    sent = len(broker.records(Topic.COMMANDS, partition_for("r1", broker.partition_count)))
    error = answered(capsys, *arguments, code=2)["error"]
    assert (error["code"], field in error["message"]) == ("R104", True)
    for partition in range(broker.partition_count):
        expected = sent if partition == partition_for("r1", broker.partition_count) else 0
        assert len(broker.records(Topic.COMMANDS, partition)) == expected


def test_run_stops_where_only_a_person_can_help_and_resumes(
    capsys: Capture, broker: MemoryBroker
) -> None:
    answer = answered(capsys, *run("silent"), code=3)
    assert (answer["status"], answer["error"]["code"]) == ("in_doubt", "R519")
    assert "`refold resolve r1 'charge#1' --happened --result JSON`" in answer["error"]["next"]
    assert main([*run("silent"), "--log", URL]) == 3
    out, _ = capsys.readouterr()
    assert out.startswith("resuming r1: no steps complete, charge in doubt since ")
    answered(
        *(capsys, "resolve", "r1", "charge#1", "--happened", "--result", '{"id": "c9"}'),
        *("--within", "0"),
        code=3,
    )
    assert answered(capsys, *run("silent"))["result"] == {"id": "c9"}


def test_commands_that_are_shown_can_be_typed_for_a_run_whose_id_begins_with_a_hyphen(
    capsys: Capture, broker: MemoryBroker
) -> None:
    asked = answered(capsys, *run("silent", "-7 $x"), code=3)
    assert main(["why", "--json", "--log", URL, "--", "-7 $x"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    happened, absent, *_ = told["commands"]
    assert happened == "refold resolve --happened --result JSON -- '-7 $x' 'charge#1'"
    assert absent == "refold resolve --did-not-happen -- '-7 $x' 'charge#1'"
    assert all(f"`{one}`" in asked["error"]["next"] for one in (happened, absent))
    given = [word.replace("JSON", '{"id": "c9"}') for word in shlex.split(happened)]
    assert main([given[1], "--json", "--log", URL, "--within", "0", *given[2:]]) == 3
    undecided = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    (ask,) = re.findall("`(refold why [^`]+)`", undecided["next"])
    words = shlex.split(ask)
    assert main([words[1], "--log", URL, *words[2:]]) == 0
    assert answered(capsys, *run("silent", "-7 $x"))["result"] == {"id": "c9"}


def test_run_works_on_beside_a_step_that_waits_for_a_person(
    capsys: Capture, broker: MemoryBroker
) -> None:
    answer = answered(capsys, *BESIDE, code=3)
    assert answer["status"] == "in_doubt"
    assert done_slots(capsys) == {"gather#1[1]/think#1", "gather#1[2]/think#1"}


def test_run_begins_what_no_record_shows_beside_a_step_that_waits_for_a_person(
    capsys: Capture, broker: MemoryBroker
) -> None:
    app = load_app("acting_shop:app")
    shop = sys.modules["acting_shop"]
    shop.__dict__["thinks_for_ever"] = True

    async def serve_until_somebody_is_asked() -> None:
        log = MemoryLog(URL)
        await log.open(create=True)
        asked = asyncio.Event()
        worker = Worker(
            app,
            log,
            watch=False,
            settings=WorkerSettings(drain_ms=1),
            on_event=lambda event: asked.set() if event.kind == "in_doubt" else None,
        )
        serving = asyncio.create_task(worker.run())
        async with Client(log) as client:
            await client.start("beside", 0.0, run_id="r1")
            await asked.wait()
        worker.stop()
        await serving
        await log.close()

    asyncio.run(serve_until_somebody_is_asked())
    assert done_slots(capsys) == set()
    shop.__dict__["thinks_for_ever"] = False
    assert answered(capsys, *BESIDE, code=3)["status"] == "in_doubt"
    assert done_slots(capsys) == {"gather#1[1]/think#1", "gather#1[2]/think#1"}


def test_run_gives_other_code_a_chance_before_it_says_that_code_is_missing(
    capsys: Capture, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold_tools.cli.running.LOOK_S", 0.3)
    writer = Writer(broker)
    writer.claim("worker-0", process="p0")
    other = done("load#1", "what no code of ours asks for")
    writer.write("r1", *started(given="o1"), other, RunDiverged("load#1", "no such step", "1"))
    answer = answered(capsys, *run("o1"), code=3)
    assert answer["status"] == "diverged"
    assert "refold retry r1" in answer["error"]["next"]


@pytest.mark.parametrize("command", ["run", "start"])
def test_an_empty_run_id_is_refused(capsys: Capture, broker: MemoryBroker, command: str) -> None:
    target = ("acting_shop:app",) if command == "run" else ()
    arguments = (command, *target, "shop", "--input", '"o1"', "--run-id", "")
    assert answered(capsys, *arguments, code=2)["error"]["code"] == "R103"
    assert answered(capsys, "runs")["total"] == 0


@pytest.mark.parametrize("within", ["1e400", "nan", "1e10", "-1"])
def test_a_patience_without_bounds_is_refused(
    capsys: Capture, broker: MemoryBroker, within: str
) -> None:
    arguments = ("start", "shop", "--input", '"o1"', "--within", within)
    error = answered(capsys, *arguments, code=2)["error"]
    assert (error["code"], "--within" in error["message"]) == ("R518", True)


def test_a_step_that_happened_and_did_not_is_refused(capsys: Capture, broker: MemoryBroker) -> None:
    happened = ("--happened", "--result", "1")
    for both in ((*happened, "--did-not-happen"), ("--did-not-happen", *happened)):
        error = answered(capsys, "resolve", "r1", "charge#1", *both, code=2)["error"]
        assert (error["code"], "not both" in error["message"]) == ("R518", True)


def test_run_decides_a_queued_retry_before_it_gives_the_outcome_of_a_failed_run(
    capsys: Capture, broker: MemoryBroker
) -> None:
    answered(capsys, *run("declined"), code=1)
    sys.modules["acting_shop"].__dict__["declining"] = False
    assert answered(capsys, *run("declined"), code=1)["status"] == "failed", "nobody has asked"
    answered(capsys, "retry", "r1", "--within", "0", code=3)
    assert answered(capsys, *run("declined"))["result"] == {"id": "charge-declined"}


def test_run_and_why_write_times_in_one_zone_if_it_is_set(
    capsys: Capture, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TIME_ZONE", "Pacific/Auckland")
    said = answered(capsys, *run("silent"), code=3)["sentence"]
    assert answered(capsys, "why", "r1")["sentence"] == said
    assert main([*run("silent"), "--log", URL]) == 3
    assert capsys.readouterr().err.count("times in Pacific/Auckland") == 1
    monkeypatch.delenv("REFOLD_TIME_ZONE")
    assert main([*run("silent"), "--log", URL]) == 3
    assert "times in Asia/Tokyo" in capsys.readouterr().err


def test_run_names_the_other_open_runs_of_the_log_once(
    capsys: Capture, broker: MemoryBroker
) -> None:
    assert main([*run("silent"), "--log", URL]) == 3
    assert "also open" not in capsys.readouterr().err
    assert main([*run("o2", "r2"), "--log", URL]) == 0
    assert capsys.readouterr().err.count("also open in this log, and worked on here: r1\n") == 1
    assert main([*run("silent"), "--log", URL]) == 3
    assert "also open" not in capsys.readouterr().err, "r2 has ended"


def test_run_tells_of_the_claim_on_its_own_partition_alone(
    capsys: Capture, broker: MemoryBroker
) -> None:
    url = "memory://acting-on-three"
    keeper = MemoryLog(url, partition_count=3)
    keeper.broker.recreate()
    partition = partition_for("r1", 3)
    assert main([*run("o1"), "--log", url]) == 0
    said = capsys.readouterr().err
    claims = [line for line in said.splitlines() if "  claimed " in line or "  released " in line]
    assert len(claims) == 2
    assert all(f"partition {partition} " in line for line in claims)
    assert "other partitions served meanwhile: " in said


def test_what_is_archived_is_not_listed_and_is_published_again_all_the_same(
    capsys: Capture, broker: MemoryBroker
) -> None:
    start = StartRun("c-start", "r9", "nosuch", encode_value("o9"), None, "them")
    broker.put(Topic.COMMANDS, 0, [Entry(b"r9", CODEC.encode(start))])
    assert answered(capsys, *run("o1"))["status"] == "completed"
    assert answered(capsys, "commands", "rejected")["total"] == 1
    answered(capsys, "archive", "--before", "0s", "--commands-before", "0s")
    assert broker.bounds(Topic.EVENTS, 0)[0] > 0
    assert main(["commands", "rejected", "--log", URL]) == 0
    said = capsys.readouterr().out
    assert said == "no command was rejected, in what the log still holds\n"
    assert answered(capsys, "commands", "republish", "0", "0")["run_id"] == "r9"
    error = answered(capsys, "commands", "republish", "0", "1", code=2)["error"]
    assert "it was applied, or its rejection is archived" in error["message"]


# ---- the others


def test_start_returns_at_once_or_waits_for_the_end(
    capsys: Capture, broker: MemoryBroker, worker: None
) -> None:
    started_run = answered(capsys, "start", "shop", "--input", '"o1"', "--run-id", "r1")
    assert (started_run["run_id"], started_run["run"]) == ("r1", "shop")
    waited = answered(capsys, "start", "shop", "--input", '"o1"', "--run-id", "r1", "--wait")
    assert waited["result"] == {"id": "charge-o1"}
    again = answered(capsys, "start", "shop", "--input", '"o1"', "--run-id", "r1")
    assert (again["status"], again["existed"]) == ("completed", True)
    assert started_run["existed"] is False
    assert main(["start", "shop", "--input", '"o1"', "--run-id", "r1", "--log", URL]) == 0
    assert capsys.readouterr().out == "r1 was there already, with this input: completed\n"
    assert main(["start", "shop", "--input", '"o2"', "--log", URL]) == 0
    run_id = capsys.readouterr().out.split()[1]
    assert len(run_id) == 36
    for arguments, code in (
        (("start", "shop", "--input", '"o2"', "--run-id", "r1"), "R505"),
        (("start", "shoop", "--input", '"o2"'), "R506"),
        (("start", "shop", "--input", "7"), "R507"),
        (("start", "shop", "--input", '"o1"', "--version", "2"), "R506"),
    ):
        assert answered(capsys, *arguments, code=2)["error"]["code"] == code


def test_resolve_retry_and_cancel_say_what_was_recorded(
    capsys: Capture, broker: MemoryBroker, worker: None
) -> None:
    silent = ("start", "shop", "--input", '"silent"', "--run-id", "r1", "--wait")
    assert answered(capsys, *silent, code=3)["status"] == "in_doubt"
    denied = answered(capsys, "resolve", "r1", "charge#1", "--did-not-happen", "--by", "ada")
    assert denied["run_id"] == "r1"
    assert answered(capsys, *silent, code=3)["status"] == "in_doubt", "it was tried again"
    assert answered(capsys, "retry", "r1", code=2)["error"]["code"] == "R526"
    assert main(["cancel", "r1", "--why", "no longer wanted", "--log", URL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("recorded: cancellation asked for. r1: ")
    answered(capsys, "cancel", "r1")
    happened = ("resolve", "r1", "charge#1", "--happened", "--result", '{"id": "c9"}')
    answered(capsys, *happened)
    waited = answered(capsys, *silent, code=1)
    assert (waited["status"], waited["error"]["code"]) == ("cancelled", "R502")
    assert "no longer wanted" in waited["error"]["message"]
    error = answered(capsys, "cancel", "r1", code=1)["error"]
    assert (error["code"], "run r1 was cancelled" in error["message"]) == ("R525", True)
    assert answered(capsys, "cancel", "r9", code=2)["error"]["code"] == "R503"


def test_a_result_of_another_type_is_refused_with_the_type_that_fits(
    capsys: Capture, broker: MemoryBroker, worker: None
) -> None:
    silent = ("start", "shop", "--input", '"silent"', "--run-id", "r1", "--wait")
    assert answered(capsys, *silent, code=3)["status"] == "in_doubt"
    happened = ("resolve", "r1", "charge#1", "--happened", "--result", "7")
    error = answered(capsys, *happened, code=2)["error"]
    assert error["code"] == "R507"
    assert "the result does not fit what charge returns (dict): " in error["message"]
    assert error["next"] == "say it again with a result of that type; nothing was resolved"


def test_a_failed_run_is_retried(capsys: Capture, broker: MemoryBroker, worker: None) -> None:
    answered(capsys, "start", "shop", "--input", '"declined"', "--run-id", "r1", "--wait", code=1)
    answer = answered(capsys, "retry", "r1", "--fresh-key", "--by", "ada")
    assert answer["run_id"] == "r1"


def test_without_a_worker_what_is_certain_is_refused_at_once(
    capsys: Capture, broker: MemoryBroker
) -> None:
    answered(capsys, *run("silent"), code=3)
    answered(capsys, *run("o1", "r2"))
    count = len(broker.records(Topic.COMMANDS, 0))
    happened = ("--happened", "--result", "null")
    for arguments, code, exit_code in (
        (("cancel", "r9"), "R503", 2),
        (("retry", "r9"), "R503", 2),
        (("resolve", "r9", "charge#1", *happened), "R503", 2),
        (("resolve", "r1", "charge#7", *happened), "R508", 2),
        (("resolve", "r2", "charge#1", *happened), "R508", 2),
        (("cancel", "r2"), "R525", 1),
        (("retry", "r2"), "R525", 1),
    ):
        error = answered(capsys, *arguments, code=exit_code)["error"]
        assert error["code"] == code, arguments
        if code != "R503":
            assert error["kept"] == "the run as it was; nothing was sent"
    assert len(broker.records(Topic.COMMANDS, 0)) == count
    # May still be right when it is decided: said, and sent.
    assert main(["retry", "r1", "--within", "0", "--log", URL]) == 3
    assert "note: at the log's end run r1 is neither parked nor failed" in capsys.readouterr().err
    assert len(broker.records(Topic.COMMANDS, 0)) == count + 1


def test_why_shows_commands_that_wait_and_the_last_that_was_refused(
    capsys: Capture, broker: MemoryBroker
) -> None:
    answered(capsys, "start", "shop", "--input", '"silent"', "--run-id", "r1", code=3)
    error = answered(capsys, "why", "r1", code=2)["error"]
    assert "there is no run 'r1' in namespace acting yet: StartRun (by " in error["message"]
    assert error["next"].startswith("start a worker")
    answered(capsys, *run("silent"), code=3)
    assert "waits for a worker" not in answered(capsys, "why", "r1")["text"]
    retry = ("retry", "r1", "--by", "ada", "--within", "0")
    answered(capsys, *retry, code=3)
    happened = ("--happened", "--result", '{"id": "c9"}', "--by", "ada", "--within", "0")
    answered(capsys, "resolve", "r1", "charge#1", *happened, code=3)
    text = answered(capsys, "why", "r1")["text"]
    assert "RetryRun (by ada, " in text
    assert "ResolveStep charge#1 (happened, by ada, " in text
    assert text.count("waits for a worker") == 2
    answered(capsys, *run("silent"))
    answered(capsys, *run("silent", "r2"), code=3)
    answered(capsys, "retry", "r2", "--within", "0", code=3)
    answered(capsys, *run("silent", "r2"), code=3)
    text = answered(capsys, "why", "r2")["text"]
    assert "The last command for it that was refused: RetryRun at " in text
    assert "(nothing_to_retry): run r2 is neither parked nor failed" in text


# ---- words


@pytest.mark.parametrize("kind", EVENT_CLASSES, ids=lambda kind: kind.__name__)
def test_every_event_has_words(kind: type) -> None:
    line = event_words(example(kind), UTC, date(2026, 8, 1))
    assert line.event == kind.__name__
    assert line.what.strip()
    assert "\n" not in line.what


def test_durations_and_texts_are_short() -> None:
    assert seconds(90_900) == "90.9 s"
    assert seconds(120_000) == "2 min"
    assert short("a\nb" + "x" * 100) == "a b" + "x" * 56 + "…"
