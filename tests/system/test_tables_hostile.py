"""What Postgres accepts less of than the log: every value is shown somehow, and nothing stops."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.log.memory import MemoryBroker
from refold.projector import ProjectorSettings
from refold_projections.fold import moment
from refold_projections.tables.database import Pool, close, connect
from refold_projections.tables.migrating import migrate
from refold_projections.tables.names import names_in
from refold_schemas.codec import KIND_CLAIM, Codec
from refold_schemas.errors.tables import DatabaseUnavailable
from refold_schemas.events import (
    AmountsDeclared,
    CommandRejected,
    Event,
    FindingRecorded,
    PartitionClaimed,
    RunCompleted,
    RunFailed,
    StepInDoubt,
    TimerScheduled,
)
from refold_schemas.registry import FileRegistry
from refold_schemas.values import ErrorInfo, Value
from support.postgres import rows
from support.projecting import caught_up, differences, opened, project, projecting, verified
from support.scripted_registry import Kept
from support.written_log import Writer, done, intended, started

NUL, LITERAL, FFFF = "a\x00b", "a\\u0000b", "\uffff"
EMOJI, RIGHT_TO_LEFT = "😀", "\u202eabc\u202c"
BODIES = {
    "NaN": b"NaN",
    "minus infinity": b"[-Infinity]",
    "beyond a float": b"1e999999",
    "small beyond a float": b"1e-999999",
    "many digits": b"1" * 4_000,
    "too many digits": b"[" + b"1" * 5_000 + b"]",
    "a long fraction": b"0." + b"0" * 20_000 + b"1",
    "half a pair": b'"\\ud800"',
    "the other half": b'{"\\udc00": 1}',
    "U+0000 escaped": b'{"a\\u0000": "\\u0000"}',
    "twice the same key": b'{"a": 1, "a": 2}',
    "deep": b"[" * 900 + b"]" * 900,
    "very deep": b"[" * 100_000 + b"]" * 100_000,
    "no JSON": b"{'a': 1}",
    "nothing": b"",
    "no UTF-8": b'"\xff"',
    "a tag with nothing in it": b'{"$timedelta": []}',
    "a tag nobody knows": b'{"$else": {"a": 1}}',
    "a big integer": b'{"$int": "' + b"f" * 5_000 + b'"}',
    "a no integer": b'{"$int": "zz"}',
}


def raw(body: bytes) -> Value:
    """A value as another program may have put it into the log."""
    return Value("", 1, "j1", None, body, None)


def a_log() -> tuple[MemoryBroker, Writer]:
    broker = MemoryBroker("default", partition_count=1)
    writer = Writer(broker)
    writer.claim()
    return broker, writer


def read(url: str, sql: str, *values: Any) -> list[dict[str, Any]]:
    return asyncio.run(rows(url, sql, *values))


def projected(broker: MemoryBroker, url: str) -> list[str]:
    async def play() -> list[str]:
        log = await opened(broker)
        await project(log, url)
        return differences(await verified(log, url))

    return asyncio.run(play())


def test_every_value_is_shown_and_the_log_keeps_it_as_it_is(postgres: str) -> None:
    """F37."""
    broker, writer = a_log()
    writer.write("texts", *started(given={"nul": NUL, "literal": LITERAL}))
    told = [NUL, LITERAL, FFFF, EMOJI, RIGHT_TO_LEFT]
    for at, text in enumerate(told):
        writer.write("texts", done(f"say#{at + 1}", text))
    for at, body in enumerate(BODIES.values()):
        run_id = f"raw-{at:02}"
        writer.write(run_id, *started())
        step = done("a#1")
        writer.write(run_id, type(step)(step.slot, 1, raw(body), None, None, "a", bytes(32), ()))
        writer.write(run_id, RunCompleted(raw(body)))
    assert projected(broker, postgres) == []
    steps = read(
        postgres,
        "select result #>> '{}' as said from v1_steps where run_id = 'texts' order by born",
    )
    assert [one["said"] for one in steps] == [LITERAL, LITERAL, FFFF, EMOJI, RIGHT_TO_LEFT]
    shown = read(
        postgres, "select run_id, result from v1_runs where run_id like 'raw-%' order by 1"
    )
    found = dict(zip(BODIES, (json.loads(one["result"]) for one in shown), strict=True))
    assert found["twice the same key"] == {"a": 2}
    assert found["half a pair"] == "\\ud800"
    assert found["U+0000 escaped"] == {"a\\u0000": "\\u0000"}
    for name in ("very deep", "no JSON", "no UTF-8", "too many digits", "a no integer"):
        assert "$not_shown" in found[name], name


def test_hostile_names_errors_and_commands_are_shown(postgres: str) -> None:
    broker, writer = a_log()
    bad = f"{NUL}{EMOJI}{RIGHT_TO_LEFT}'; drop table refold_live; --<script>"
    long = "x" * 10_000
    error = ErrorInfo(f"E{NUL}", "m:E", bad, None)
    for run_id in (bad, long, long + "y", "%s{}$1"):
        writer.write(run_id, *started(bad, run=f"run{NUL}{long}"))
        writer.write(run_id, intended(f"charge[{bad}]#1", key=bad * 200), done(f"{long}#1"))
        writer.write(run_id, StepInDoubt(f"charge[{bad}]#1", 1, bad, True))
        writer.write(run_id, TimerScheduled(long + bad, 1, "sleep", bad, 2**62))
        writer.write(run_id, CommandRejected(bad, bad, 1, bad, bad, NUL.encode()), RunFailed(error))
    writer.write(None, CommandRejected(bad, bad, 2, "undecodable", bad, b"\x00\xff"))
    assert projected(broker, postgres) == []
    writer.claim("worker-2", process="p2")  # what is read back goes on by its true name
    writer.write(long, done("more#1"))
    writer.write(bad, done("more#1"))
    assert projected(broker, postgres) == []
    runs = read(postgres, "select run_id, error_message from v1_runs")
    assert len({one["run_id"] for one in runs}) == 4
    assert {one["error_message"] for one in runs} == {bad.replace("\x00", "\\u0000")}
    [timer] = read(postgres, "select distinct due_at from v1_timers")
    assert timer["due_at"].year == 9999
    refused = read(postgres, "select * from v1_rejections where run_id is null")
    assert refused[0]["raw"] == b"\x00\xff"


def test_names_that_differ_in_the_log_differ_in_the_tables(postgres: str) -> None:
    """Else two rows of a batch had one key, and Postgres would take neither."""
    broker, writer = a_log()
    shown = "a\\u0000b…59b271ae1bbcb1d31d41929817f4b16f"
    for bad in (NUL, LITERAL, shown):
        writer.write(bad, *started())
        writer.write("one", *started(), intended(f"{bad}#1"), TimerScheduled(bad, 1, "x", "s", 1))
        writer.write("one", finding(bad))
    assert projected(broker, postgres) == []
    counts = read(
        postgres,
        "select (select count(*) from v1_runs) as runs, (select count(*) from v1_steps) as steps, "
        "(select count(*) from v1_timers) as timers, "
        "(select count(*) from v1_findings) as findings",
    )
    assert counts == [{"runs": 4, "steps": 3, "timers": 3, "findings": 3}]


def finding(finding_id: str) -> FindingRecorded:
    return FindingRecorded(finding_id, "missing", "a#1", "a", "k", "d", "c", "open", "b", "w", "c1")


def test_what_no_owner_writes_stops_no_partition(postgres: str) -> None:
    """Numbers beyond 32 bits, times no calendar has, U+0000 in a claim and in amounts' names."""
    broker, writer = a_log()
    writer.at_ms = 2**62
    writer.claim(f"w{NUL}", process=NUL)
    writer.write(None, CommandRejected("c", "t", 2**62, "r", "d", None))
    writer.write("one", *started(), AmountsDeclared("charge", (NUL,)))
    writer.write("one", intended("charge#1"), intended("charge#1", attempt=2**31))
    writer.at_ms = -(2**62)
    writer.claim(process="p3")
    writer.write("one", intended("charge#1", attempt=2**62), done("a#1"))
    topics = (NUL,)
    odd = PartitionClaimed("w", "p", "shop", "0.1.0", (), topics, 2**40, 2**40)
    writer.epoch, writer.claim_id, writer.n = writer.epoch + 1, b"z" * 16, 0
    writer._put(None, odd, KIND_CLAIM)
    assert projected(broker, postgres) == []
    [effect] = read(postgres, "select attempts, amounts from v1_effects")
    assert effect == {"attempts": 3, "amounts": json.dumps({"a\\u0000b": None})}


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    os.environ.pop("TZ", None) if "TZ" not in os.environ else None
    time.tzset()


