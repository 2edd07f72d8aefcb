"""Lists out of a real Postgres that a real projector fills: filters, cursors, and F38."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refold.gateway.roles import Role
from refold.log.memory import MemoryBroker, MemoryLog
from refold.projector import Projector, ProjectorSettings
from refold_projections.tables.cursors import BadCursor, Key, cursor_of, values_of
from refold_projections.tables.database import close, connect
from refold_projections.tables.queries import (
    EffectsAsked,
    FindingsAsked,
    NoConnection,
    QueryTooLong,
    RejectionsAsked,
    RunsAsked,
    TimersAsked,
    Views,
    statement,
)
from refold_schemas.errors.tables import DatabaseUnavailable, TablesMissing
from support.gateway_lab import GatewayLab, is_problem, serving
from support.projecting import project

WAIT_S = 20


@asynccontextmanager
async def projecting(folder: Path, url: str, **settings: Any) -> AsyncIterator[GatewayLab]:
    """A lab whose tables a projector fills."""
    async with serving(folder, database_url=url, **settings) as lab:
        projector = Projector(lab.log, url, settings=ProjectorSettings(wait_ms=20))
        task = asyncio.create_task(projector.run())
        try:
            yield lab
        finally:
            projector.stop()
            await task


def play(
    folder: Path, url: str, scene: Callable[[GatewayLab], Awaitable[None]], **settings: Any
) -> None:
    async def main() -> None:
        async with projecting(folder, url, **settings) as lab:
            await scene(lab)

    asyncio.run(main())


async def rows_of(lab: GatewayLab, path: str) -> list[dict[str, Any]]:
    answer = await lab.call("GET", path, Role.VIEWER)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["rows"]
    return rows


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what nobody tells."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.02)


async def shown(lab: GatewayLab, path: str, is_so: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Wait until the tables show it."""

    async def seen() -> bool:
        answer = await lab.call("GET", path, Role.VIEWER)
        return answer.status_code == 200 and is_so(answer.json()["rows"])

    await until(seen)


async def whole(lab: GatewayLab, path: str, limit: int) -> list[dict[str, Any]]:
    """All pages of a list."""
    found, cursor = [], None
    while True:
        params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        url = lab.http.build_request("GET", path).url.copy_merge_params(params)
        answer = await lab.call("GET", str(url), Role.VIEWER)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["rows"]) <= limit
        found += answer.json()["rows"]
        cursor = answer.json()["next"]
        if cursor is None:
            return found


