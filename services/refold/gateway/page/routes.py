"""The routes of the page: each reads, renders and is done, or acts and leads back to what it shows.

A run's id is always in the query or in a form, never in a path: it may be anything.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from refold.client.rejected import publish_again
from refold.client.words import event_words
from refold.gateway.asking import check_key, patience, scanning
from refold.gateway.auth import anybody
from refold.gateway.page import reading, showing
from refold.gateway.page.asking import Anyone, Operator, PageRoute, Reader, Settler, form_of
from refold.gateway.page.figures import tiles_of
from refold.gateway.page.reading import page_of, page_with_tables
from refold.gateway.page.run_view import (
    NEEDS_WORDS,
    RunRows,
    doubts_of,
    parked_of,
    picture_of,
    rows_of_log,
)
from refold.gateway.page.site import HEADERS, Page, static, url
from refold.gateway.problems import status_of
from refold.gateway.roles import OPERATE
from refold.gateway.routes.sessions import begin, end
from refold.gateway.state import gateway_of
from refold.log import Topic
from refold_projections.tables.queries import Page as Rows
from refold_schemas.errors import RefoldError
from refold_schemas.errors.cli import CommandUndecided, InputUnreadable, RunUnknown
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
ATTEMPT_MAX = PARTITION_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
FIELD_MAX = 200
CURSOR_MAX = 4_000
RUN_ID_MAX = 1_000
STATUSES = (
    *("in_doubt", "blocked", "diverged", "running", "waiting", "cancelling"),
    *("completed", "failed", "cancelled"),
)
NEEDS = (("person", "a person"), ("code", "other code"), ("time", "time"))
SAID = {
    "happened": ("good", "Recorded: it happened.", "A worker has taken it; the run goes on."),
    "absent": ("good", "Recorded: it did not happen.", "A worker has taken it; the run goes on."),
    "retried": ("good", "Recorded.", "The run goes on from where it stood."),
    "cancelled": ("good", "Its end is asked for.", "What is open is settled first."),
    "waits": (
        "doubt",
        "Sent, not yet decided.",
        "No worker has decided it so far. It stays in the log, and is applied once when one does.",
    ),
    "republished": ("good", "Published again.", "The owner of the run's partition decides it."),
}

Text = Annotated[str | None, Query(max_length=FIELD_MAX)]
Cursor = Annotated[str | None, Query(max_length=CURSOR_MAX)]
Id = Annotated[str, Query(alias="id", max_length=RUN_ID_MAX)]


# ---- files


@router.get("/page/{name}", dependencies=[anybody])
async def file(name: str) -> Response:
    """Style, script and icon."""
    found = static(name)
    if found is None:
        raise NoSuchPlace
    data, media_type = found
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(data, media_type=media_type, headers=headers)


# ---- session


@router.get("/login", dependencies=[anybody])
async def login_page(request: Request, to: Text = None) -> Response:
    """Where a token is given."""
    page = Page(request, gateway_of(request), None)
    return page.answer("login.html", follow=False, error=None, to=_place(to))


@router.post("/login", dependencies=[anybody])
async def login(request: Request) -> Response:
    """Begin a session and go on to where one wanted to go."""
    form = await form_of(request)
    to = _place(form.get("to"))
    answer = RedirectResponse(to, 303, HEADERS)
    try:
        await begin(request, answer, form.get("token", ""))
    except RefoldError as error:
        page = Page(request, gateway_of(request), None)
        return page.answer("login.html", status=status_of(error), error=error, to=to)
    return answer


@router.post("/logout")
async def logout(request: Request, caller: Anyone) -> Response:
    """End the session: its cookie is taken away, and copies of it are refused."""
    answer = RedirectResponse("/login", 303, HEADERS)
    end(request, answer, caller)
    return answer


def _place(to: str | None) -> str:
    """A place of ours: a path, not the address of somebody else's."""
    if not to or not to.startswith("/") or to.startswith(("//", "/\\")) or "\\" in to:
        return "/"
    return to if to.isprintable() and to.isascii() else "/"


