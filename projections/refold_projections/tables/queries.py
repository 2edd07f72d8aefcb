"""Lists out of the views `v1_*`: filters, keyset cursors, limits; every wait has its end.

Readers have connections of their own, few and read-only: however many ask, whoever fills the tables
is not held up, and whoever asks when none is free hears so in time instead of waiting for ever.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from refold_projections.tables.cursors import Key, cursor_of, values_of
from refold_projections.tables.database import (
    check_url,
    client,
    in_our_words,
    is_away,
    is_missing,
    shown,
    told,
)
from refold_projections.tables.names import names_in
from refold_schemas.errors.tables import DatabaseUnavailable, TablesMissing, TablesOfAnother

LIMIT_MAX = 1_000
COUNT_MAX = 10_000
"""Counts go up to here: beyond it "so many and more" is all that a person needs."""
CONNECT_S = 5.0
AGAIN_S = 1.0
"""How soon after a failed connection another one is tried; until then the failure is told."""
WHOSE_S = 5.0
"""How long it is believed whose the tables are, before it is asked again."""

Row = dict[str, Any]


class NoConnection(Exception):
    """All connections were taken for as long as a reader waits for one."""


class QueryTooLong(Exception):
    """Postgres ended a query at its limit."""


class Page(NamedTuple):
    """Some rows of a list, and the cursor behind them; None: that was all."""

    rows: list[Row]
    next: str | None


@dataclass(frozen=True, slots=True)
class RunsAsked:
    """Which runs. With `prefix` (the id begins so) they are ordered by id, else by last change."""

    status: tuple[str, ...] | None = None
    needs: str | None = None
    run: str | None = None
    prefix: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class EffectsAsked:
    """Which lines of the ledger, the latest first."""

    run_id: str | None = None
    effect_key: str | None = None
    step: str | None = None
    outcome: tuple[str, ...] | None = None
    absent_until_proven: bool | None = None


@dataclass(frozen=True, slots=True)
class FindingsAsked:
    """Which findings of reconciliations, the latest first."""

    run_id: str | None = None
    kind: str | None = None
    settled: bool | None = None


@dataclass(frozen=True, slots=True)
class TimersAsked:
    """Which timers, the next one first."""

    run_id: str | None = None
    kind: str | None = None
    due_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class RejectionsAsked:
    """Which rejected commands, the latest first; without `everything` those that lost something."""

    run_id: str | None = None
    reason: tuple[str, ...] | None = None
    everything: bool = False


Asked = RunsAsked | EffectsAsked | FindingsAsked | TimersAsked | RejectionsAsked


class _List(NamedTuple):
    """How one list is asked: `order` are its columns' names with their types, all one way."""

    name: str
    columns: str
    order: tuple[tuple[str, type], ...]
    descending: bool


_RUNS = (
    "run_id, run, version, status, reason, needs, sentence, partition, started_at, changed_at, "
    "ended_at, wakes_at, event_count, byte_count, done_count, in_doubt_count, in_doubt_since, "
    "conflict_count, error_type, error_message"
)
RUNS = _List("runs", _RUNS, (("changed_at", datetime), ("run_id", str)), True)
RUNS_BY_ID = _List("runs", _RUNS, (("run_id", str),), False)
EFFECTS = _List(
    "effects",
    "effect_key, run_id, slot, step, policy, generation, attempts, outcome, evidence, amounts, "
    "absent_until_proven, first_at, last_at",
    (("last_at", datetime), ("run_id", str), ("slot", str), ("generation", int)),
    True,
)
FINDINGS = _List(
    "findings",
    "finding_id, at, kind, run_id, effect_key, slot, step, detail, command, settled",
    (("at", datetime), ("finding_id", str)),
    True,
)
TIMERS = _List(
    "timers",
    "run_id, timer_id, kind, slot, due_at",
    (("due_at", datetime), ("run_id", str), ("timer_id", str)),
    False,
)
REJECTIONS = _List(
    "rejections",
    'partition, "offset", at, run_id, command_id, command, command_offset, reason, detail',
    (("at", datetime), ("partition", int), ("offset", int)),
    True,
)
LOST_NOTHING = ("duplicate", "run_exists")


class Sql(NamedTuple):
    """A statement and its parameters."""

    text: str
    values: list[Any]


