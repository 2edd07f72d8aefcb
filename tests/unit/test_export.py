"""The export: every record is there, nothing is lost in it, and a stopped one goes on."""

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Entry, Topic
from refold_schemas.codec.classes import EVENT_CLASSES
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    FindingRecorded,
    RunCompleted,
    StepCompleted,
    StepInDoubt,
)
from refold_schemas.values import Ref, Value, decode_value, encode_value
from refold_tools.cli import main
from refold_tools.export import TABLES, Exporting, Manifest, Plan, read_manifest
from refold_tools.export import reading as reading_room
from refold_tools.export.encoding import body_text, read_body, value_text
from refold_tools.export.errors import ExportDamaged, ExportFolderTaken, ExportUnwritable
from refold_tools.export.files import RowFile, alone_in
from support.messages import messages
from support.written_log import CODEC, KEY, Writer, done, intended, started

URL = "memory://exported"
LATER_MS = 10**13
Capture = pytest.CaptureFixture[str]
ODD = {
    "text": "a\x00b \u2028 é \U0001f600",
    "big": 2**80,
    "bytes": b"\x00\xff",
    "decimal": Decimal("41.6000"),
    "at": datetime(2026, 8, 1, 12, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=2))),
    "float": 1.5e300,
    "tuple": (1, (2,)),
    "nothing": None,
}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    for name in ("REFOLD_LOG", "REFOLD_DEBUG", "REFOLD_TIME_ZONE", "REFOLD_REGISTRY_URL"):
        monkeypatch.delenv(name, raising=False)
    keeper = MemoryLog(URL)
    keeper.broker.recreate()
    return keeper.broker


def a_log(broker: MemoryBroker) -> Writer:
    """What counts, and one of each kind that does not."""
    writer = Writer(broker)
    writer.claim()
    old = writer.claim_id
    writer.write("r1", *started("pay"), AmountsDeclared("pay", ("pence",)), intended("pay#1"))
    writer.write("r1", StepInDoubt("pay#1", 1, "reset", False))
    writer.again("r1", done("copy#1"), 0)
    writer.claim("worker-2", process="p2")
    writer.report(
        "r1", AttemptReported("pay#1", 1, KEY, "completed", encode_value("r"), None, "w1"), old, 3
    )
    fenced = writer._header(0)._replace(claim_id=old, n=5).pack()
    writer.raw("r1", CODEC.encode(done("fenced#1")), header=fenced)
    writer.raw("r1", b"no frame at all", header=b"")
    writer.write("r2", *started(given=ODD), done("read#1", ODD), RunCompleted(encode_value(ODD)))
    writer.raw("r3", b"\x00\x77\x35\x94\x01garbage")
    writer.n += 1
    writer.write("r2", done("broken#1"))
    writer.claim("worker-3", process="p3")
    return writer