# ---- pages


@router.get("/")
async def overview(request: Request, caller: Reader) -> Response:
    """What needs a person first, then how much goes on."""
    page = await page_with_tables(request, caller)
    page.unserved = await reading.unserved(page.gateway)
    needing = await reading.needing(page.gateway)
    open_findings = await reading.listed(page.gateway, reading.findings_asked(everything=False))
    tiles, said = await tiles_of(request, page.now)
    unserved = showing.unserved_words(page.unserved, page.gateway.client.log.facts.partition_count)
    headline, subline = _headline(needing, unserved)
    return page.answer(
        "overview.html",
        "overview",
        headline=headline,
        subline=subline,
        unserved_words=unserved,
        needing=[_with_needs(one) for one in needing.rows],
        needing_more=sum(needing.counts.values()) > len(needing.rows),
        findings=_findings_words(open_findings),
        latest=await reading.latest(page.gateway),
        figures=tiles,
        figures_said=said,
    )


def _headline(needing: reading.Needing, unserved: tuple[str, str, str] | None) -> tuple[str, str]:
    counts = needing.counts
    words = [
        f"{number:,} {showing.sign(status).word}" for status, number in counts.items() if number
    ]
    if not words and unserved:
        return unserved[0].rstrip("."), (
            "As far as the tables know, no run is in doubt for a person, blocked or diverged."
        )
    if not words:
        return "Nothing needs a person", "No run is in doubt for a person, blocked or diverged."
    whole = sum(counts.values())
    order = "those that wait longest first" if needing.longest_known else "in doubt first"
    runs = "run needs" if whole == 1 else "runs need"
    return f"{whole:,} {runs} attention", f"{', '.join(words)}; {order}."


def _findings_words(found: Rows) -> str:
    """How many there are; nothing where there are none."""
    if not found.rows:
        return ""
    more = "more than " if found.next else ""
    return f"{more}{len(found.rows)} finding{'s' * (len(found.rows) != 1)}"


def _with_needs(run: Mapping[str, Any]) -> dict[str, Any]:
    return {**run, "needs_words": NEEDS_WORDS.get(run["needs"] or "", "nothing")}


@router.get("/runs")
async def runs(
    request: Request,
    caller: Reader,
    q: Text = None,
    status: Text = None,
    needs: Text = None,
    run: Text = None,
    cursor: Cursor = None,
) -> Response:
    """All runs that fit, the most recently changed first."""
    page = await page_with_tables(request, caller)
    page.unserved = await reading.unserved(page.gateway)
    asked = {"q": q, "status": status, "needs": needs, "run": run}
    found = await reading.listed(page.gateway, reading.runs_asked(q, status, needs, run), cursor)
    more = None if found.next is None else url("/runs", **asked, cursor=found.next)
    some = any(asked.values())
    runs_words = "1 run" if len(found.rows) == 1 else f"{len(found.rows)} runs"
    said = f"{runs_words}{', and there are more' if more else ''}"
    return page.answer(
        "runs.html",
        "runs",
        runs=found.rows,
        asked=asked,
        statuses=STATUSES,
        needs=NEEDS,
        next_url=more,
        said=said if found.rows else "No such runs." if some else "No runs yet.",
    )


@router.get("/run")
async def run(request: Request, caller: Reader, run_id: Id, said: Text = None) -> Response:
    """One run: sentence, what to do about it, picture, payloads."""
    page = await page_of(request, caller)
    return await _run_page(page, run_id, said=said)


async def _run_page(
    page: Page,
    run_id: str,
    *,
    said: str | None = None,
    error: RefoldError | None = None,
    given: Mapping[str, str] | None = None,
) -> Response:
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
            **_with_needs(found),
            "sentence_up": f"{found['sentence'][:1].upper()}{found['sentence'][1:]}.",
        },
        source=source,
        said=_said(said),
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