def statement(asked: Asked, cursor: str | None, limit: int, schema: str) -> tuple[_List, Sql]:
    """The statement for one page: one row more than `limit`, so that one sees whether there is
    more. Values are parameters, never text. Raises BadCursor.
    """
    where: list[str] = []
    values: list[Any] = []

    def add(condition: str, value: Any) -> None:
        if value is None:
            return
        values.append(value)
        where.append(condition.replace("?", f"${len(values)}"))

    def among(column: str, wanted: tuple[str, ...] | None) -> None:
        if wanted is not None and len(wanted) == 1:
            add(f"{column} = ?", wanted[0])  # the index of this column has the order too
        elif wanted is not None:
            add(f"{column} = any(?)", list(wanted))

    match asked:
        case RunsAsked():
            found = RUNS if asked.prefix is None else RUNS_BY_ID
            among("status", asked.status)
            add("needs = ?", asked.needs)
            add("run = ?", asked.run)
            add("starts_with(run_id, ?)", asked.prefix)
            add("partition = ?", asked.partition)
        case EffectsAsked():
            found = EFFECTS
            add("run_id = ?", asked.run_id)
            add("effect_key = ?", asked.effect_key)
            add("step = ?", asked.step)
            among("outcome", asked.outcome)
            add("absent_until_proven = ?", asked.absent_until_proven)
        case FindingsAsked():
            found = FINDINGS
            add("run_id = ?", asked.run_id)
            add("kind = ?", asked.kind)
            add("settled = ?", asked.settled)
        case TimersAsked():
            found = TIMERS
            add("run_id = ?", asked.run_id)
            add("kind = ?", asked.kind)
            add("due_at < ?", asked.due_before)
        case RejectionsAsked():
            found = REJECTIONS
            add("run_id = ?", asked.run_id)
            among("reason", asked.reason)
            if not asked.everything and asked.reason is None:
                add("reason <> all(?)", list(LOST_NOTHING))
    names = [f'"{name}"' for name, _ in found.order]
    if cursor is not None:
        kinds = [kind for _, kind in found.order]
        behind = values_of(cursor, found.name, asdict(asked), kinds)
        places = [f"${len(values) + number}" for number in range(1, len(behind) + 1)]
        values += behind
        sign = "<" if found.descending else ">"
        where.append(f"({', '.join(names)}) {sign} ({', '.join(places)})")
    values.append(limit + 1)
    way = " desc" if found.descending else ""
    text = (
        f"select {found.columns} from {schema}.v1_{found.name}"
        + (f" where {' and '.join(where)}" if where else "")
        + f" order by {', '.join(name + way for name in names)} limit ${len(values)}"
    )
    return found, Sql(text, values)


