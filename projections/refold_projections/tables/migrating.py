"""Creates the tables and brings them to this version's shape, in one transaction.

A migration is a folder: `before.sql` and `after.sql` for the views' schema, `set.sql` once for each
set. In them `@schema@` and `@set@` stand for schemas, `@name@` for `a` or `b`. Released ones never
change. What it makes or drops begins a line (`create view @schema@.NAME`), a comment is one line.

A view that somebody has dropped is made again: it holds nothing. Of a table that is gone, nobody
knows what else is.
"""

import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from refold_projections.tables.database import Connection
from refold_projections.tables.names import SETS, Names
from refold_schemas.errors.tables import DatabaseRefused, TablesDiffer, TablesMissing

LOCK = 0x7265_666F_6C64
"""Of the advisory lock that whoever creates or migrates holds: `refold` in ASCII."""
PARTS = ("before.sql", "set.sql", "after.sql")
_MADE = re.compile(r"^(create|drop) (table|view|function) (\w+)\.(\w+)", re.MULTILINE)
_VIEW = r"^create view {name} as$.*?;$"
_COMMENT = r"^comment on (?:view {name}|column {name}\.\S+) is .*;$"


class Migration(NamedTuple):
    """One step of the shapes. `sha256` is of its files, in order."""

    number: int
    before: str
    of_set: str
    after: str

    @property
    def sha256(self) -> str:
        """What a database remembers of it: a released one is not changed."""
        return hashlib.sha256(
            "\0".join((self.before, self.of_set, self.after)).encode()
        ).hexdigest()

    def statements(self, names: Names) -> Iterator[str]:
        """What is executed, in order."""
        yield _filled(self.before, names)
        for one in SETS:
            yield _filled(self.of_set, names, one)
        yield _filled(self.after, names)


def migrations() -> tuple[Migration, ...]:
    """All of this version, by number from 1 on."""
    found = []
    for folder in sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda f: f.name):
        if folder.name.isdigit():
            texts = (folder.joinpath(part) for part in PARTS)
            found.append(
                Migration(
                    int(folder.name), *(t.read_text("utf-8") if t.is_file() else "" for t in texts)
                )
            )
    return tuple(found)


async def migrate(connection: Connection, names: Names) -> tuple[int, ...]:
    """Apply what is missing, all or nothing; return the numbers. Several may call it at once.

    Raises TablesDiffer where the tables are of a newer version, or a migration was changed, and
    DatabaseRefused where the database is not in UTF8: it could not hold what the log holds.
    """
    applied: list[int] = []
    encoding = await connection.fetchval("select current_setting('server_encoding')")
    if encoding != "UTF8":
        database = await connection.fetchval("select current_database()")
        raise DatabaseRefused(database, f"it is in {encoding}, and cannot hold every text")
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", LOCK)
        for schema in (names.schema, *map(names.of_set, SETS)):
            await connection.execute(f"create schema if not exists {schema}")
        await connection.execute(
            f"create table if not exists {names.schema}.refold_migrations ("
            "number int primary key, sha256 text not null, applied_at timestamptz not null)"
        )
        for one in await _pending(connection, names):
            for statement in one.statements(names):
                if statement.strip():
                    await connection.execute(statement)
            await connection.execute(
                f"insert into {names.schema}.refold_migrations values ($1, $2, now())",
                one.number,
                one.sha256,
            )
            applied.append(one.number)
    return tuple(applied)


async def restore(connection: Connection, names: Names) -> tuple[str, ...]:
    """Make views again that somebody has dropped, and return their names; rights on them are gone.

    Call it after `migrate`. Raises TablesDiffer where more than views is gone.
    """
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", LOCK)
        lost = await lost_views(connection, names)
        for view in lost:
            for statement in _statements_of(view, names):
                await connection.execute(statement)
    return lost


async def lost_views(connection: Connection, names: Names) -> tuple[str, ...]:
    """The views that were made, and are there no more, in the order in which they are made.

    Raises TablesDiffer where a table or a function is gone.
    """
    rows = await connection.fetch(
        "select case when relkind = 'v' then 'view' else 'table' end, nspname::text, relname::text "
        "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where relkind in ('r', 'p', 'v') and nspname = any($1) "
        "union all select 'function', nspname::text, proname::text "
        "from pg_proc p join pg_namespace n on n.oid = p.pronamespace where nspname = any($1)",
        [names.schema, *map(names.of_set, SETS)],
    )
    there = {tuple(row) for row in rows}
    lost = [one for one in _made(names) if one not in there]
    for kind, schema, name in lost:
        if kind != "view":
            raise TablesDiffer(
                names.schema,
                f"{kind} {schema}.{name} is gone",
                next="drop what is left of them (schemas "
                f"{' and '.join(map(names.of_set, SETS))}, and refold_* and v1_* in "
                f"{names.schema}): `refold projector` makes and fills them anew from the log",
            )
    return tuple(name for _, _, name in lost)


def _made(names: Names) -> list[tuple[str, str, str]]:
    """What all migrations leave behind: kind, schema and name."""
    made: dict[tuple[str, str, str], None] = {}
    for one in migrations():
        for statement in one.statements(names):
            for verb, *what in _MADE.findall(statement):
                kind, schema, name = what
                made.pop((kind, schema, name), None)
                if verb == "create":
                    made[kind, schema, name] = None
    return list(made)


def _statements_of(view: str, names: Names) -> Iterator[str]:
    """What makes the view as the last migration has it that does, with its comments."""
    name = re.escape(f"{names.schema}.{view}")
    for one in reversed(migrations()):
        text = _filled(one.after, names)
        made = re.search(_VIEW.format(name=name), text, re.MULTILINE | re.DOTALL)
        if made is not None:
            yield made.group()
            yield from re.findall(_COMMENT.format(name=name), text, re.MULTILINE)
            return
    raise LookupError(view)


async def pending(connection: Connection, names: Names) -> tuple[int, ...]:
    """The numbers of migrations that `migrate` would apply. Raises TablesDiffer."""
    there = await connection.fetchval(
        "select to_regclass($1) is not null", f"{names.schema}.refold_migrations"
    )
    if not there:
        return tuple(one.number for one in migrations())
    return tuple(one.number for one in await _pending(connection, names))


async def check(connection: Connection, names: Names) -> None:
    """Raise TablesMissing or TablesDiffer unless the tables have this version's shape."""
    missing = await pending(connection, names)
    if missing:
        raise TablesMissing(names.schema, missing)
    lost = await lost_views(connection, names)
    if lost:
        raise TablesMissing(names.schema, views=lost)


async def _pending(connection: Connection, names: Names) -> tuple[Migration, ...]:
    rows = await connection.fetch(f"select number, sha256 from {names.schema}.refold_migrations")
    there = {row["number"]: row["sha256"] for row in rows}
    ours = {one.number: one for one in migrations()}
    newer = sorted(there.keys() - ours.keys())
    if newer:
        raise TablesDiffer(names.schema, f"they are of version {newer[-1]}, this is {max(ours)}")
    changed = [number for number in there if there[number] != ours[number].sha256]
    if changed:
        raise TablesDiffer(names.schema, f"migration {changed[0]} is not the one they were made by")
    return tuple(one for number, one in sorted(ours.items()) if number not in there)


def _filled(text: str, names: Names, of_set: str | None = None) -> str:
    values = {"schema": names.schema}
    if of_set is not None:
        values |= {"set": names.of_set(of_set), "name": of_set}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
