"""The queries of docs/howto/analytics.md on exported files, by ClickHouse's own engine (chdb)."""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from refold.log.memory import MemoryLog
from refold.log.port import Topic
from refold_schemas.events import (
    AmountsDeclared,
    RunCompleted,
    StepCompleted,
    StepFailed,
    StepIntended,
)
from refold_schemas.values import Argument, ErrorInfo, ModelUse, encode_value
from refold_tools.export import Exporting, Plan
from support.written_log import CODEC, NOON_MS, Writer, done, started

URL = "memory://clickhouse"
DAY_MS = 86_400_000
PAGE = Path(__file__).parents[2] / "docs/howto/analytics.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
ASKING = """
import json, sys
import chdb.session
session = chdb.session.Session("database")
for query in json.load(sys.stdin):
    print(json.dumps(str(session.query(query, "JSONEachRow")).splitlines()))
"""
"""A process of its own: the engine brings threads and warnings that are not ours."""


def completed(slot: str, attempt: int, model: ModelUse | None = None) -> StepCompleted:
    step = "think" if model else None
    fingerprint, arguments = (bytes(32), ()) if model else (None, None)
    result = encode_value("ok")
    return StepCompleted(slot, attempt, result, None, model, step, fingerprint, arguments)


def intended(slot: str, attempt: int, key: str, pence: int) -> StepIntended:
    arguments = (Argument("pence", encode_value(pence)),) if attempt == 1 else None
    step = slot.partition("#")[0]
    return StepIntended(
        slot, step, attempt, 0, arguments, bytes(32), key, "keyed", 30_000, 1_000, None
    )


def a_log() -> MemoryLog:
    """Twenty runs on two days: payments that take 1 to 20 s, thoughts that cost, doubts, copies."""
    log = MemoryLog(URL)
    log.broker.recreate()
    writer = Writer(log.broker)
    writer.claim()
    no = ErrorInfo("Declined", "shop:Declined", "no", None)
    for number in range(1, 21):
        run_id, key = f"r-{number:02}", f"key-{number:02}"
        writer.at_ms = NOON_MS + (number % 2) * DAY_MS + number * 60_000
        writer.write(run_id, *started(given={"pence": number * 100, "note": "a\x00b"}))
        writer.write(run_id, completed("think#1", 1, ModelUse("m-1", "stop", 100, 10, 2_500)))
        writer.write(run_id, AmountsDeclared("pay", ("pence",)))
        writer.write(run_id, intended("pay#1", 1, key, number * 100))
        writer.at_ms += number * 1_000 - 1_000
        if number % 10 == 0:
            writer.write(run_id, StepFailed("pay#1", 1, no, True, False, None, None, None))
            writer.write(run_id, RunCompleted(encode_value("declined")))
        elif number % 5 == 0:  # the process died: a later claim, another attempt
            writer.claim(process=f"p-{number}")
            writer.write(run_id, intended("pay#1", 2, key, 0), completed("pay#1", 2))
        else:
            writer.write(run_id, completed("pay#1", 1), RunCompleted(encode_value("paid")))
    writer.again("r-01", done("copy#1"), 0)
    return log


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What each query of the page answers, in order; then the insert once more, and counts."""
    folder = tmp_path_factory.mktemp("clickhouse")

    async def export() -> int:
        log = a_log()
        await log.open(create=True)
        for name, kind in (("export", "parquet"), ("export-jsonl", "jsonl")):
            plan = Plan(folder / name, 10**13, file_format=kind, file_rows_max=50)
            await Exporting(log, CODEC, plan).run()
        stored = len(log.broker.records(Topic.EVENTS, 0))
        await log.close()
        return stored

    stored = asyncio.run(export())
    (insert,) = [query for query in QUERIES if query.startswith("insert")]
    asked = [*QUERIES, insert, "select count() as events from refold_events final"]
    ran = subprocess.run(
        [sys.executable, "-c", ASKING],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(lines) == len(asked)
    return [*([json.loads(row) for row in rows] for rows in lines), [{"stored": stored}]]


def answer(answers: list[list[dict[str, Any]]], words: str) -> list[dict[str, Any]]:
    (place,) = [at for at, query in enumerate(QUERIES) if words in query]
    return answers[place]


def test_the_page_has_the_queries_that_are_tested_here() -> None:
    assert len(QUERIES) == 10


def test_events_are_counted(answers: list[list[dict[str, Any]]]) -> None:
    found = {row["event"]: int(row["events"]) for row in answer(answers, "group by event")}
    assert found["RunStarted"] == 20
    assert found["StepIntended"] == 22
    assert sum(found.values()) == answers[-1][0]["stored"] - 1


def test_a_table_takes_the_same_records_twice_and_has_them_once(
    answers: list[list[dict[str, Any]]],
) -> None:
    (row,), (log,) = answers[-2:]
    assert int(row["events"]) == log["stored"]


def test_cost_by_day_and_step(answers: list[list[dict[str, Any]]]) -> None:
    rows = answer(answers, "price_usd_micros")
    assert [(r["day"], r["step"], r["usd"], int(r["tokens_in"])) for r in rows] == [
        ("2026-08-01", "think", 0.025, 1_000),
        ("2026-08-02", "think", 0.025, 1_000),
    ]


def test_in_doubt_rate(answers: list[list[dict[str, Any]]]) -> None:
    (row,) = answer(answers, "in_doubt")
    assert (row["step"], int(row["attempts"]), int(row["in_doubt"])) == ("pay", 22, 2)
    assert row["rate"] == round(2 / 22, 4)


def test_p95_of_durations(answers: list[list[dict[str, Any]]]) -> None:
    (row,) = answer(answers, "p95_ms")
    # 1 to 20 s without 5, 10, 15 and 20, and the two second attempts of 1 s
    took = sorted([*(n * 1_000 for n in range(1, 21) if n % 5), 1_000, 1_000])
    assert int(row["calls"]) == len(took) == 18
    at = 0.95 * (len(took) - 1)
    low, high = took[int(at)], took[int(at) + 1]
    assert row["p95_ms"] == pytest.approx(low + (high - low) * (at - int(at)), abs=1)


def test_money_by_outcome(answers: list[list[dict[str, Any]]]) -> None:
    rows = {row["outcome"]: row for row in answer(answers, "'pence', 'Int64'")}
    due = Counter[str]()
    for number in range(1, 21):
        due["failed" if number % 10 == 0 else "done"] += number * 100
    assert {name: int(row["pence"]) for name, row in rows.items()} == due


def test_inputs_are_reached_into(answers: list[list[dict[str, Any]]]) -> None:
    rows = answer(answers, "JSONExtractInt(assumeNotNull(input)")
    assert [(r["run_id"], int(r["pence"])) for r in rows] == [
        (f"r-{number:02}", number * 100) for number in range(1, 21)
    ]


def test_what_does_not_count(answers: list[list[dict[str, Any]]]) -> None:
    rows = answer(answers, "where not counts")
    assert [(row["verdict"], int(row["records"])) for row in rows] == [("duplicate", 1)]


def test_json_lines(answers: list[list[dict[str, Any]]]) -> None:
    (row,) = answer(answers, "JSONEachRow")
    assert int(row["events"]) == answers[-1][0]["stored"]
    assert row["latest"].startswith("2026-08-02 12:")