def exported(folder: Path, **options: Any) -> Manifest:
    """An export of the whole log."""

    async def work() -> Manifest:
        log = MemoryLog(URL)
        await log.open(create=True)
        try:
            plan = Plan(folder, LATER_MS, **options)
            return (await Exporting(log, CODEC, plan).run()).manifest
        finally:
            await log.close()

    return asyncio.run(work())


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table, by whichever format they are in."""
    found: list[dict[str, Any]] = []
    for path in sorted((folder / table).iterdir()):
        if path.suffix == ".parquet":
            found += parquet.read_table(path).to_pylist()
        else:
            empty = dict.fromkeys(column.name for column in TABLES[table])
            with gzip.open(path, "rt", encoding="utf-8") as file:
                found += [empty | json.loads(line) for line in file]
    return found


# ---- what an event is as text


@given(st.one_of(*map(messages, EVENT_CLASSES)))
def test_a_body_comes_back_as_the_event_that_it_was(event: Any) -> None:
    text = body_text(event)
    json.loads(text)
    assert read_body(text, type(event)) == event


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$raw", "$bytes", "$"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(values)
def test_a_stored_value_is_json_that_a_query_reaches_into(value: object) -> None:
    stored = encode_value(value)
    event = RunCompleted(stored)
    assert json.loads(body_text(event))["result"]["body"] == json.loads(stored.body or b"")
    assert read_body(body_text(event), RunCompleted) == event


@pytest.mark.parametrize(
    "value",
    [
        Value("", 1, "j1", None, b"not json", None),
        Value("", 1, "j1", None, b"NaN", None),
        Value("", 1, "j1", None, b"\xff\xfe", None),
        Value("", 1, "j1", None, b'{"$raw":"AA=="}', None),
        Value("", 1, "j1", None, b"[" * 100_000, None),
        Value("m:C", 2, "x9", "key-1", b"\x00\x01", None),
        Value("", 1, "c1", None, None, Ref(b"d" * 32, 17)),
    ],
)
def test_a_body_that_is_no_json_is_kept_as_bytes(value: Value) -> None:
    event = RunCompleted(value)
    assert read_body(body_text(event), RunCompleted) == event
    text = value_text(value)
    assert text is not None
    assert "$value" in json.loads(text)


# ---- tables


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_every_record_is_a_row_and_says_whether_it_counts(
    broker: MemoryBroker, tmp_path: Path, file_format: str
) -> None:
    a_log(broker)
    manifest = exported(tmp_path / "out", file_format=file_format)
    found = rows(tmp_path / "out", "events")
    stored = broker.records(Topic.EVENTS, 0)
    assert [row["offset"] for row in found] == [record.offset for record in stored]
    verdicts = {row["verdict"] for row in found}
    assert verdicts == {*("counts", "claim", "report", "duplicate", "fenced", "broken", "foreign")}
    for row in found:
        expected = row["verdict"] in ("counts", "claim", "report")
        assert row["counts"] is expected, row
        assert (row["problem"] is not None) == (not expected or row["event"] is None)
    (intent,) = [row for row in found if row["event"] == "StepIntended"]
    assert (intent["slot"], intent["step"], intent["policy"], intent["effect_key"]) == (
        "pay#1",
        "pay",
        "escalate",
        KEY,
    )
    (garbage,) = [row for row in found if row["run_id"] == "r3"]
    assert json.loads(garbage["body"])["$raw"]
    (written,) = [one for one in manifest.files if one.table == "events"]
    assert written.rows == len(found)


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_no_value_is_lost(broker: MemoryBroker, tmp_path: Path, file_format: str) -> None:
    a_log(broker)
    exported(tmp_path, file_format=file_format)
    (row,) = [r for r in rows(tmp_path, "events") if r["event"] == "StepCompleted" and r["counts"]]
    event = read_body(row["body"], StepCompleted)
    assert decode_value(event.result) == ODD
    (run,) = [r for r in rows(tmp_path, "runs") if r["run_id"] == "r2"]
    for text in (run["input"], run["result"]):
        assert decode_value(Value("", 1, "j1", None, text.encode(), None)) == ODD


def test_both_formats_hold_the_same(broker: MemoryBroker, tmp_path: Path) -> None:
    a_log(broker)
    exported(tmp_path / "a", file_format="parquet")
    exported(tmp_path / "b", file_format="jsonl")
    for table, columns in TABLES.items():
        times = [column.name for column in columns if column.kind == "time"]
        ours, theirs = rows(tmp_path / "a", table), rows(tmp_path / "b", table)
        for row in theirs:
            for name in times:
                if row[name] is not None:
                    row[name] = datetime.fromisoformat(row[name]).astimezone(UTC)
        assert ours == theirs, table


def test_runs_and_effects_are_as_the_fold_has_them(broker: MemoryBroker, tmp_path: Path) -> None:
    writer = a_log(broker)
    writer.write(
        "r1",
        FindingRecorded("f", "conflict", "pay#1", "pay", KEY, "d", "c", "open", "me", "", "c9"),
    )
    exported(tmp_path)
    runs = {row["run_id"]: row for row in rows(tmp_path, "runs")}
    assert (runs["r1"]["status"], runs["r1"]["finding_count"]) == ("in_doubt", 1)
    assert (runs["r2"]["status"], runs["r2"]["done_count"]) == ("completed", 1)
    assert runs["r2"]["ended_at"] > runs["r2"]["started_at"]
    (effect,) = rows(tmp_path, "effects")
    assert (effect["effect_key"], effect["outcome"], effect["amounts"]) == (
        KEY,
        "in_doubt",
        '{"pence":null}',
    )
    assert json.loads(effect["reported"]) == ["completed"]


def test_a_window_is_about_the_logs_clock(broker: MemoryBroker, tmp_path: Path) -> None:
    a_log(broker)
    times = [record.append_ms for record in broker.records(Topic.EVENTS, 0)]
    middle = sorted(times)[len(times) // 2]
    early = exported(tmp_path / "a", until_ms=middle, tables=("events",))
    late = exported(tmp_path / "b", since_ms=middle, tables=("events",))
    sizes = [sum(one.rows for one in made.files) for made in (early, late)]
    assert sizes == [sum(t < middle for t in times), sum(t >= middle for t in times)]
    assert sum(sizes) == len(times)
    # The claim rule was followed from the log's start, whatever the window.
    whole = exported(tmp_path / "c", tables=("events",))
    assert whole.complete
    joined = [
        r
        for part in "ab"
        if (tmp_path / part / "events").exists()
        for r in rows(tmp_path / part, "events")
    ]
    assert joined == rows(tmp_path / "c", "events")


def test_every_column_is_described_and_documented(broker: MemoryBroker, tmp_path: Path) -> None:
    a_log(broker)
    exported(tmp_path)
    page = (Path(__file__).parents[2] / "docs/howto/analytics.md").read_text(encoding="utf-8")
    for table, columns in TABLES.items():
        path = next((tmp_path / table).iterdir())
        schema = parquet.read_schema(path)
        assert schema.names == [column.name for column in columns]
        assert all(schema.field(c.name).metadata == {b"doc": c.doc.encode()} for c in columns)
        assert [c.name for c in columns if f"`{c.name}`" not in page] == []


# ---- stopped, and gone on with


def many(broker: MemoryBroker, runs: int) -> None:
    writer = Writer(broker)
    writer.claim()
    for number in range(runs):
        name = f"run-{number:05}"
        writer.write(name, *started(given={"order": number}), done("read#1", "x" * 100))
        writer.write(name, RunCompleted(encode_value(number)))


class Stopped(Exception):
    """The export's process ends here."""