def test_lists_of_what_a_projector_has_written(tmp_path: Path, postgres: str) -> None:
    async def scene(lab: GatewayLab) -> None:
        for number in range(5):
            await lab.start("buy", 5, f"doubt-{number}")
        for number in range(7):
            await lab.start("echo", {"<b>": "a\x00b"}, f"done-{number}")
        await lab.start("buy", 0, "failed%_1")
        await lab.start("rest", 3600, "waits/1")
        word = {"slot": "nope#1", "happened": True, "result": 1}
        await lab.call("POST", "/api/v1/runs/doubt-0/resolve", json=word)
        await shown(lab, "/api/v1/runs?limit=100", lambda rows: len(rows) == 14)
        await shown(lab, "/api/v1/rejections", lambda rows: len(rows) == 1)

        everything = await rows_of(lab, "/api/v1/runs")
        changed = [one["changed_at"] for one in everything]
        assert changed == sorted(changed, reverse=True)
        for path, count in (
            ("/api/v1/runs?status=in_doubt", 5),
            ("/api/v1/runs?status=in_doubt&status=failed", 6),
            ("/api/v1/runs?needs=person", 5),
            ("/api/v1/runs?needs=time", 1),
            ("/api/v1/runs?run=echo", 7),
            ("/api/v1/runs?run=echo&status=in_doubt", 0),
            ("/api/v1/runs?prefix=doubt-", 5),
            ("/api/v1/runs?prefix=failed%25_", 1),  # no pattern: as it is
            ("/api/v1/runs?prefix=_", 0),
            ("/api/v1/runs?partition=0", 14),
            ("/api/v1/runs?partition=1", 0),
            ("/api/v1/effects", 6),
            ("/api/v1/effects?outcome=in_doubt", 5),
            ("/api/v1/effects?run_id=doubt-1&step=charge", 1),
            ("/api/v1/effects?absent_until_proven=true", 0),
            ("/api/v1/timers", 1),
            ("/api/v1/timers?kind=sleep&run_id=waits/1", 1),
            ("/api/v1/timers?due_before=2020-01-01T00:00:00Z", 0),
            ("/api/v1/findings?settled=false", 0),
            ("/api/v1/rejections?reason=not_in_doubt&run_id=doubt-0", 1),
            ("/api/v1/rejections?reason=duplicate", 0),
            ("/api/v1/tables", 1),
        ):
            assert len(await rows_of(lab, path)) == count, path
        for limit in (3, 14, 100):
            assert await whole(lab, "/api/v1/runs", limit) == everything
            by_id = await whole(lab, "/api/v1/runs?prefix=do", limit)
            assert [one["run_id"] for one in by_id] == sorted(one["run_id"] for one in by_id)
            assert len(by_id) == 12
            assert len(await whole(lab, "/api/v1/effects", limit)) == 6
        (effect,) = await rows_of(lab, "/api/v1/effects?run_id=doubt-1")
        assert await rows_of(lab, f"/api/v1/effects?effect_key={effect['effect_key']}") == [effect]
        assert effect["amounts"] == {"pence": 5}

        counts = (await lab.call("GET", "/api/v1/counts")).json()
        assert counts["counts"]["in_doubt"] == 5
        assert counts["counts"]["completed"] == 7
        assert counts["count_max"] == 10_000
        run = (await lab.call("GET", "/api/v1/runs/doubt-1/tables?time_zone=Asia/Tokyo")).json()
        assert [one["slot"] for one in run["steps"]] == ["charge#1"]
        assert [one["status"] for one in run["attempts"]] == ["in_doubt"]
        assert run["run"]["started_at"].endswith("+09:00")
        nul = (await lab.call("GET", "/api/v1/runs/done-1/tables")).json()
        assert "\x00" not in str(nul["run"]["input"])
        is_problem(await lab.call("GET", "/api/v1/runs/nobody/tables"), 404, "R503")

        ours = (await lab.call("GET", "/api/v1/runs/doubt-1/boundary")).json()
        theirs = (await lab.call("GET", "/api/v1/runs/doubt-1/boundary?source=tables")).json()
        assert theirs["position"]["offset"] <= ours["position"]["offset"]
        for one in (ours, theirs):
            del one["position"]
        assert ours == theirs
        is_problem(await lab.call("GET", "/api/v1/runs/nobody/boundary?source=tables"), 404, "R503")
        assert (await lab.call("GET", "/api/v1/health")).json()["tables"] == "ok"

        # Filters and cursors that are none.
        page = (await lab.call("GET", "/api/v1/runs?limit=1")).json()
        for path in (
            "/api/v1/runs?status=nosuch",
            "/api/v1/runs?needs=money",
            "/api/v1/runs?run=a%00b",
            "/api/v1/runs?limit=0",
            "/api/v1/runs?limit=1001",
            "/api/v1/runs?time_zone=Nowhere/There",
            "/api/v1/effects?effect_key=1%27or%271",
            "/api/v1/timers?due_before=2020-01-01T00:00:00",
            "/api/v1/runs?cursor=x",
            "/api/v1/runs?cursor=%00",
            f"/api/v1/runs?status=failed&cursor={page['next']}",
            f"/api/v1/timers?cursor={page['next']}",
        ):
            is_problem(await lab.call("GET", path), 422, "R703")
        for evil in ("'; drop table refold_live; --", "%", "\\", "\ud7ff", "$1"):
            answer = await lab.call("GET", "/api/v1/runs", params={"run": evil, "prefix": evil})
            assert answer.json()["rows"] == []
        assert len(await rows_of(lab, "/api/v1/runs")) == 14

    play(tmp_path, postgres, scene)


def test_without_tables_or_without_postgres_lists_say_so_and_the_log_answers(
    tmp_path: Path, postgres: str
) -> None:
    async def scene(lab: GatewayLab, said: str) -> None:
        body = is_problem(await lab.call("GET", "/api/v1/runs"), 503, "R712")
        assert said in body["detail"]
        assert "secret" not in str(body)
        await lab.start("echo", 1, "r1")
        assert (await lab.call("GET", "/api/v1/runs/r1/boundary")).is_success
        assert said in (await lab.call("GET", "/api/v1/health")).json()["tables"]

    async def main() -> None:
        async with serving(tmp_path, database_url=postgres) as lab:
            await scene(lab, "lack migration")
        nowhere = "postgresql://refold:secret@127.0.0.1:1/refold"
        async with serving(tmp_path, database_url=nowhere) as lab:
            await scene(lab, "cannot be reached")

    asyncio.run(main())


