"""The pages of one run: what it is and what to do about it, its events, one payload of it.

A run's id is always in the query, never in a path: it may be anything.
"""

import asyncio
import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from refold.client.words import event_words
from refold.gateway.asking import scanning
from refold.gateway.page import reading, showing
from refold.gateway.page.asking import Id, PageRoute, Reader, Text
from refold.gateway.page.reading import page_of
from refold.gateway.page.run_view import (
    RunRows,
    doubts_of,
    parked_of,
    picture_of,
    rows_of_log,
    with_needs,
)
from refold.gateway.page.said import said_of
from refold.gateway.page.site import Page, url
from refold.gateway.problems import status_of
from refold.gateway.roles import OPERATE
from refold.log import Topic
from refold_schemas.commands import SLOT_CHARS_MAX
from refold_schemas.errors import RefoldError
from refold_schemas.errors.cli import RunUnknown
from refold_schemas.errors.gateway import NoSuchPlace, RequestInvalid
from refold_schemas.errors.shell import shell_line
from refold_schemas.events import PartitionClaimed, PartitionReleased
from refold_schemas.values import Value, check_run_id
from refold_schemas.values.plain import plain_value

router = APIRouter(route_class=PageRoute, include_in_schema=False)

TRUTH_WITHIN_S = 5.0
"""How long a run's page waits for the log before it shows what the tables have."""
EVENTS_MAX = 500
"""Events on one page."""
VALUE_MAX = 1_000_000
"""Characters of a value that one page shows."""
EVENT_SHOWN_MAX = 4_000


@router.get("/run")
async def run(request: Request, caller: Reader, run_id: Id, said: Text = None) -> Response:
    """One run: sentence, what to do about it, picture, payloads."""
    page = await page_of(request, caller)
    return await run_page(page, run_id, said=said)


async def run_page(
    page: Page,
    run_id: str,
    *,
    said: str | None = None,
    error: RefoldError | None = None,
    given: Mapping[str, str] | None = None,
) -> Response:
    """The run's page; after an action with what it did, or its refusal and what was `given`."""
    rows, source = await _rows(page, run_id)
    found = rows.run
    parked = parked_of(found)
    claim = _claim(page, found)
    ended = found["status"] in ("completed", "failed", "cancelled")

    def command_id(what: str) -> str:
        """The same until the run's record goes on: a form that is sent twice is applied once."""
        named = json.dumps(["page", run_id, what, found["event_count"]])
        return str(uuid.uuid5(uuid.NAMESPACE_URL, named))

    return page.answer(
        "run.html",
        "runs",
        status=200 if error is None else status_of(error),
        run_id=run_id,
        run={
            **with_needs(found),
            "sentence_up": f"{found['sentence'][:1].upper()}{found['sentence'][1:]}.",
        },
        source=source,
        said=said_of(said),
        error=error,
        doubts=doubts_of(rows, given or {}, claim),
        parked=parked,
        picture=picture_of(rows, page.now, claim),
        remaining=[] if ended else rows.remaining or [],
        steps=[one for one in rows.steps if one["status"] != "not_started"][: reading.STEPS_MAX],
        steps_more=max(0, len(rows.steps) - reading.STEPS_MAX),
        timers=rows.timers[: reading.TIMERS_OF_RUN_MAX],
        can_cancel=not ended and page.may(OPERATE),
        command_id=command_id,
        command_cancel=shell_line("refold cancel", run_id),
    )


def _claim(page: Page, run: Mapping[str, Any]) -> tuple[str, datetime] | None:
    """The latest claim of the run's partition, as far as the tables know it."""
    for one in page.partitions:
        if one["partition"] == run["partition"] and one["claim_id"] and one["claimed_at"]:
            return one["claim_id"], one["claimed_at"]
    return None


async def _rows(page: Page, run_id: str) -> tuple[RunRows, str]:
    """The run from the tables where they are at the log's end, else from the log; and which."""
    check_run_id(run_id)
    gateway, client = page.gateway, page.gateway.client
    partition = client.partition_of(run_id)
    found, behind = None, "the tables cannot be read"
    if page.no_tables is None:
        found = await reading.run_of(gateway, run_id)
        own = next((one for one in page.partitions if one["partition"] == partition), None)
        at = own["offset_next"] if own else 0
        behind = f"the tables are at offset {at:,} of partition {partition}"
        _, log_end = await client.log.bounds(Topic.EVENTS, partition)
        if found is not None and at >= log_end:
            if await client.owner_lives(partition) is not False:
                return _rows_of_tables(
                    *found
                ), f"From the tables, which are at the log's end ({at:,})."
            behind = "its owner is dead, which tables cannot know"
    try:
        async with asyncio.timeout(TRUTH_WITHIN_S):
            seen = await client.boundary_at(run_id)
    except (TimeoutError, RefoldError) as error:
        if found is None or isinstance(error, RunUnknown):
            raise
        return _rows_of_tables(*found), (
            f"From the tables, and {behind}: the log was not read in time, so it may be newer."
        )
    today = page.now.astimezone(page.zone).date()
    return rows_of_log(seen, page.zone, today), (
        f"From the log itself, up to offset {seen.offset:,} of partition {partition}: {behind}."
    )