def stopping_after(count: int) -> Callable[..., AsyncGenerator[Any, None]]:
    whole = reading_room.event_rows

    async def some(*given: Any) -> AsyncGenerator[Any, None]:
        left = count
        async for one in whole(*given):
            yield one
            left -= 1
            if left == 0:
                raise Stopped

    return some


def test_a_stopped_export_goes_on_behind_its_last_whole_file(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_log(broker)
    many(broker, 50)
    whole = exported(tmp_path / "whole", file_rows_max=20)
    place = "refold_tools.export.exporting.event_rows"
    for count in (7, 45, 61, 3):
        with monkeypatch.context() as patched:
            patched.setattr(place, stopping_after(count))
            with pytest.raises(Stopped):
                exported(tmp_path / "out", file_rows_max=20)
        kept = read_manifest(tmp_path / "out")
        assert kept is not None
        assert not kept.complete
    many(broker, 1)  # what came since is not in it: it was begun before
    made = exported(tmp_path / "out", file_rows_max=20)
    assert made.complete
    events = [(one.path, one.sha256) for one in made.files if one.table == "events"]
    assert events == [(one.path, one.sha256) for one in whole.files if one.table == "events"]
    assert len(events) > 5
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.endswith(".part")]
    with pytest.raises(ExportFolderTaken, match="is complete, up to"):
        exported(tmp_path / "out", file_rows_max=20)
    again = exported(tmp_path / "out", until_ms=made.until_ms)
    assert [one.path for one in again.files] == [one.path for one in made.files]


