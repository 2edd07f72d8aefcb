"""The commands that read, on logs written by hand: shapes, exit codes, words and colours."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.client import HistoryRecord
from refold.client.reading import Reading
from refold.log import Topic
from refold.log.memory import MemoryBroker, MemoryLog
from refold_projections.fold import Verdict
from refold_schemas.errors import CallRefused, LogUnavailable
from refold_schemas.events import (
    AttemptReported,
    EvidenceConflict,
    PartitionReleased,
    RunBlocked,
    RunCancelRequested,
    RunCompleted,
    RunDiverged,
    RunFailed,
    StepFailed,
    StepInDoubt,
    StepResolved,
    TimerScheduled,
)
from refold_schemas.values import ErrorInfo, encode_error, encode_value
from refold_tools.cli import main
from refold_tools.cli.asking import _in_order
from refold_tools.cli.doctor import _away, _room
from support.command_line import plain_environment
from support.written_log import CODEC, KEY, Writer, acted, done, intended, started

URL = "memory://cli"
DECLINED = ErrorInfo("CardDeclined", "shop:CardDeclined", "no funds", None)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    keeper = MemoryLog(URL)  # `--log memory://cli` is this log as long as somebody holds it
    broker, now_ms = keeper.broker, keeper.broker.now_ms
    broker.recreate()
    yield broker
    broker.now_ms = now_ms  # the next test may find the same one: nobody knows when it is let go


@pytest.fixture
def writer(broker: MemoryBroker) -> Writer:
    made = Writer(broker)
    made.claim()
    return made


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_environment(monkeypatch)


Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What a command prints on stdout; its exit code is as expected."""
    found = main([*arguments, "--log", URL])
    out, err = capsys.readouterr()
    assert found == code, err or out
    return out