def _rows_of_tables(found: dict[str, Any], boundary: dict[str, Any] | None) -> RunRows:
    lists = {name: found[name] for name in ("steps", "attempts", "timers")}
    return RunRows(
        run=found,
        **lists,
        remaining=boundary["remaining"] if boundary else None,
        from_log=False,
    )


@router.get("/run/events")
async def events(
    request: Request,
    caller: Reader,
    run_id: Id,
    after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """Every record of a run, from the log."""
    page = await page_of(request, caller)
    check_run_id(run_id)
    today = page.now.astimezone(page.zone).date()
    shown: list[dict[str, Any]] = []
    more = None
    async with scanning(page.gateway) as client:
        async for one in client.history(run_id, claims=True):
            if one.offset <= after:
                continue
            if len(shown) == EVENTS_MAX:
                more = url("/run/events", id=run_id, after=shown[-1]["offset"])
                break
            is_claim = isinstance(one.event, PartitionClaimed | PartitionReleased)
            words = None if one.event is None else event_words(one.event, page.zone, today)
            fields = None if one.event is None or is_claim else _fields(one.event)
            shown.append(
                {
                    "offset": one.offset,
                    "at": showing.from_ms(one.at_ms),
                    "name": words.event if words else "unreadable",
                    "slot": words.slot if words else "",
                    "words": words.what if words else one.problem,
                    "skipped": one.why_skipped,
                    "owner": is_claim,
                    "fields": None
                    if fields is None
                    else showing.cut(showing.pretty(fields), EVENT_SHOWN_MAX),
                }
            )
        files = await client.archived(run_id)
    if not shown and not files and after < 0:
        raise RunUnknown(run_id, page.gateway.namespace)
    said = f"Archived, no more in the log: {', '.join(files)}." if files else ""
    return page.answer("events.html", "runs", run_id=run_id, events=shown, next_url=more, said=said)


def _fields(event: object) -> dict[str, object]:
    """An event's fields as plain data."""
    names = getattr(type(event), "__annotations__", {})
    return {name: _plain_field(getattr(event, name)) for name in names}


def _plain_field(value: object) -> object:
    if isinstance(value, Value):
        return plain_value(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [_plain_field(one) for one in value]
    if hasattr(value, "__annotations__") and not isinstance(value, type):
        return {name: _plain_field(getattr(value, name)) for name in type(value).__annotations__}
    return value


@router.get("/run/value")
async def value(
    request: Request,
    caller: Reader,
    run_id: Id,
    what: Text = None,
    slot: Annotated[str | None, Query(max_length=SLOT_CHARS_MAX)] = None,
    offset: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """One payload, whole as far as a page should go."""
    page = await page_of(request, caller)
    command = shell_line("refold history", run_id, options=("--json",))
    if offset is not None:
        name, found = f"event at offset {offset}", await _event_at(page, run_id, offset)
    else:
        rows, _ = await _rows(page, run_id)
        if slot is None and what in ("input", "result"):
            name, found = what, rows.run[what]
        elif slot is not None and what in ("arguments", "result"):
            step = next((one for one in rows.steps if one["slot"] == slot), None)
            if step is None:
                raise NoSuchPlace(f"run {run_id} has no step {slot}")
            name, found = f"{what} of {slot}", step[what]
        else:
            raise RequestInvalid("what: it is input, result or arguments")
    cut = showing.cut(showing.pretty(found), VALUE_MAX)
    return page.answer(
        "value.html",
        "runs",
        follow=False,
        run_id=run_id,
        name=name,
        text=cut.text,
        left=cut.left,
        command=command,
    )


async def _event_at(page: Page, run_id: str, offset: int) -> object:
    check_run_id(run_id)
    async with scanning(page.gateway) as client:
        async for one in client.history(run_id):
            if one.offset == offset:
                return one.problem if one.event is None else _fields(one.event)
    raise NoSuchPlace(f"run {run_id} has no event at offset {offset}")