def test_field_report_38_waiting_has_its_end_and_the_projector_goes_on(
    tmp_path: Path, postgres: str
) -> None:
    """F38: a pool of 5, 40 slow queries; then 200 that are cancelled."""

    async def main() -> None:
        settings = {"connections_max": 5, "acquire_s": 0.4, "statement_s": 1.5}
        async with projecting(tmp_path, postgres, **settings) as lab:
            await lab.start("echo", 1, "r0")
            await shown(lab, "/api/v1/runs", lambda rows: len(rows) == 1)
            views = lab.gateway.views
            assert views is not None
            asked = asyncio.get_running_loop().time
            slow = "pg_sleep(10)"

            async def dashboard() -> tuple[str, float]:
                begun = asked()
                try:
                    async with views._connection() as connection:
                        await connection.fetch(f"select {slow}")
                except (NoConnection, QueryTooLong) as error:
                    return type(error).__name__, asked() - begun
                raise AssertionError("it cannot have ended")

            many = [asyncio.create_task(dashboard()) for _ in range(40)]
            await asyncio.sleep(0.1)
            # All are taken: the answer comes in time, and the tables are filled all the same.
            answer = await lab.call("GET", "/api/v1/runs")
            body = is_problem(answer, 503, "R710")
            assert "all 5 connections" in body["detail"]
            await lab.start("echo", 2, "r1")
            connection = await connect(postgres)
            try:
                await until(
                    lambda: connection.fetchval("select count(*) = 2 from v1_runs"),
                )
            finally:
                await close(connection)
            assert not all(one.done() for one in many)  # it did not have to wait for them
            ended = [kind for kind, _ in await asyncio.gather(*many)]
            assert ended.count("QueryTooLong") >= 5
            assert ended.count("NoConnection") >= 30
            assert views.free == 5

            for number in range(200):
                task = asyncio.create_task(lab.call("GET", "/api/v1/runs"))
                for _ in range(number % 13):
                    await asyncio.sleep(0)
                if number % 10 == 0:
                    await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait({task})
            assert views.free == 5
            assert lab.shell.under_way == 0
            # Whole: as many as it has work at once, and none of them hangs.
            answers = await asyncio.gather(*(lab.call("GET", "/api/v1/runs") for _ in range(5)))
            assert [one.status_code for one in answers] == [200] * 5
            pool = views._pool

            async def idle() -> bool:
                return bool(pool.get_idle_size() == pool.get_size())

            await until(idle)
            assert pool.get_size() <= 5

    asyncio.run(main())


def test_a_server_that_restarts_is_found_again(tmp_path: Path, postgres: str) -> None:
    async def main() -> None:
        async with projecting(tmp_path, postgres) as lab:
            await lab.start("echo", 1, "r1")
            await shown(lab, "/api/v1/runs", lambda rows: len(rows) == 1)
            killer = await connect(postgres)
            try:
                await killer.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name = 'refold gateway'"
                )
            finally:
                await close(killer)
            answer = await lab.call("GET", "/api/v1/runs")
            if answer.status_code != 200:  # the first one may meet the dead connection
                is_problem(answer, 503, "R712")

            async def answered() -> bool:
                return (await lab.call("GET", "/api/v1/runs")).status_code == 200

            await until(answered)

    asyncio.run(main())


def test_lists_of_another_namespace_are_shown_to_nobody(tmp_path: Path, postgres: str) -> None:
    """They would be read as ours, and our own runs as runs that there are not."""

    async def main() -> None:
        other = MemoryLog(broker=MemoryBroker("other", partition_count=1))
        await other.open(create=True)
        await project(other, postgres)
        async with serving(tmp_path, database_url=postgres) as lab:
            for path in ("/api/v1/runs", "/api/v1/counts", "/api/v1/tables"):
                answer = await lab.call("GET", path)
                problem = is_problem(answer, 503, "R712")
                assert "of namespace 'other', not of" in problem["detail"]
                assert "REFOLD_GATEWAY_DATABASE_SCHEMA" in problem["next"]
            health = (await lab.call("GET", "/api/v1/health")).json()
            assert "of namespace 'other'" in health["tables"]

    asyncio.run(main())