def answered(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON on the last line of stdout."""
    lines = told(capsys, *arguments, "--json", code=code).splitlines()
    payload: dict[str, Any] = json.loads(lines[-1])
    return payload


def refused(capsys: Capture, *arguments: str, code: int) -> str:
    """The one sentence on stderr, which is no traceback."""
    assert main([*arguments, "--log", URL]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("refold: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# ---- boundary


def test_the_boundary_has_exactly_the_fixed_shape(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started("load", "charge", "mail"), done("load#1"))
    writer.write("r1", intended("check#1", policy="keyed"))
    writer.write("r1", StepFailed("check#1", 1, DECLINED, False, False, None, None, None))
    writer.write("r1", intended("charge#1"))
    assert answered(capsys, "boundary", "r1") == {
        "run_id": "r1",
        "run": "shop",
        "version": "1",
        "status": "in_doubt",
        "reason": "charge#1: the process that ran it ended before its outcome was recorded",
        "needs": "person",
        "position": {"partition": 0, "offset": 7},
        "done": [
            {
                "slot": "load#1",
                "step": "load",
                "attempt": 1,
                "at": "2026-08-01T12:00:03.000+00:00",
            }
        ],
        "under_way": [],
        "in_doubt": [
            {
                "slot": "charge#1",
                "step": "charge",
                "attempt": 1,
                "since": "2026-08-01T12:00:06.000+00:00",
                "policy": "escalate",
                "effect_key": KEY,
            }
        ],
        "failed": [
            {
                "slot": "check#1",
                "step": "check",
                "attempt": 1,
                "at": "2026-08-01T12:00:04.000+00:00",
                "error": "CardDeclined: no funds",
            }
        ],
        "remaining": ["charge", "mail"],
        "sentence": "one step complete, charge in doubt since 2026-08-01 12:00, "
        "check failed (CardDeclined: no funds), two steps remaining",
    }


def test_without_a_plan_nothing_is_said_to_remain(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started(), done("load#1"))
    answer = answered(capsys, "boundary", "r1")
    assert (answer["remaining"], answer["sentence"]) == (None, "one step complete")


def test_times_are_written_in_the_zone_that_was_asked_for(
    capsys: Capture, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("r1", *started(), done("load#1"))
    at = answered(capsys, "boundary", "r1", "--time-zone", "Asia/Tokyo")["done"][0]["at"]
    assert at == "2026-08-01T21:00:02.000+09:00"
    monkeypatch.setenv("REFOLD_TIME_ZONE", "Asia/Tokyo")
    assert "2026-08-01 21:00  load#1" in told(capsys, "boundary", "r1")


def test_a_time_zone_that_does_not_exist_is_refused(capsys: Capture, writer: Writer) -> None:
    error = refused(capsys, "boundary", "r1", "--time-zone", "Mars/Olympus", code=2)
    assert "--time-zone: there is no time zone 'Mars/Olympus'" in error
    assert "REFOLD_TIME_ZONE" not in error


@pytest.mark.parametrize(
    ("option", "known"), [("--needs", "time, person, code"), ("--status", "in_doubt")]
)
def test_a_word_that_could_only_find_nothing_is_refused(
    capsys: Capture, writer: Writer, option: str, known: str
) -> None:
    error = refused(capsys, "runs", option, "foo", code=2)
    assert f"{option} foo: there is no such one; it is one of " in error
    assert known in error


def test_what_happened_within_the_hour_has_its_seconds_and_the_zone_is_said_once(
    capsys: Capture, broker: MemoryBroker
) -> None:
    now = Writer(broker, at_ms=time.time_ns() // 1_000_000 - 5_000)
    now.claim()
    now.write("r1", *started(), done("load#1"), intended("charge#1"))
    out = told(capsys, "boundary", "r1", "--time-zone", "Asia/Tokyo")
    assert re.search(r"done +\d\d:\d\d:\d\d +load#1", out)
    assert re.search(r"in doubt since \d\d:\d\d[,.]", out), "the sentence is fixed"
    assert out.count("times in Asia/Tokyo") == 1
    assert re.search(r"was intended at \d\d:\d\d:\d\d under", told(capsys, "why", "r1"))
    assert told(capsys, "why", "r1").count("Times in UTC") == 1
    assert "CHANGED (UTC)" in told(capsys, "runs")


def test_the_boundary_for_people_names_every_step(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started("load", "charge"), done("load#1"), intended("gather#1[0]/charge#1"))
    out = told(capsys, "boundary", "r1")
    assert out.splitlines()[0] == (
        "One step complete, gather#1[0]/charge#1 in doubt since 2026-08-01 12:00, "
        "one step remaining."
    )
    assert re.search(r"done +2026-08-01 12:00 +load#1", out)
    assert re.search(rf"in doubt +.* +gather#1\[0\]/charge#1 +attempt 1, escalate, key {KEY}", out)
    assert "\x1b" not in out, "colour is for terminals"


# ---- errors


def test_an_unknown_run_is_exit_two_with_the_shape_of_errors(
    capsys: Capture, broker: MemoryBroker
) -> None:
    compare = "compare with `refold runs`, and check that --log names the right log"
    ask = "`refold why r9` says whether its start waits or was refused; else "
    for command, then in (("boundary", ask), ("history", ask), ("why", "")):
        answer = answered(capsys, command, "r9", code=2)
        assert answer == {
            "error": {
                "code": "R503",
                "message": "there is no run 'r9' in namespace cli",
                "kept": "the log as it was",
                "next": f"{then}{compare}",
            }
        }
    assert "no run 'r9'" in refused(capsys, "why", "r9", code=2)


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("sqlite:////nowhere/log.db", 4, "is not available"),
        ("memory://nobody-made-it", 4, "nobody has made its topics"),
        ("log.db", 2, "does not begin with a scheme"),
        ("redis://localhost", 2, "no log of the kind redis"),
        ("kafka://127.0.0.1:1/x", 4, "is not available"),
    ],
)
def test_a_log_that_cannot_be_opened_is_said_in_one_sentence(
    capsys: Capture, url: str, code: int, message: str
) -> None:
    assert main(["runs", "--log", url]) == code
    assert message in capsys.readouterr().err
    assert main(["runs", "--log", url, "--json"]) == code
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert set(error) == {"code", "message", "kept", "next"}
    assert all(error.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["boundary"], "Missing argument 'RUN_ID'"),
        (["boundry", "r1"], "No such command 'boundry'. Did you mean 'boundary'?"),
        (["runs", "--limit", "many"], "Invalid value for '--limit'"),
        (["runs", "--colour"], "No such option"),
        (["namespace", "destroy"], "No such command 'destroy'"),
    ],
)
def test_wrong_usage_is_exit_two(capsys: Capture, arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert error["code"] == "R518"
    assert message.rstrip(".") in error["message"]


def test_nothing_but_the_name_shows_the_help(capsys: Capture) -> None:
    assert main([]) == 2
    assert "Commands" in capsys.readouterr().out


def test_a_defect_is_one_sentence_and_its_traceback_only_with_debug(
    capsys: Capture, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("r1", *started())

    def broken(*_: object) -> str:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("refold_projections.fold.sentence", broken)
    error = refused(capsys, "boundary", "r1", code=1)
    assert "unexpected ZeroDivisionError: by nought at " in error
    assert main(["boundary", "r1", "--debug", "--log", URL]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_log_of_the_environment_is_used(
    capsys: Capture, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("r1", *started())
    monkeypatch.setenv("REFOLD_LOG", URL)
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 1


# ---- runs


def test_runs_are_listed_with_what_they_wait_for(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started())
    writer.write("r2", *started(command_id="c2"), RunCompleted(encode_value(1)))
    writer.write("r3", *started(command_id="c3"), RunBlocked("crashes_worker", "three times"))
    answer = answered(capsys, "runs")
    assert [(one["run_id"], one["status"], one["needs"]) for one in answer["runs"]] == [
        ("r3", "blocked", "person"),
        ("r2", "completed", None),
        ("r1", "running", None),
    ]
    assert answer["runs"][1]["changed"] == "2026-08-01T12:00:03.000+00:00"
    assert answered(capsys, "runs", "--needs", "person")["total"] == 1
    assert answered(capsys, "runs", "--status", "running", "--status", "completed")["total"] == 2
    short = told(capsys, "runs", "--limit", "1")
    assert "crashes_worker: three times" in short
    assert "2 more: --limit 3 shows them" in short


def test_the_reason_of_a_failed_run_is_short_and_holds_one_message(
    capsys: Capture, writer: Writer
) -> None:
    error = CallRefused("ctx.each", "every=0", "give every a whole number from 1 on" + "x" * 200)
    writer.write("r1", *started(), RunFailed(encode_error(error)))
    [one] = answered(capsys, "runs")["runs"]
    assert one["reason"] == "CallRefused: ctx.each: every=0 (R402)"
    assert "CallRefused: ctx.each: every=0 (R402)" in told(capsys, "runs")
    assert "Kept" not in told(capsys, "why", "r1") + told(capsys, "history", "r1")


def test_an_empty_log_has_no_runs(capsys: Capture, broker: MemoryBroker) -> None:
    assert told(capsys, "runs") == "no runs\n"
    assert answered(capsys, "runs") == {"runs": [], "total": 0}


# ---- history


def test_the_history_has_a_line_for_each_record_and_marks_what_does_not_count(
    capsys: Capture, writer: Writer
) -> None:
    writer.write("r1", *started(given={"id": "o1"}), intended("charge#1", policy="keyed"))
    writer.again("r1", done("load#1"), n=0)
    writer.claim("worker-2")
    writer.write("r1", acted("charge#1", {"ok": True}))
    lines = told(capsys, "history", "r1").splitlines()
    assert lines[0] == "2026-08-01, times in UTC"
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert "12:00:01.000  010101  RunStarted" in lines[1]
    assert 'shop version 1 by test, input {"id":"o1"}' in lines[1]
    assert f"charge#1  attempt 1, keyed, key {KEY}, timeout 30 s" in lines[2]
    assert lines[3].endswith("[skipped: a stored copy of a record that was read before]")
    assert "worker-2 owns the partition now, with app shop" in lines[4]
    assert 'attempt 1 returned {"ok":true}' in lines[5]
    assert len(told(capsys, "history", "r1", "--no-claims").splitlines()) == 5


def test_the_history_is_in_the_logs_order_though_its_clock_was_set_back() -> None:
    def record(partition: int, offset: int, append_ms: int) -> HistoryRecord:
        return HistoryRecord(
            partition, offset, append_ms, append_ms, b"", 1, offset, Verdict.COUNTS, None, None
        )

    home = [record(0, 1, 5_000), record(0, 2, 9_000), record(0, 3, 1_000), record(0, 4, 9_500)]
    elsewhere = [record(1, 7, 6_000), record(1, 8, 9_200)]
    shown = [(one.partition, one.offset) for one in _in_order([*home, *elsewhere])]
    assert shown == [(0, 1), (1, 7), (0, 2), (0, 3), (1, 8), (0, 4)]


def test_the_history_as_json_says_what_counts(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started(), done("load#1"))
    writer.raw("r1", CODEC.encode(done("load#2"))[:-2])
    writer.raw("r1", b"?", header=b"no header")
    records = answered(capsys, "history", "r1")["records"]
    assert [(r["offset"], r["event"], r["slot"], r["counted"]) for r in records] == [
        (1, "RunStarted", None, True),
        (2, "StepCompleted", "load#1", True),
        (3, None, None, True),
        (4, None, None, False),
    ]
    assert records[3]["why_skipped"]
    assert records[2]["what"]
    assert (records[0]["claim"], records[0]["n"], records[0]["epoch"]) == ("01" * 16, 0, 1)
    assert "undecodable" in told(capsys, "history", "r1")


# ---- why


def test_why_names_the_command_that_a_person_should_type(capsys: Capture, writer: Writer) -> None:
    writer.write("order 1", *started("charge"), intended("charge#1"))
    writer.write("order 1", StepInDoubt("charge#1", 1, "the vendor gave no answer", True))
    answer = answered(capsys, "why", "order 1")
    assert answer["needs"] == "person"
    assert "nobody knows whether it acted: the vendor gave no answer." in answer["text"]
    assert f"under the effect key {KEY}" in answer["text"]
    assert answer["commands"][:2] == [
        "refold resolve 'order 1' 'charge#1' --happened --result JSON",
        "refold resolve 'order 1' 'charge#1' --did-not-happen",
    ]
    assert answer["text"] in told(capsys, "why", "order 1")


def test_why_says_what_the_policy_will_do_and_when(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started(), intended("charge#1", policy="resolvable"))
    text = answered(capsys, "why", "r1")["text"]
    assert "looks it up by that key, at once. Found settles it; absent is believed" in text
    assert "only 90.9 s after its own claim" in text
    assert "No live worker owns its partition now" in text
    broker.suggest("worker-1")
    text = answered(capsys, "why", "r1")["text"]
    assert "is being executed by worker-1 since 2026-08-01 12:00" in text
    assert "No live worker" not in text


def test_why_tells_evidence_and_its_contradictions(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started(), intended("charge#1"))
    writer.claim("worker-2")
    writer.report(
        "r1",
        AttemptReported("charge#1", 1, KEY, "never_started", None, None, "worker-1"),
        bytes([1]) * 16,
        1,
    )
    assert "Reported of it: never started." in answered(capsys, "why", "r1")["text"]
    writer.write("r1", EvidenceConflict("charge#1", 1, "absent", "completed"))
    assert "Evidence contradicts" in answered(capsys, "why", "r1")["text"]


@pytest.mark.parametrize(
    ("event", "said", "command"),
    [
        (
            RunDiverged("charge#1", "step 5 charge: argument pence 4160 → 4610", "2"),
            "step 5 charge: argument pence 4160 → 4610",
            "refold retry r1",
        ),
        (
            RunBlocked("crashes_worker", "three times"),
            "No live worker can continue it",
            "refold retry r1",
        ),
        (RunFailed(DECLINED), "CardDeclined: no funds", "refold retry r1"),
        (RunCancelRequested("ada", "no", "c9"), "Its end was asked for", None),
        (
            TimerScheduled("sleep:sleep#1", 1, "sleep", "sleep#1", 1_785_672_000_000),
            "goes on by itself at 2026-08-02 12:00",
            None,
        ),
        (RunCompleted(encode_value(None)), "nothing is left to do", None),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, str) else "",
)
def test_why_explains_each_status(
    capsys: Capture, broker: MemoryBroker, writer: Writer, event: Any, said: str, command: str
) -> None:
    writer.write("r1", *started(), event)
    broker.suggest("worker-1")
    answer = answered(capsys, "why", "r1")
    assert said in answer["text"]
    assert answer["commands"] == ([] if command is None else [command])


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            StepInDoubt("charge#1", 1, "no answer", True),
            "say it with `refold resolve r1 'charge#1' --happened --result JSON` or "
            "`refold resolve r1 'charge#1' --did-not-happen`, and have a worker running to take it",
        ),
        (RunDiverged("charge#1", "differs", "2"), "deploy the code that matches; then"),
        (RunBlocked("crashes_worker", "three times"), "repair the cause, say `refold retry r1`"),
        (RunBlocked("unknown_function", "no such"), "deploy code that can continue it"),
    ],
    ids=["in doubt", "diverged", "crashes_worker", "unknown_function"],
)
def test_why_promises_no_worker_that_goes_on_where_somebody_else_is_needed(
    capsys: Capture, writer: Writer, event: Any, said: str
) -> None:
    writer.write("r1", *started(), intended("charge#1"), event)
    writer.write(None, PartitionReleased("drained"))
    text = answered(capsys, "why", "r1")["text"]
    assert f"No live worker owns its partition now: {said}" in text
    assert "start one and it goes on" not in text
    assert text.count("three times") <= 1
    assert text.count("differs") <= 1


# ---- doctor


def test_a_log_in_order_is_well(capsys: Capture, broker: MemoryBroker, writer: Writer) -> None:
    broker.suggest("worker-1")
    writer.write("r1", *started(), RunCompleted(encode_value(1)))
    answer = answered(capsys, "doctor")
    assert (answer["ok"], answer["runs"]) == (True, {"completed": 1})
    assert answer["partitions"][0]["owner"] == "worker-1"
    assert "all is well" in told(capsys, "doctor")


def test_the_doctor_finds_what_waits_for_somebody(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    broker.suggest("worker-1")
    writer.write("r1", *started(), intended("charge#1"))
    writer.write("r1", StepInDoubt("charge#1", 1, "no answer", True))
    writer.write("r2", *started(command_id="c2"), RunDiverged("a#1", "differs", "2"))
    answer = answered(capsys, "doctor", code=1)
    assert answer["needs"] == {"person": 1, "code": 1}
    wrong = [one["said"] for one in answer["findings"] if one["verdict"] == "wrong"]
    assert wrong == ["1 wait for a person", "1 wait for other code (diverged or blocked)"]
    assert "something is wrong" in told(capsys, "doctor", code=1)


def test_the_doctor_finds_conflicts_broken_claims_and_foreign_records(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    broker.suggest("worker-1")
    writer.write("r1", *started(), intended("charge#1"))
    writer.write("r1", EvidenceConflict("charge#1", 1, "absent", "completed"))
    writer.raw("r1", b"?", header=b"")
    writer.n += 1
    writer.write("r1", done("load#1"))
    answer = answered(capsys, "doctor", code=1)
    assert answer["conflicts"] == ["r1 charge#1"]
    assert answer["partitions"][0]["claim_broken"]
    assert answer["partitions"][0]["skipped"] == {"foreign": 1, "broken": 1}
    wrong = " ".join(one["said"] for one in answer["findings"] if one["verdict"] == "wrong")
    assert "its claim is broken" in wrong
    assert "1 foreign" in wrong
    assert "evidence contradicts the record of r1 charge#1" in wrong


def test_the_doctor_finds_commands_that_nobody_takes(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    from refold.log import Entry, Topic

    writer.write(None, PartitionReleased("the worker stops"))
    broker.put(Topic.COMMANDS, 0, [Entry(b"r1", b"x"), Entry(b"r2", b"y")])
    answer = answered(capsys, "doctor", code=1)
    assert answer["partitions"][0]["lag"] == 2
    wrong = [one["said"] for one in answer["findings"] if one["verdict"] == "wrong"]
    assert wrong == ["2 command(s) wait and no live worker owns the partition"]


def test_the_doctor_finds_an_owner_whose_heartbeat_has_stopped(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    """Frozen, or without room to write: it owns the partition, and nothing goes on."""
    now_ms = broker.now_ms()
    broker.now_ms = lambda: now_ms
    broker.suggest("worker-1")
    writer.write("r1", *started())
    assert answered(capsys, "doctor")["ok"]
    broker.now_ms = lambda: now_ms + broker.lease_ms
    answer = answered(capsys, "doctor", code=1)
    (wrong,) = [one for one in answer["findings"] if one["verdict"] == "wrong"]
    assert "its owner worker-1 has stopped its heartbeat" in wrong["said"]
    assert "it cannot write to the log" in wrong["next"]


def test_the_doctor_looks_at_the_room_where_the_log_is(capsys: Capture, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    assert main(["namespace", "create", "--log", url]) == 0
    capsys.readouterr()
    assert main(["doctor", "--json", "--log", url]) in (0, 1)  # as much as this disk has
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    (room,) = [one for one in answer["findings"] if one["what"] == "room"]
    assert room["said"].endswith(" MiB are free where the log is")
    verdicts = [[one.verdict for one in _room(size)] for size in (None, 0, 9 << 20, 1 << 30)]
    assert verdicts == [[], ["wrong"], ["note"], ["ok"]]


def test_the_doctor_finds_a_clock_that_lags(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    broker.now_ms = lambda: time.time_ns() // 1_000_000 + 60_000
    broker.suggest("worker-1")
    writer.write("r1", *started())
    wrong = [
        one["what"]
        for one in answered(capsys, "doctor", code=1)["findings"]
        if one["verdict"] == "wrong"
    ]
    assert wrong == ["clock"]


def test_the_doctor_notes_times_that_a_clock_which_was_set_back_has_left(
    capsys: Capture, broker: MemoryBroker, writer: Writer
) -> None:
    broker.suggest("worker-1")
    writer.at_ms = time.time_ns() // 1_000_000 + 3_600_000
    writer.write("r1", *started())
    (clock,) = [one for one in answered(capsys, "doctor")["findings"] if one["what"] == "clock"]
    assert clock["verdict"] == "note"
    assert clock["said"].startswith("a clock was set back: the log holds times up to 3")


class NoLeaders(MemoryLog):
    """A log of which some partitions are away, and say so once all of them were asked."""

    def __init__(self, url: str, away: range) -> None:
        super().__init__(url, partition_count=32)
        self.away, self.asked = away, asyncio.Barrier(len(away))

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        if partition in self.away:
            async with asyncio.timeout(30):
                await self.asked.wait()
            raise LogUnavailable(self.url, f"partition {partition} has no leader")
        return await super().bounds(topic, partition)


def test_the_doctor_asks_partitions_that_are_away_side_by_side() -> None:
    async def main() -> list[int]:
        log = NoLeaders("memory://away", range(16, 32))
        await log.open(create=True)
        found = await _away(log)
        await log.close()
        return sorted(found)

    assert asyncio.run(main()) == list(range(16, 32))


def test_the_doctor_names_a_setting_that_cannot_be_used(
    capsys: Capture, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TIME_ZONE", "Mars/Olympus")
    assert "the environment variable REFOLD_TIME_ZONE cannot be used" in refused(
        capsys, "doctor", code=2
    )


def test_the_doctor_notes_a_variable_that_is_written_amiss(
    capsys: Capture, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_COMMAND_KEY", "keys.json")  # so nobody asks for signatures
    (found, *_) = answered(capsys, "doctor")["findings"]
    assert (found["verdict"], found["said"]) == ("note", "nobody reads REFOLD_COMMAND_KEY")
    assert "REFOLD_COMMAND_KEYS" in found["next"]


# ---- terminals


def test_colour_is_for_terminals_that_want_it(
    capsys: Capture, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("r1", *started(), done("load#1"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("refold_tools.cli.output.coloured", lambda stream: stream is not None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[" in told(capsys, "boundary", "r1")
    monkeypatch.undo()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in told(capsys, "boundary", "r1")


def test_a_long_read_shows_its_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from refold_tools.cli.output import ReadingProgress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("refold_tools.cli.output.PROGRESS_AFTER_S", 0.0)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        progress = ReadingProgress()
        progress(Reading(4, 0.5, 3_000_000))
        progress.end()
        assert ("\rreading 4 partitions: 50 % (3.0 of about 6.0 MB)" in stream.getvalue()) is shown


def test_what_was_read_is_said_where_that_is_asked_for(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started("load"), done("load#1"))
    assert main(["boundary", "r1", "--log", URL, "--progress"]) == 0
    assert re.search(r"^read [0-9]+ B of 1 partition$", capsys.readouterr().err, re.M)
    assert main(["boundary", "r1", "--log", URL]) == 0
    assert "read" not in capsys.readouterr().err


def test_a_person_resolved_it_reads_as_a_sentence(capsys: Capture, writer: Writer) -> None:
    writer.write("r1", *started(), intended("charge#1"))
    writer.write(
        "r1",
        StepResolved(
            "charge#1", 1, "absent", "person", None, None, True, "ada", "not in the bank", "c2"
        ),
    )
    assert "attempt 1: ada says it did not happen (not in the bank)" in told(
        capsys, "history", "r1"
    )
