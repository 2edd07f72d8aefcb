"""`refold commands`, and what `history` and `doctor` say of commands that are not ours."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from refold.client.rejected import REASONS
from refold.log import partition_for
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Entry, Topic
from refold_schemas.commands import CancelRun, Command, StartRun
from refold_schemas.events import (
    CommandEmitted,
    CommandParked,
    CommandRejected,
    Event,
    PartitionReleased,
    RunCompleted,
)
from refold_schemas.values import encode_value
from refold_tools.cli import main
from support.command_line import plain_environment
from support.written_log import CODEC, NOON_MS, Writer, started

URL = "memory://orders"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    keeper = MemoryLog(URL)
    keeper.broker.recreate()
    yield keeper.broker
    keeper.broker.give_up("somebody")


@pytest.fixture
def writer(broker: MemoryBroker) -> Writer:
    made = Writer(broker)
    made.claim()
    return made


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_environment(monkeypatch)


def told(capsys: Capture, *arguments: str, code: int = 0, url: str = URL) -> str:
    assert main([*arguments, "--log", url]) == code
    return capsys.readouterr().out


def answered(capsys: Capture, *arguments: str, code: int = 0, url: str = URL) -> Any:
    return json.loads(told(capsys, *arguments, "--json", code=code, url=url).splitlines()[-1])


def publish(broker: MemoryBroker, command: Command | bytes, *, partition: int = 0) -> int:
    data = command if isinstance(command, bytes) else CODEC.encode(command)
    return broker.put(Topic.COMMANDS, partition, [Entry(b"r1", data)])


def decided(writer: Writer, run_id: str | None, *events: Event) -> None:
    writer.command_next += 1
    writer.write(run_id, *events)


def start(command_id: str = "c-start", *, run_id: str = "r1") -> StartRun:
    return StartRun(command_id, run_id, "shop", encode_value(1), None, "them")


def refused(
    offset: int, reason: str, command_id: str = "c-cancel", kind: str = "CancelRun"
) -> CommandRejected:
    return CommandRejected(command_id, kind, offset, reason, f"because of {reason}", None)


def undecodable(offset: int, data: bytes) -> CommandRejected:
    return CommandRejected("", "", offset, "undecodable", "it is no record", data[:1_024])


def letter(raw: str, *, partition: int = 0, offset: int = 0, whole: bool = True) -> bytes:
    said = {"partition": partition, "offset": offset, "raw": raw, "raw_whole": whole}
    return json.dumps(said).encode()


# ---- rejected


def test_rejected_commands_are_listed_with_place_time_and_reason(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    publish(broker, b"junk")
    publish(broker, CancelRun("c-cancel", "r1", "them", ""))
    publish(broker, CancelRun("c-cancel", "r1", "them", ""))
    decided(writer, None, undecodable(0, b"junk"))
    decided(writer, "r1", refused(1, "unknown_run"))
    decided(writer, "r1", refused(2, "duplicate"))
    seen = answered(capsys, "commands", "rejected")
    assert seen["total"] == 2
    assert seen["rejected"][1] == {
        "partition": 0,
        "offset": 0,
        "at": "2026-08-01T12:00:01.000+00:00",
        "reason": "undecodable",
        "detail": "it is no record",
        "command_type": None,
        "command_id": None,
        "run_id": None,
        "event_offset": 1,
        "run_exists_now": None,
    }
    assert (seen["rejected"][0]["run_id"], seen["rejected"][0]["offset"]) == ("r1", 1)
    assert answered(capsys, "commands", "rejected", "--all")["total"] == 3
    assert answered(capsys, "commands", "rejected", "--reason", "duplicate")["total"] == 1
    assert answered(capsys, "commands", "rejected", "--run-id", "r1")["total"] == 1
    lines = told(capsys, "commands", "rejected", "--limit", "1").splitlines()
    assert "CancelRun" in lines[1]
    assert "because of unknown_run" in lines[1]
    assert lines[2] == "1 earlier ones are not shown: --limit 2"


def test_a_start_that_was_rejected_and_came_to_be_is_marked(
    writer: Writer, capsys: Capture
) -> None:
    for offset, run_id in enumerate(("r1", "r2", "x" * 300)):
        decided(writer, run_id, refused(offset, "unknown_function", "c-start", "StartRun"))
    decided(writer, "r1", *started())
    decided(writer, "r1", refused(4, "run_exists_other_input", "c-other", "StartRun"))
    seen = {one["offset"]: one for one in answered(capsys, "commands", "rejected")["rejected"]}
    marks = [seen[offset]["run_exists_now"] for offset in (0, 1, 2, 4)]
    assert marks == [True, False, False, None]
    lines = told(capsys, "commands", "rejected").splitlines()
    assert sum("the run exists now; refused then: because of" in line for line in lines) == 1


def test_a_reason_that_there_is_not_is_refused(writer: Writer, capsys: Capture) -> None:
    error = answered(capsys, "commands", "rejected", "--reason", "nosuch", code=2)["error"]
    assert error["code"] == "R518"
    assert "--reason nosuch: there is no such one; it is one of duplicate, " in error["message"]
    described = (CommandRejected.__doc__ or "").partition("is one of:")[2].partition(".")[0]
    assert described.split() == ", ".join(REASONS).split()


def test_why_is_cut_where_a_terminal_ends_and_nowhere_else(
    writer: Writer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = " ".join(f"word{number}" for number in range(60)) + "\nlast"
    decided(writer, "r1", CommandRejected("c", "CancelRun", 0, "run_ended", detail, None))
    for columns in ("80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        header, row = told(capsys, "commands", "rejected").splitlines()
        assert row.endswith(detail.replace("\n", " "))
        assert header.endswith("WHY")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in ("120", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        row = told(capsys, "commands", "rejected").splitlines()[1]
        assert row.rstrip().endswith("…")
        assert int(columns) - 10 < len(row.rstrip()) <= int(columns)


def test_none_rejected_is_said(writer: Writer, capsys: Capture) -> None:
    assert told(capsys, "commands", "rejected") == "no command was rejected\n"


# ---- republish


def test_a_command_that_may_be_taken_now_is_published_again(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    offset = publish(broker, start())
    decided(writer, "r1", refused(offset, "unknown_function", "c-start", "StartRun"))
    seen = answered(capsys, "commands", "republish", "0", str(offset))
    assert seen == {
        "command_type": "StartRun",
        "command_id": "c-start",
        "run_id": "r1",
        "partition": 0,
        "fresh_id": False,
    }
    (_, again) = broker.records(Topic.COMMANDS, 0)
    assert (again.key, CODEC.decode(again.value or b"")) == (b"r1", start())


def test_what_its_run_remembers_as_refused_gets_an_id_of_its_own(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    writer.write("r1", *started())
    offset = publish(broker, CancelRun("c-cancel", "r1", "them", ""))
    decided(writer, "r1", refused(offset, "input_invalid"))
    seen = answered(capsys, "commands", "republish", "0", str(offset))
    assert seen["fresh_id"] is True
    assert CODEC.decode(broker.records(Topic.COMMANDS, 0)[1].value or b"") == CancelRun(
        seen["command_id"], "r1", "them", ""
    )
    assert "under the new id" in told(capsys, "commands", "republish", "0", str(offset))


def test_the_whole_copy_of_a_dead_letter_is_taken_where_the_record_is_trimmed(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    offset = publish(broker, start())
    decided(writer, "r1", refused(offset, "unknown_function", "c-start", "StartRun"))
    broker.trim(Topic.COMMANDS, 0, offset + 1)
    error = answered(capsys, "commands", "republish", "0", "0", code=1)["error"]
    assert error["code"] == "R527"
    raw = base64.b64encode(CODEC.encode(start())).decode()
    other = letter(raw, partition=1)
    for one in (b"no letter", b"[]", letter(raw, whole=False), other):
        broker.put(Topic.DEAD_LETTERS, 0, [Entry(None, one)])
    assert answered(capsys, "commands", "republish", "0", "0", code=1)["error"]["code"] == "R527"
    broker.put(Topic.DEAD_LETTERS, 0, [Entry(None, letter(raw))])
    assert answered(capsys, "commands", "republish", "0", "0")["command_id"] == "c-start"
    assert CODEC.decode(broker.records(Topic.COMMANDS, 0)[0].value or b"") == start()


def test_the_whole_copy_is_taken_where_the_rejection_is_archived(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    publish(broker, start())
    publish(broker, start(run_id="r2"))
    decided(writer, "r9", *started())
    decided(writer, "r9", *started())
    broker.put(Topic.DEAD_LETTERS, 0, [Entry(None, letter("", offset=1, whole=False))])
    raw = base64.b64encode(CODEC.encode(start())).decode()
    broker.put(Topic.DEAD_LETTERS, 0, [Entry(None, letter(raw))])
    # The record is there still: it is taken from where it is.
    assert answered(capsys, "commands", "republish", "0", "1")["run_id"] == "r2"
    broker.trim(Topic.COMMANDS, 0, 2)
    assert answered(capsys, "commands", "republish", "0", "0")["command_id"] == "c-start"
    error = answered(capsys, "commands", "republish", "0", "1", code=1)["error"]
    assert error["code"] == "R527"


def test_a_partition_that_there_is_not_is_refused(writer: Writer, capsys: Capture) -> None:
    error = answered(capsys, "commands", "republish", "99", "0", code=2)["error"]
    assert "there is no partition 99: orders has 1" in error["message"]


def test_the_bytes_that_the_rejection_kept_are_taken_where_they_are_all(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    """It could not be read then, by an older worker say; here it can."""
    publish(broker, start())
    decided(writer, None, undecodable(0, CODEC.encode(start())))
    broker.trim(Topic.COMMANDS, 0, 1)
    assert answered(capsys, "commands", "republish", "0", "0")["command_id"] == "c-start"


def test_what_would_surely_be_refused_again_is_not_sent(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    long = StartRun("c-long", "r2", "s" * 2_000, encode_value(1), None, "them")
    publish(broker, b"\x05junk")
    publish(broker, long)
    publish(broker, start("c-other"))
    publish(broker, CancelRun("c-cancel", "r1", "them", ""))
    writer.write("r1", *started(), RunCompleted(encode_value(1)))
    decided(writer, None, undecodable(0, b"\x05junk"))
    decided(writer, "r2", refused(1, "too_large"))
    decided(writer, "r1", refused(2, "run_exists_other_input", "c-other", "StartRun"))
    decided(writer, "r1", refused(3, "run_ended"))
    words = ("its first byte is 5", "its run has 2,000 characters", "run r1 exists", "completed")
    for offset, word in enumerate(words):
        error = answered(capsys, "commands", "republish", "0", str(offset), code=1)["error"]
        assert error["code"] == "R528"
        assert word in error["message"]
    assert len(broker.records(Topic.COMMANDS, 0)) == 4


def test_only_rejected_commands_are_published_again(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    for _ in range(3):
        publish(broker, start())
    decided(writer, "r1", *started())
    decided(writer, None, CommandParked(1, b"r1", 77, "waiting", "not known here"))
    words = ("it was applied", "it is parked", "it is not decided yet", "end at 3")
    for offset, word in enumerate(words):
        error = answered(capsys, "commands", "republish", "0", str(offset), code=2)["error"]
        assert error["code"] == "R529"
        assert word in error["message"]


# ---- history and doctor


def test_history_and_doctor_tell_of_parked_and_forwarded_commands(capsys: Capture) -> None:
    url = "memory://orders-of-two"
    keeper = MemoryLog(url, partition_count=2)
    broker = keeper.broker
    broker.recreate()
    home = partition_for("r1", 2)
    here, there = Writer(broker, home), Writer(broker, 1 - home)
    for one in (here, there):
        one.claim()
    emitted = CommandEmitted("c1", "StartRun", "r1", 0, home, CODEC.encode(start()))
    decided(there, None, emitted)
    decided(here, None, CommandParked(0, b"r1", 77, "waiting", "its schema is not known here"))
    decided(here, None, CommandParked(1, b"r2", 78, "waiting", "its schema is not known here"))
    here.write(None, CommandParked(0, b"r1", 77, "decided", "it was parked"))
    here.write("r1", *started())
    broker.put(Topic.DEAD_LETTERS, 0, [Entry(None, b"{}")])
    records = answered(capsys, "history", "r1", "--no-claims", url=url)["records"]
    assert sorted(one["event"] for one in records) == [
        "CommandEmitted",
        "CommandParked",
        "CommandParked",
        "RunStarted",
    ]
    assert f"p{1 - home}:1" in told(capsys, "history", "r1", url=url)
    assert "CommandEmitted" not in told(capsys, "history", "r1", "--no-elsewhere", url=url)
    seen = answered(capsys, "doctor", code=1, url=url)
    parked = seen["partitions"][home]
    assert (parked["parked"], parked["parked_ids"]) == (1, [78])
    assert parked["parked_since_ms"] == NOON_MS + 2_000
    assert sum(one["forwarded"] for one in seen["partitions"]) == 1
    said = " ".join(one["said"] for one in seen["findings"])
    assert "1 command(s) are parked since 2026-08-01 12:00:02 UTC" in said
    assert "1 were found on another partition" in said
    assert "1 dead letter(s)" in said


def test_doctor_counts_the_rejections_that_are_listed(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    """Those that count, without those that lost nothing."""

    def said() -> list[str]:
        findings = answered(capsys, "doctor")["findings"]
        return [one["said"] for one in findings if "rejected" in one["said"]]

    for offset, reason in enumerate(("duplicate", "run_exists")):
        decided(writer, "r1", refused(offset, reason))
    assert said() == []
    decided(writer, "r1", refused(2, "unknown_run"))
    assert said() == ["1 command was rejected (in what the log still holds): 1 unknown_run"]
    decided(writer, "r1", refused(3, "run_ended"))
    decided(writer, "r1", refused(4, "run_ended"))
    writer.again("r1", refused(4, "run_ended"), 1)  # a stored copy
    broker.hole(Topic.EVENTS, 0, 100)
    (told_of,) = said()
    assert told_of.endswith("holds): 2 run_ended, 1 unknown_run")
    assert answered(capsys, "commands", "rejected")["total"] == 3
    writer.write(None, PartitionReleased("the worker stops"))
    assert said() == [told_of]


def test_why_tells_of_a_parked_command(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    for _ in range(3):
        publish(broker, start())
    decided(writer, None, CommandParked(0, b"r1", 77, "waiting", "not known here"))
    error = answered(capsys, "why", "r1", code=2)["error"]
    assert "1 command with its key is parked since" in error["message"]
    assert "has schema id 77" in error["next"]
    assert "start a worker" in error["next"], "none lives"
    broker.suggest("somebody")
    error = answered(capsys, "why", "r1", code=2)["error"]
    assert "has schema id 77" in error["next"]
    assert "start a worker" not in error["next"]
    writer.write("r1", *started())
    decided(writer, None, CommandParked(1, b"r1", 77, "behind", "another one is parked"))
    text = answered(capsys, "why", "r1")["text"]
    assert "2 commands with its key are parked since" in text
    assert "until schema id 77 is known (R024)" in text


def test_why_tells_of_a_start_that_waits(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    publish(broker, start())
    error = answered(capsys, "why", "r1", code=2)["error"]
    assert "yet: StartRun (by them" in error["message"]
    assert "start a worker" in error["next"]
    broker.suggest("somebody")
    assert "a live worker" in answered(capsys, "why", "r1", code=2)["error"]["next"]


def test_why_tells_of_a_start_that_was_rejected(
    broker: MemoryBroker, writer: Writer, capsys: Capture
) -> None:
    publish(broker, start())
    decided(writer, "r1", refused(0, "unknown_function", "c-start", "StartRun"))
    decided(writer, "r1", refused(1, "unknown_run"))
    error = answered(capsys, "why", "r1", code=2)["error"]
    assert error["code"] == "R503"
    assert (
        "there is no run 'r1' in namespace orders: its StartRun was rejected at"
        in (error["message"])
    )
    assert "12:00 (unknown_function): because of unknown_function" in error["message"]
    assert "`refold commands republish 0 0`" in error["next"]
    assert answered(capsys, "commands", "republish", "0", "0")["run_id"] == "r1"
    decided(writer, "r2", refused(2, "too_large", "c-long", "StartRun"))
    error = answered(capsys, "why", "r2", code=2)["error"]
    assert "send a reference" in error["next"]
    assert "republish" not in error["next"], "it would be refused again"
