"""Lists out of the tables: runs, effects, findings, timers, rejections, and how far the tables are.

Rows are those of the views `v1_*`; a cursor goes on behind the last one that was shown.
"""

import math
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime, tzinfo
from decimal import Decimal
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query, Request

from refold.client.rejected import REASONS
from refold.gateway.auth import Reader
from refold.gateway.openapi import TimeZone
from refold.gateway.paths import RunId
from refold.gateway.shapes import CountsShape, PageShape, RowsShape, TableRunShape
from refold.gateway.state import Gateway, gateway_of, zone_of
from refold_projections.tables.cursors import BadCursor
from refold_projections.tables.queries import (
    COUNT_MAX,
    Asked,
    EffectsAsked,
    FindingsAsked,
    NoConnection,
    QueryTooLong,
    RejectionsAsked,
    Row,
    RunsAsked,
    TimersAsked,
    Views,
)
from refold_schemas.errors.cli import RunUnknown
from refold_schemas.errors.gateway import GatewayBusy, RequestInvalid, TablesAbsent
from refold_schemas.errors.tables import (
    DatabaseClientMissing,
    DatabaseUnavailable,
    TablesMissing,
    TablesOfAnother,
)

router = APIRouter(prefix="/api/v1", tags=["lists"])

STATUSES = (
    *("in_doubt", "blocked", "diverged", "failed", "running", "waiting", "cancelling"),
    *("completed", "cancelled"),
)
Limit = Annotated[int, Query(ge=1, le=1_000, description="Rows of a page.")]
Cursor = Annotated[
    str | None, Query(max_length=4_000, description="`next` of the page before this one.")
]
OneRun = Annotated[str | None, Query(alias="run_id", max_length=200, description="Of one run.")]
Name = Annotated[str | None, Query(max_length=1_000)]


@asynccontextmanager
async def tables(gateway: Gateway) -> AsyncIterator[Views]:
    """The views. Raises TablesAbsent where there are none, GatewayBusy where none is free."""
    if gateway.views is None:
        raise TablesAbsent("REFOLD_DATABASE_URL is not set")
    try:
        yield gateway.views
    except (DatabaseUnavailable, TablesMissing, DatabaseClientMissing) as error:
        raise TablesAbsent(error.message) from error
    except TablesOfAnother as error:
        schema = "name the schema of its own tables (REFOLD_GATEWAY_DATABASE_SCHEMA), which "
        raise TablesAbsent(error.message, f"{schema}`refold projector --schema` fills") from error
    except (NoConnection, QueryTooLong) as error:
        raise GatewayBusy(str(error)) from error
    except BadCursor as error:
        raise RequestInvalid(f"cursor: {error}") from error


async def page_of(
    gateway: Gateway, asked: Asked, cursor: str | None, limit: int, zone: tzinfo
) -> PageShape:
    """One page of a list, its values as plain JSON."""
    async with tables(gateway) as views:
        found = await views.page(asked, cursor=cursor, limit=limit)
    return PageShape(rows=[plain_row(row, zone) for row in found.rows], next=found.next)


@router.get("/runs")
async def runs(
    request: Request,
    caller: Reader,
    status: Annotated[list[str] | None, Query(max_length=len(STATUSES))] = None,
    needs: Annotated[Literal["time", "person", "code"] | None, Query()] = None,
    run: Annotated[
        str | None, Query(max_length=1_000, description="Only of this run function.")
    ] = None,
    prefix: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="The id begins so; ordered by id then."),
    ] = None,
    partition: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    time_zone: TimeZone = None,
) -> PageShape:
    """Runs and what they wait for, the most recently changed first."""
    gateway = gateway_of(request)
    for one in status or ():
        if one not in STATUSES:
            raise RequestInvalid(f"status: {one!r} is none of {', '.join(STATUSES)}")
    asked = RunsAsked(
        tuple(sorted(set(status))) if status else None,
        needs,
        no_nul("run", run),
        no_nul("prefix", prefix),
        partition,
    )
    return await page_of(gateway, asked, cursor, limit, zone_of(gateway, time_zone))


@router.get("/counts")
async def counts(request: Request, caller: Reader) -> CountsShape:
    """How many runs have each status, what needs somebody first."""
    gateway = gateway_of(request)
    async with tables(gateway) as views:
        found = await views.counts(STATUSES)
    return CountsShape(counts={one: found.get(one, 0) for one in STATUSES}, count_max=COUNT_MAX)