class Views:
    """Reads the views of one schema. `connections_max` and the times are limits, in seconds.

    With `namespace` every question raises TablesOfAnother where the tables are of another one:
    its runs are nobody's business here, and "there is none" would be a lie about ours.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        schema: str = "public",
        connections_max: int = 5,
        acquire_s: float = 2.0,
        statement_s: float = 5.0,
    ) -> None:
        check_url(url)
        self._url, self._schema = url, names_in(schema).schema
        self._namespace = namespace
        self._ours_until = 0.0
        self._acquire_s, self._statement_s = acquire_s, statement_s
        self.connections_max = connections_max
        self._free = asyncio.Semaphore(connections_max)
        self._waiting = 0
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._failed: tuple[float, str] | None = None
        """When no connection could be made, and why."""

    async def close(self) -> None:
        """Give the connections back."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(2.0):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @property
    def free(self) -> int:
        """How many further questions would get a connection at once."""
        return self._free._value

    @property
    def waiting(self) -> int:
        """How many questions wait for a connection."""
        return self._waiting

    async def page(self, asked: Asked, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One page of a list.

        Raises BadCursor, NoConnection, QueryTooLong, DatabaseUnavailable, TablesMissing.
        """
        limit = max(1, min(limit, LIMIT_MAX))
        found, sql = statement(asked, cursor, limit, self._schema)
        async with self._connection() as connection:
            rows = [dict(row) for row in await connection.fetch(sql.text, *sql.values)]
        if len(rows) <= limit:
            return Page(rows, None)
        rows = rows[:limit]
        last: list[Key] = [rows[-1][name] for name, _ in found.order]
        return Page(rows, cursor_of(found.name, asdict(asked), last))

    async def boundary(self, run_id: str) -> Row | None:
        """The boundary of a run as `refold boundary --json` prints it; None: no such run there."""
        text = f"select boundary from {self._schema}.v1_boundary where run_id = $1"
        async with self._connection() as connection:
            found: Row | None = await connection.fetchval(text, run_id)
        return found

    async def run(self, run_id: str) -> Row | None:
        """A run with its `steps`, `attempts` and `timers`, of one moment; None: no such run."""
        schema = self._schema
        # One snapshot: a swap of the sets between two statements would mix their versions.
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            row = await connection.fetchrow(
                f"select * from {schema}.v1_runs where run_id = $1", run_id
            )
            if row is None:
                return None
            found: Row = dict(row)
            for name, order in (
                ("steps", "born, slot"),
                ("attempts", "slot, attempt"),
                ("timers", "due_at, timer_id"),
            ):
                rows = await connection.fetch(
                    f"select * from {schema}.v1_{name} where run_id = $1 order by {order} "
                    f"limit {LIMIT_MAX * 10}",
                    run_id,
                )
                found[name] = [dict(one) for one in rows]
        return found

    async def partitions(self) -> list[Row]:
        """How far the tables are, a row a partition."""
        text = f"select * from {self._schema}.v1_partitions order by partition"
        async with self._connection() as connection:
            return [dict(row) for row in await connection.fetch(text)]

    async def counts(self, statuses: Sequence[str]) -> dict[str, int]:
        """How many runs have each status, up to COUNT_MAX of each."""
        text = (
            "select status, (select count(*) from (select 1 from "
            f"{self._schema}.v1_runs r where r.status = s.status limit $2) few) as count "
            "from unnest($1::text[]) as s(status)"
        )
        async with self._connection() as connection:
            rows = await connection.fetch(text, list(statuses), COUNT_MAX)
        return {row["status"]: row["count"] for row in rows}

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A connection for one question. What goes wrong with it is told in our words."""
        self._waiting += 1
        try:
            # Waiting happens here and nowhere else: a waiter that gives up has taken nothing.
            async with asyncio.timeout(self._acquire_s):
                await self._free.acquire()
        except TimeoutError:
            raise NoConnection(
                f"all {self.connections_max} connections were taken for {self._acquire_s:g} s"
            ) from None
        finally:
            self._waiting -= 1
        try:
            pool, connection = await self._acquired()
            try:
                if self._namespace is not None and time.monotonic() >= self._ours_until:
                    await self._check_whose(connection, self._namespace)
                yield connection
            finally:
                await pool.release(connection, timeout=CONNECT_S)
        except Exception as error:
            said = self._in_our_words(error)
            if said is error:
                raise
            raise said from error
        finally:
            self._free.release()

    async def _check_whose(self, connection: Any, ours: str) -> None:
        """That the tables are of our namespace, or of nobody yet. Raises TablesOfAnother."""
        try:
            theirs = await connection.fetchval(f"select namespace from {self._schema}.refold_live")
        except client().InsufficientPrivilegeError:
            theirs = ours  # a reader of views alone: who let it in has chosen the schema
        except (client().UndefinedTableError, client().InvalidSchemaNameError):
            return  # of nobody yet: the question itself finds no tables, and says so
        if theirs and theirs != ours:
            raise TablesOfAnother(self._schema, theirs, ours)
        self._ours_until = time.monotonic() + WHOSE_S

    def _in_our_words(self, error: Exception) -> Exception:
        if is_missing(error):
            return TablesMissing(self._schema, (1,))
        if isinstance(error, client().QueryCanceledError):
            return QueryTooLong(f"a query took over {self._statement_s:g} s")
        return in_our_words(error, self._url)

    async def _acquired(self) -> tuple[Any, Any]:
        """The pool and a connection of it. Raises DatabaseUnavailable, whatever keeps it away.

        A pool makes its connections when they are first needed, so this is where a wrong password
        or a database that is not there shows.
        """
        failed = self._failed
        if failed is not None and time.monotonic() - failed[0] < AGAIN_S:
            raise DatabaseUnavailable(shown(self._url), failed[1])
        asyncpg = client()
        try:
            pool = await self._opened()
            connection = await pool.acquire(timeout=CONNECT_S)
        except Exception as error:
            if is_away(error) or isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
                self._failed = (time.monotonic(), told(error))
                raise DatabaseUnavailable(shown(self._url), told(error)) from error
            raise
        self._failed = None
        return pool, connection

    async def _opened(self) -> Any:
        async with self._opening:
            if self._pool is None:
                self._pool = await client().create_pool(
                    self._url,
                    min_size=0,
                    max_size=self.connections_max,
                    timeout=CONNECT_S,
                    command_timeout=self._statement_s + 2.0,
                    max_inactive_connection_lifetime=300.0,
                    init=_prepare,
                    server_settings={
                        "application_name": "refold gateway",
                        "timezone": "UTC",
                        "statement_timeout": str(int(self._statement_s * 1000)),
                        "default_transaction_read_only": "on",
                        "jit": "off",
                    },
                )
            return self._pool


async def _prepare(connection: Any) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )
