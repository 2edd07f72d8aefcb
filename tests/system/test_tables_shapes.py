"""The tables' shapes on a real Postgres: made once, by whoever is first, and never by halves."""

import asyncio
import json
from typing import Any

import pytest

from refold_projections.tables.database import close, connect, translated
from refold_projections.tables.migrating import (
    check,
    lost_views,
    migrate,
    migrations,
    pending,
    restore,
)
from refold_projections.tables.names import VIEWS, names_in
from refold_projections.tables.store import live_of
from refold_schemas.errors.tables import (
    DatabaseRefused,
    DatabaseUrlInvalid,
    TablesDiffer,
    TablesMissing,
)
from refold_tools.cli import main
from support.postgres import rows

NAMES = names_in("public")


async def _migrate(url: str) -> tuple[int, ...]:
    connection = await connect(url)
    try:
        return await migrate(connection, NAMES)
    finally:
        await close(connection)


def test_several_may_make_the_tables_at_once_and_one_of_them_does(postgres: str) -> None:
    async def play() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(_migrate(postgres) for _ in range(4)))

    every = tuple(one.number for one in migrations())
    assert sorted(asyncio.run(play())) == [(), (), (), every]


def test_every_view_and_every_column_says_what_it_is(postgres: str) -> None:
    asyncio.run(_migrate(postgres))
    columns = asyncio.run(
        rows(
            postgres,
            """
            select c.relname as view, a.attname as column, obj_description(c.oid) as whole,
                col_description(c.oid, a.attnum) as says
            from pg_class c join pg_attribute a on a.attrelid = c.oid
            where c.relnamespace = 'public'::regnamespace and c.relkind = 'v' and a.attnum > 0
            """,
        )
    )
    assert {one["view"] for one in columns} == set(VIEWS)
    assert [f"{one['view']}.{one['column']}" for one in columns if not one["says"]] == []
    assert [one["view"] for one in columns if not one["whole"]] == []


def test_tables_of_another_version_are_left_alone(postgres: str) -> None:
    async def play() -> None:
        connection = await connect(postgres)
        with pytest.raises(TablesMissing):
            await check(connection, NAMES)
        await migrate(connection, NAMES)
        await check(connection, NAMES)
        assert await pending(connection, NAMES) == ()
        await connection.execute("insert into refold_migrations values (999, 'x', now())")
        with pytest.raises(TablesDiffer, match="version 999"):
            await migrate(connection, NAMES)
        await connection.execute("delete from refold_migrations where number = 999")
        await connection.execute("update refold_migrations set sha256 = 'x' where number = 1")
        with pytest.raises(TablesDiffer, match="migration 1"):
            await check(connection, NAMES)
        await close(connection)

    asyncio.run(play())


SHAPES = """
    select c.relname as name, pg_get_viewdef(c.oid) as text, a.attname as column,
        obj_description(c.oid) as whole, col_description(c.oid, a.attnum) as says
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = 'shop'::regnamespace and c.relkind = 'v' and a.attnum > 0
    order by c.relname, a.attnum
"""


def test_views_that_somebody_drops_are_made_again_as_they_were(
    postgres: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = names_in("shop")

    async def dropped() -> list[dict[str, Any]]:
        connection = await connect(postgres)
        await migrate(connection, shop)
        assert await restore(connection, shop) == ()
        before = [dict(one) for one in await connection.fetch(SHAPES)]
        await connection.execute(f"drop view {', '.join(f'shop.{one}' for one in VIEWS)}")
        assert await lost_views(connection, shop) == VIEWS
        assert await restore(connection, shop) == VIEWS
        assert [dict(one) for one in await connection.fetch(SHAPES)] == before
        await connection.execute("drop view shop.v1_runs, shop.v1_rejections")
        with pytest.raises(TablesMissing, match="lack view v1_runs, v1_rejections"):
            await check(connection, shop)
        await close(connection)
        return before

    asyncio.run(dropped())
    asked = ("projections", "migrate", "--database", postgres, "--schema", "shop")
    told = []
    for more in (("--dry-run", "--json"), ("--json",), ("--json",), ()):
        assert main([*asked, *more]) == 0
        told.append(capsys.readouterr().out.strip())
    lost = ["v1_runs", "v1_rejections"]
    shape: dict[str, Any] = {"schema": "shop", "migrations": []}
    assert json.loads(told[0]) == shape | {"views": lost, "applied": False}
    assert json.loads(told[1]) == shape | {"views": lost, "applied": True}
    assert json.loads(told[2]) == shape | {"views": [], "applied": True}
    assert told[3] == "the tables in schema shop have this version's shape"


@pytest.mark.parametrize(
    ("drop", "gone"),
    [
        ("schema refold_a cascade", "table refold_a.positions"),
        ("table refold_b.steps", "table refold_b.steps"),
        ("table refold_runs cascade", "table public.refold_runs"),
        ("function refold_sentence cascade", "function public.refold_sentence"),
    ],
)
def test_of_tables_of_which_something_is_gone_nothing_is_made_up(
    postgres: str, drop: str, gone: str
) -> None:
    async def play() -> None:
        connection = await connect(postgres)
        await migrate(connection, NAMES)
        await connection.execute(f"drop {drop}")
        for look in (check, restore, lost_views):
            with pytest.raises(TablesDiffer, match=gone) as caught:
                await look(connection, NAMES)
        assert "schemas refold_a and refold_b" in caught.value.next
        await close(connection)

    asyncio.run(play())


def test_two_namespaces_have_room_in_one_database(postgres: str) -> None:
    async def play() -> list[tuple[int, ...]]:
        connection = await connect(postgres)
        found = [await migrate(connection, names_in(one)) for one in ("shop", "public")]
        assert await connection.fetchval("select count(*) from shop.v1_runs") == 0
        await close(connection)
        return found

    assert asyncio.run(play()) == [(1,), (1,)]


def test_a_role_with_select_on_one_view_reads_that_view(postgres: str) -> None:
    """And it makes no tables: that it may not is said in words, with what to do."""
    role = f"reader_{postgres.rpartition('/')[2]}"
    server, _, rest = postgres.partition("//refold@")

    async def play() -> None:
        owner = await connect(postgres)
        await migrate(owner, NAMES)
        await owner.execute(f"create role {role} login")
        try:
            reader = await connect(f"{server}//{role}@{rest}")
            for view in VIEWS:
                await owner.execute(f"grant select on {view} to {role}")
                assert await reader.fetch(f"select * from {view}") == []
                await owner.execute(f"revoke select on {view} from {role}")
            with pytest.raises(DatabaseRefused, match="permission denied"), translated(postgres):
                await migrate(reader, names_in("mine"))
            await close(reader)
        finally:
            await owner.execute(f"drop owned by {role}")
            await owner.execute(f"drop role {role}")
            await close(owner)

    asyncio.run(play())


def test_what_stands_in_the_way_of_the_tables_is_said(postgres: str) -> None:
    for taken in ("refold", "pg_mine"):  # public's sets are refold_a and refold_b
        with pytest.raises(DatabaseUrlInvalid, match="in the way"):
            names_in(taken)
    latin = f"{postgres}_latin"

    async def play() -> None:
        connection = await connect(postgres)
        await connection.execute("create schema shop_a")
        await connection.execute("create table shop_a.positions (x int)")
        with pytest.raises(DatabaseRefused, match="already exists"), translated(postgres):
            await migrate(connection, names_in("shop"))
        await migrate(connection, NAMES)
        await connection.execute("delete from refold_live")
        with pytest.raises(TablesDiffer, match="neither set is live"):
            await live_of(connection, NAMES)
        name = latin.rpartition("/")[2]
        await connection.execute(
            f"create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' "
            "template template0"
        )
        try:
            other = await connect(latin)
            with pytest.raises(DatabaseRefused, match="LATIN1"):
                await migrate(other, NAMES)
            await close(other)
        finally:
            await connection.execute(f"drop database {name}")
            await close(connection)

    asyncio.run(play())