def _said(name: str | None) -> dict[str, str] | None:
    """What the page says after an action: one of our own texts, whatever the address says."""
    if name not in SAID:
        return None
    tone, title, text = SAID[name]
    return {"tone": tone, "title": title, "text": text, "next": ""}


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
    slot: Annotated[str | None, Query(max_length=2_000)] = None,
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


@router.get("/effects")
async def effects(
    request: Request,
    caller: Reader,
    q: Text = None,
    outcome: Text = None,
    unproven: Text = None,
    cursor: Cursor = None,
) -> Response:
    """The ledger."""
    page = await page_with_tables(request, caller)
    asked = {"q": q, "outcome": outcome, "unproven": unproven}
    found = await reading.listed(
        page.gateway, reading.effects_asked(q, outcome, unproven=bool(unproven)), cursor
    )
    more = None if found.next is None else url("/effects", **asked, cursor=found.next)
    return page.answer(
        "effects.html",
        "effects",
        effects=found.rows,
        asked=asked,
        outcomes=reading.OUTCOMES,
        next_url=more,
    )


@router.get("/findings")
async def findings(
    request: Request, caller: Reader, settled: Text = None, cursor: Cursor = None
) -> Response:
    """Where a far system and the record differ."""
    page = await page_with_tables(request, caller)
    asked = reading.findings_asked(everything=settled == "all")
    found = await reading.listed(page.gateway, asked, cursor)
    more = None if found.next is None else url("/findings", settled=settled, cursor=found.next)
    return page.answer(
        "findings.html",
        "findings",
        findings=found.rows,
        asked={"settled": settled},
        next_url=more,
    )


@router.get("/timers")
async def timers(request: Request, caller: Reader, cursor: Cursor = None) -> Response:
    """What runs wait for."""
    page = await page_with_tables(request, caller)
    found = await reading.listed(page.gateway, reading.TIMERS, cursor)
    more = None if found.next is None else url("/timers", cursor=found.next)
    late = page.now - timedelta(seconds=10)
    rows = [{**one, "overdue": one["due_at"] < late} for one in found.rows]
    return page.answer("timers.html", "timers", timers=rows, next_url=more)


@router.get("/partitions")
async def partitions(request: Request, caller: Reader) -> Response:
    """Owners and lag."""
    page = await page_with_tables(request, caller)
    page.unserved = await reading.unserved(page.gateway)
    return page.answer("partitions.html", "partitions", partitions=page.partitions)


@router.get("/rejections")
async def rejections(
    request: Request, caller: Reader, cursor: Cursor = None, said: Text = None
) -> Response:
    """Commands that no worker could apply."""
    page = await page_with_tables(request, caller)
    return await _rejections_page(page, cursor=cursor, said=said)


async def _rejections_page(
    page: Page,
    *,
    cursor: str | None = None,
    said: str | None = None,
    error: RefoldError | None = None,
) -> Response:
    found = await reading.listed(page.gateway, reading.REJECTIONS, cursor)
    more = None if found.next is None else url("/rejections", cursor=found.next)
    return page.answer(
        "rejections.html",
        "rejections",
        status=200 if error is None else status_of(error),
        rejections=found.rows,
        next_url=more,
        said=_said(said),
        error=error,
    )


# ---- actions


@router.post("/run/resolve")
async def resolve(request: Request, caller: Settler) -> Response:
    """A person's word on an effect in doubt."""
    form = await form_of(request)
    run_id, slot = _field(form, "id"), _field(form, "slot")
    happened = _field(form, "happened")
    if happened not in ("yes", "no"):
        raise RequestInvalid("happened: it is yes or no")
    gateway, attempt = gateway_of(request), form.get("attempt", "")
    known = _number(form, "attempt", ATTEMPT_MAX) if attempt else None
    command_id = _command_id(form)

    async def send(within: timedelta) -> None:
        await gateway.client.resolve(
            run_id,
            slot,
            happened=happened == "yes",
            result=_json(form.get("result", "")) if happened == "yes" else None,
            attempt=known,
            by=caller.who,
            why=form.get("why", ""),
            command_id=command_id,
            within=within,
        )

    said = "happened" if happened == "yes" else "absent"
    return await _ordered(request, caller, run_id, form, send, said)