def test_times_are_the_same_whatever_the_machines_zone(postgres: str, machine_zone: str) -> None:
    """F34, its half in the tables; the other half is refused before it is in the log."""
    broker, writer = a_log()
    aware = datetime(2026, 8, 1, 9, 30, 0, 123_456, timezone(timedelta(hours=9)))
    writer.write("order-1", *started(given={"at": aware}), done("a#1", aware))

    async def server_zone() -> None:
        connection = await connect(postgres)
        await connection.execute(
            f"alter database {postgres.rpartition('/')[2]} set timezone = '{machine_zone}'"
        )
        await close(connection)

    asyncio.run(server_zone())
    assert projected(broker, postgres) == []
    [run] = read(postgres, "select started_at, changed_at, input from v1_runs")
    assert run["started_at"] == datetime(2026, 8, 1, 12, 0, 1, tzinfo=UTC)
    assert run["changed_at"] == datetime(2026, 8, 1, 12, 0, 2, tzinfo=UTC)
    assert json.loads(run["input"]) == {"at": "2026-08-01T09:30:00.123456+09:00"}
    kinds = read(
        postgres,
        "select data_type from information_schema.columns where table_name like 'v1_%' "
        "and (column_name like '%_at' or column_name in ('at', 'since', 'in_doubt_since'))",
    )
    assert {one["data_type"] for one in kinds} == {"timestamp with time zone"}