def test_a_folder_that_is_something_else_is_left_alone(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    a_log(broker)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(ExportFolderTaken, match=r"notes\.txt"):
        exported(tmp_path / "a")
    exported(tmp_path / "b", since_ms=5)
    for other in (
        {"since_ms": 6},
        {"until_ms": 9},
        {"file_format": "jsonl"},
        {"tables": ("runs",)},
    ):
        with pytest.raises(ExportFolderTaken, match="the export in it has"):
            exported(tmp_path / "b", **other)
    broker.recreate()
    with pytest.raises(ExportFolderTaken, match="topics"):
        exported(tmp_path / "b")


def test_two_exports_at_once_do_not_share_a_folder(broker: MemoryBroker, tmp_path: Path) -> None:
    """Both said that they were done, and the folder held the files of both."""
    a_log(broker)
    with alone_in(tmp_path / "x"), pytest.raises(ExportFolderTaken, match="another export writes"):
        exported(tmp_path / "x")
    assert exported(tmp_path / "x").complete


def test_a_damaged_export_is_not_gone_on_with(broker: MemoryBroker, tmp_path: Path) -> None:
    a_log(broker)
    made = exported(tmp_path)
    path = tmp_path / made.files[0].path
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    with pytest.raises(ExportDamaged, match="its bytes"):
        exported(tmp_path)
    path.unlink()
    with pytest.raises(ExportDamaged):
        exported(tmp_path)
    for text in ("{", "[]", '{"format": 7}', '{"format": 1}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ExportDamaged):
            exported(tmp_path)


def test_a_folder_that_cannot_be_written_says_so(broker: MemoryBroker, tmp_path: Path) -> None:
    a_log(broker)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportUnwritable):
        exported(tmp_path / "file" / "below")


@pytest.mark.untraced
def test_memory_does_not_follow_the_number_of_events(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold_tools.export.files.ROWS_AT_ONCE", 500)
    monkeypatch.setattr("refold_tools.export.reading.READ_BYTES", 64 * 1024)

    def peak(name: str) -> int:
        tracemalloc.start()
        exported(tmp_path / name, tables=("events",))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    many(broker, 300)
    peak("warm")
    small = peak("small")
    many(broker, 2_400)
    assert peak("large") < 2 * small


# ---- the command


def test_the_command_exports_and_tells_what(
    broker: MemoryBroker, tmp_path: Path, capsys: Capture
) -> None:
    a_log(broker)
    folder = str(tmp_path / "out")
    assert main(["export", "--to", folder, "--since", "9999d", "--json", "--log", URL]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["complete"], told["resumed"], told["rows"]["runs"]) == (True, False, 2)
    assert told["rows"]["events"] == len(broker.records(Topic.EVENTS, 0))
    # Up to now is another moment now: what is there must not be taken for it.
    assert main(["export", "--to", folder, "--since", "9999d", "--json", "--log", URL]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "R822"
    assert main(["export", "--to", folder, "--until", told["until"], "--log", URL]) == 0
    assert "stood there already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--since", "1d", "--until", "2d"), "R518"),
        (("--until", "2999-01-01"), "R518"),
        (("--format", "csv"), "R518"),
        (("--table", "steps"), "R518"),
    ],
)
def test_wrong_usage_is_exit_two(
    broker: MemoryBroker, tmp_path: Path, capsys: Capture, arguments: tuple[str, ...], code: str
) -> None:
    folder = str(tmp_path / "out")
    assert main(["export", "--to", folder, *arguments, "--json", "--log", URL]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_without_pyarrow_it_names_the_extra(
    broker: MemoryBroker, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_log(broker)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    command = ["export", "--to", str(tmp_path / "out"), "--json", "--log", URL]
    assert main(command) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], "refold[export]" in error["next"]) == ("R825", True)
    assert main([*command, "--format", "jsonl"]) == 0


def test_rows_of_a_stranger_with_half_a_surrogate_pair_are_written(tmp_path: Path) -> None:
    for file_format in ("parquet", "jsonl"):
        file = RowFile(tmp_path / file_format, TABLES["runs"], file_format)
        file.put({"run_id": "\ud800"})
        assert file.finish().rows == 1


def test_a_key_that_is_no_text_is_a_run_id_with_escapes(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    broker.put(Topic.EVENTS, 0, [Entry(b"\xff\x00", b"x", None)])
    exported(tmp_path)
    (row,) = rows(tmp_path, "events")
    assert (row["run_id"], row["verdict"]) == ("\\xff\x00", "foreign")