@router.post("/run/retry")
async def retry(request: Request, caller: Operator) -> Response:
    """Let a parked or failed run go on."""
    form = await form_of(request)
    gateway, run_id = gateway_of(request), _field(form, "id")
    command_id = _command_id(form)

    async def send(within: timedelta) -> None:
        await gateway.client.retry(
            run_id,
            fresh_key=bool(form.get("fresh_key")),
            by=caller.who,
            why=form.get("why", ""),
            command_id=command_id,
            within=within,
        )

    return await _ordered(request, caller, run_id, form, send, "retried")


@router.post("/run/cancel")
async def cancel(request: Request, caller: Operator) -> Response:
    """Ask for a run's end."""
    form = await form_of(request)
    gateway, run_id = gateway_of(request), _field(form, "id")
    command_id = _command_id(form)

    async def send(within: timedelta) -> None:
        await gateway.client.cancel(
            run_id,
            by=caller.who,
            why=form.get("why", ""),
            command_id=command_id,
            within=within,
        )

    return await _ordered(request, caller, run_id, form, send, "cancelled")


@router.post("/rejections/republish")
async def republish(request: Request, caller: Operator) -> Response:
    """Publish a rejected command again."""
    form = await form_of(request)
    partition, offset = _number(form, "partition", PARTITION_MAX), _number(form, "offset")
    gateway = gateway_of(request)
    try:
        async with scanning(gateway) as client:
            await publish_again(client, partition, offset, by=caller.who)
    except RefoldError as error:
        try:
            page = await page_with_tables(request, caller)
            return await _rejections_page(page, error=error)
        except RefoldError:  # the list cannot be read: that is not what was asked for
            raise error from None
    return _back("/rejections", said="republished")


async def _ordered(
    request: Request,
    caller: Any,
    run_id: str,
    form: Mapping[str, str],
    send: Callable[[timedelta], Awaitable[None]],
    said: str,
) -> Response:
    """Send a command about a run, and lead back to its page, which says what became of it."""
    try:
        await send(await patience(request, gateway_of(request), run_id, None))
    except CommandUndecided:
        return _back("/run", id=run_id, said="waits")
    except RefoldError as error:
        return await _refused(request, caller, run_id, error, form)
    return _back("/run", id=run_id, said=said)


async def _refused(
    request: Request, caller: Any, run_id: str, error: RefoldError, form: Mapping[str, str]
) -> Response:
    """The run's page with the refusal on top, and what was written in the form."""
    page = await page_of(request, caller)
    try:
        return await _run_page(page, run_id, error=error, given=form)
    except RefoldError:
        raise error from None


def _back(place: str, **query: object) -> Response:
    return RedirectResponse(url(place, **query), 303, HEADERS)


def _field(form: Mapping[str, str], name: str) -> str:
    found = form.get(name, "")
    if not found:
        raise RequestInvalid(f"{name}: it is missing")
    return found


def _number(form: Mapping[str, str], name: str, most: int = OFFSET_MAX) -> int:
    text = _field(form, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise RequestInvalid(f"{name}: it is no number from 0 to {most:,}")
    return int(text)


def _command_id(form: Mapping[str, str]) -> str | None:
    """The command's id, under the rule of the API's Idempotency-Key. Raises RequestInvalid."""
    given = form.get("command_id") or None
    if given is not None:
        check_key("command_id", given)
    return given


def _json(text: str) -> object:
    """What a step returned. Raises InputUnreadable."""

    def constant(said: str) -> object:
        raise ValueError(f"{said} is no JSON number")

    if not text.strip():
        return None
    try:
        return json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InputUnreadable("result", f"it is not JSON ({error})") from error