def test_readers_cannot_write(postgres: str) -> None:
    async def main() -> None:
        views = Views(postgres)
        try:
            with pytest.raises(TablesMissing):
                await views.page(RunsAsked())
            with pytest.raises(Exception, match="read-only"):
                async with views._connection() as connection:
                    await connection.execute("create table evil (x int)")
            assert views.free == views.connections_max
        finally:
            await views.close()

    asyncio.run(main())


def test_a_database_that_lets_nobody_in_is_said_to_be_away(postgres: str) -> None:
    """Whatever keeps it away: it is no defect of the gateway."""
    server = postgres.partition("@")[2]

    async def main() -> None:
        for url, said in (
            ("postgresql://127.0.0.1:1/x", "cannot be reached"),
            (f"{postgres}_gone", "does not exist"),
            (f"postgresql://nobody:secret@{server}", "nobody"),
            (f"{postgres}?sslmode=verify-full", "certificate"),
        ):
            views = Views(url)
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable, match=said) as raised:
                    await views.partitions()
                assert "secret" not in str(raised.value)
            assert raised.value.__cause__ is None, "the second answer came without another try"
            assert views.free == views.connections_max
            await views.close()

    asyncio.run(main())


def test_the_few_that_people_look_for_are_found_by_an_index(postgres: str) -> None:
    """Among millions that are done; by the plan, since times say nothing on a busy machine."""

    async def main() -> None:
        log = MemoryLog(broker=MemoryBroker("default", partition_count=1))
        await log.open(create=True)
        await project(log, postgres)
        connection = await connect(postgres)
        try:
            await connection.execute(
                "insert into refold_a.effects (partition, superseded, effect_key, run_id, slot, "
                "step, policy, generation, attempts, outcome, absent_until_proven, first_at, "
                "last_at) select 0, false, 'k' || i, 'r' || i, 'charge#1', 'charge', 'keyed', 0, "
                "1, case when i % 5000 = 7 then 'in_doubt' else 'done' end, i % 5000 = 8, now(), "
                "timestamptz 'epoch' + i * interval '1 second' from generate_series(1, 20000) i; "
                "insert into refold_a.findings (partition, run_id, finding_id, at, kind, "
                "effect_key, slot, step, detail, command, settled) select 0, 'r' || i, 'f' || i, "
                "timestamptz 'epoch' + i * interval '1 second', 'missing', 'k', 's', 't', 'd', "
                "'c', i % 5000 <> 7 from generate_series(1, 20000) i; "
                "analyze refold_a.effects, refold_a.findings"
            )
            for asked, index in (
                (EffectsAsked(outcome=("in_doubt",)), "effects_not_done"),
                (EffectsAsked(outcome=("in_doubt", "failed")), "effects_not_done"),
                (EffectsAsked(absent_until_proven=True), "effects_unproven"),
                (EffectsAsked(), "effects_last"),
                (EffectsAsked(effect_key="k9"), "effects_key"),
                (FindingsAsked(settled=False), "findings_open"),
                (FindingsAsked(), "findings_at"),
            ):
                _, sql = statement(asked, None, 100, "public")
                plan = await connection.fetch(f"explain {sql.text}", *sql.values)
                assert index in "\n".join(row[0] for row in plan), (asked, plan)
        finally:
            await close(connection)

    asyncio.run(main())


def test_values_are_parameters_and_never_text() -> None:
    evil = "x' or 1=1 --"
    for asked in (
        RunsAsked((evil, "b"), evil, evil, evil, 3),
        EffectsAsked(evil, evil, evil, (evil,), True),
        FindingsAsked(evil, evil, False),
        TimersAsked(evil, evil, datetime(2026, 1, 1, tzinfo=UTC)),
        RejectionsAsked(evil, (evil,), everything=False),
    ):
        found, sql = statement(asked, None, 10, "public")
        assert evil not in sql.text
        assert sql.values[-1] == 11
        assert sql.text.count("$") == len(sql.values)
        kinds: dict[type, Key] = {datetime: datetime(2026, 1, 1, tzinfo=UTC), str: "a", int: 1}

        cursor = cursor_of(found.name, asdict(asked), [kinds[kind] for _, kind in found.order])
        _, behind = statement(asked, cursor, 10, "public")
        assert behind.text.count("$") == len(behind.values)
        with pytest.raises(BadCursor):
            values_of(cursor, "other", asdict(asked), [kind for _, kind in found.order])
        with pytest.raises(BadCursor):
            values_of(cursor[:-3], found.name, asdict(asked), [str])