@router.get("/runs/{run_id}/tables")
async def run_in_tables(
    request: Request, run_id: RunId, caller: Reader, time_zone: TimeZone = None
) -> TableRunShape:
    """A run with its steps, attempts and timers, as the tables have it: of one moment, perhaps a
    little behind the log."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    async with tables(gateway) as views:
        found = await views.run(run_id)
    if found is None:
        raise RunUnknown(run_id, gateway.namespace)
    lists = {name: found.pop(name) for name in ("steps", "attempts", "timers")}
    return TableRunShape(
        run=plain_row(found, zone),
        **{name: [plain_row(one, zone) for one in rows] for name, rows in lists.items()},
    )


@router.get("/effects")
async def effects(
    request: Request,
    caller: Reader,
    run_id: OneRun = None,
    effect_key: Annotated[str | None, Query(max_length=100)] = None,
    step: Name = None,
    outcome: Annotated[
        list[Literal["done", "under_way", "in_doubt", "failed", "absent"]] | None,
        Query(max_length=5),
    ] = None,
    absent_until_proven: Annotated[bool | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    time_zone: TimeZone = None,
) -> PageShape:
    """The ledger: each effect key that was intended, the latest first."""
    gateway = gateway_of(request)
    asked = EffectsAsked(
        no_nul("run_id", run_id),
        _key(effect_key),
        no_nul("step", step),
        tuple(sorted(set(outcome))) if outcome else None,
        absent_until_proven,
    )
    return await page_of(gateway, asked, cursor, limit, zone_of(gateway, time_zone))


@router.get("/findings")
async def findings(
    request: Request,
    caller: Reader,
    run_id: OneRun = None,
    kind: Name = None,
    settled: Annotated[bool | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    time_zone: TimeZone = None,
) -> PageShape:
    """What reconciliations found, the latest first, each with the command that would settle it."""
    gateway = gateway_of(request)
    asked = FindingsAsked(no_nul("run_id", run_id), no_nul("kind", kind), settled)
    return await page_of(gateway, asked, cursor, limit, zone_of(gateway, time_zone))


@router.get("/timers")
async def timers(
    request: Request,
    caller: Reader,
    run_id: OneRun = None,
    kind: Name = None,
    due_before: Annotated[
        datetime | None, Query(description="Only timers due before this time, with its offset.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    time_zone: TimeZone = None,
) -> PageShape:
    """Armed timers, the next one first."""
    gateway = gateway_of(request)
    if due_before is not None and due_before.tzinfo is None:
        raise RequestInvalid("due_before: it has no offset, such as +00:00")
    asked = TimersAsked(no_nul("run_id", run_id), no_nul("kind", kind), due_before)
    return await page_of(gateway, asked, cursor, limit, zone_of(gateway, time_zone))


@router.get("/rejections")
async def rejections(
    request: Request,
    caller: Reader,
    run_id: OneRun = None,
    reason: Annotated[list[str] | None, Query(max_length=len(REASONS))] = None,
    everything: Annotated[
        bool, Query(alias="all", description="Also those that lost nothing.")
    ] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
    time_zone: TimeZone = None,
) -> PageShape:
    """Commands that were rejected, the latest first, as the tables have them."""
    gateway = gateway_of(request)
    for one in reason or ():
        if one not in REASONS:
            raise RequestInvalid(f"reason: {one!r} is none of {', '.join(REASONS)}")
    asked = RejectionsAsked(
        no_nul("run_id", run_id), tuple(sorted(set(reason))) if reason else None, everything
    )
    return await page_of(gateway, asked, cursor, limit, zone_of(gateway, time_zone))


@router.get("/tables")
async def positions(request: Request, caller: Reader, time_zone: TimeZone = None) -> RowsShape:
    """How far the tables are behind the log, a row a partition."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    async with tables(gateway) as views:
        rows = await views.partitions()
    return RowsShape(rows=[plain_row(row, zone) for row in rows])


# ---- values


def no_nul(name: str, text: str | None) -> str | None:
    """A filter as it is; Postgres has no U+0000. Raises RequestInvalid."""
    if text is not None and "\0" in text:
        raise RequestInvalid(f"{name}: it has U+0000 in it, which no name has")
    return text


def _key(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise RequestInvalid("effect_key: it is no UUID") from None


def plain_row(row: Row, zone: tzinfo) -> dict[str, Any]:
    """A row as plain JSON: times in the zone, bytes as hex."""
    return {name: plain(value, zone) for name, value in row.items()}


def plain(value: Any, zone: tzinfo) -> Any:
    """A value of Postgres as plain JSON.

    >>> from datetime import UTC
    >>> plain([b"\\x01", Decimal("1.50"), None], UTC)
    ['01', '1.50', None]
    """
    match value:
        case datetime():
            return value.astimezone(zone).isoformat(timespec="milliseconds")
        case date():
            return value.isoformat()
        case bytes() | memoryview():
            return bytes(value).hex()
        case uuid.UUID() | Decimal():
            return str(value)
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [plain(one, zone) for one in cast("list[Any]", value)]
        case _:
            return value