def test_a_sentence_is_told_on_the_readers_day_and_in_the_readers_zone(postgres: str) -> None:
    broker, writer = a_log()
    writer.write("order-1", *started("charge"), intended("charge#1"))
    assert projected(broker, postgres) == []
    asked = """
        select refold_sentence(said, $1, $2) as said from refold_runs where run_id = 'order-1'
    """
    intended_at = datetime(2026, 8, 1, 12, 0, 3, tzinfo=UTC)
    for zone, day, said in (
        ("UTC", intended_at, "12:00"),
        ("UTC", intended_at + timedelta(hours=11), "12:00"),
        ("UTC", intended_at + timedelta(hours=12), "2026-08-01 12:00"),
        ("Asia/Tokyo", intended_at, "21:00"),
        ("Asia/Tokyo", intended_at + timedelta(hours=3), "2026-08-01 21:00"),
        ("America/New_York", intended_at + timedelta(hours=12), "08:00"),
    ):
        [found] = read(postgres, asked, zone, day)
        assert found["said"] == (
            f"no steps complete, charge under way since {said}, one step remaining"
        )

    async def in_zone() -> str:
        connection = await connect(postgres)
        await connection.execute("set refold.time_zone = 'Asia/Tokyo'")
        told = await connection.fetchval("select sentence from v1_runs")
        await close(connection)
        return str(told)

    assert "21:00" in asyncio.run(in_zone())


PARTS = st.one_of(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=20),
    st.integers(631_152_000_000, 2_145_916_800_000),  # 1990 to 2037
)
ZONES = ("UTC", "Europe/Berlin", "Asia/Tokyo", "Asia/Kolkata", "America/New_York")


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.lists(PARTS, min_size=1, max_size=6),
            st.sampled_from(ZONES),
            st.integers(631_152_000, 2_145_916_800),
            st.integers(-100_000, 100_000),
        ),
        min_size=20,
        max_size=60,
    )
)
def test_postgres_tells_the_words_that_the_fold_tells(
    postgres: str, told: list[tuple[list[str | int], str, int, int]]
) -> None:
    """`refold_sentence` against `fold.sentence.moment`; half of the days are near a moment."""
    cases = []
    for parts, zone, day_s, near_s in told:
        moments = [part for part in parts if isinstance(part, int)]
        now_s = moments[0] // 1000 + near_s if moments and near_s % 2 else day_s
        cases.append((json.dumps(parts), zone, datetime.fromtimestamp(now_s, UTC)))

    async def ask() -> list[str]:
        connection = await connect(postgres)
        await migrate(connection, names_in("public"))
        found = await connection.fetch(
            "select refold_sentence(s, z, t) as said from unnest($1::jsonb[], $2::text[], "
            "$3::timestamptz[]) with ordinality as given(s, z, t, n) order by n",
            *map(list, zip(*cases, strict=True)),
        )
        await close(connection)
        return [row["said"] for row in found]

    for (parts, zone, _, _), (_, _, now), said in zip(told, cases, asyncio.run(ask()), strict=True):
        place = ZoneInfo(zone)
        today = now.astimezone(place).date()
        assert said == "".join(
            moment(part, place, today) if isinstance(part, int) else part for part in parts
        )


def test_readers_that_take_all_connections_do_not_stop_the_projector(postgres: str) -> None:
    """F38: own connections, no wait without an end, and none is lost by a cancelled request."""
    broker, writer = a_log()
    writer.write("order-0", *started())

    async def play() -> tuple[int, list[str]]:
        log = await opened(broker)
        await project(log, postgres)
        pool = Pool(postgres, size=5, name="dashboard", wait_s=0.3)

        async def query() -> None:
            async with pool.connection() as connection:
                await connection.fetch("select pg_sleep(10), run_id from v1_runs")

        queries = [asyncio.create_task(query()) for _ in range(40)]
        async with projecting(log, postgres, ProjectorSettings(look_every_s=0.05)) as (one, _):
            await caught_up(one, log)
            for number in range(50):
                writer.write(f"order-{number + 1}", *started(), done("a#1"))
            await caught_up(one, log, within_s=8)  # the queries take ten seconds
        done_now, _ = await asyncio.wait(queries, timeout=2)
        refused = [task for task in done_now if isinstance(task.exception(), DatabaseUnavailable)]
        for task in queries:
            task.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
        for _ in range(200):
            late = asyncio.create_task(query())
            await asyncio.sleep(0)
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
        assert pool.free == 5
        async with pool.connection() as connection:
            assert await connection.fetchval("select count(*) from v1_runs") == 51
        await pool.close()
        return len(refused), differences(await verified(log, postgres))

    refused, found = asyncio.run(play())
    assert refused == 35
    assert found == []


def test_a_schema_that_nobody_says_is_waited_for(postgres: str) -> None:
    broker, writer = a_log()
    writer.write("order-1", *started())
    kept, files = Kept(), FileRegistry()
    event: Event = done("a#1")
    written = Codec(files).encode(event)
    name, version = files.name_version(int.from_bytes(written[1:5], "big"))
    kept.register(4_711, name, version)
    kept.away = True
    writer.raw("order-1", b"\x00" + (4_711).to_bytes(4, "big") + written[5:])

    async def play() -> tuple[list[str], list[str]]:
        log = await opened(broker)
        async with projecting(log, postgres, codec=kept.codec()) as (one, told):
            async with asyncio.timeout(30):
                while "waiting" not in [event.kind for event in told]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            kept.away = False
            await caught_up(one, log)
            kinds = [event.kind for event in told]
        return kinds, [row["status"] for row in await rows(postgres, "select status from v1_steps")]

    kinds, steps = asyncio.run(play())
    assert kinds[:3] == ["migrated", "started", "waiting"]
    assert steps == ["done"]
