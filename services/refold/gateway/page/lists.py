"""The pages of all runs: the overview, and the lists of runs, effects, findings and the rest."""

from datetime import timedelta

from fastapi import APIRouter, Request
from fastapi.responses import Response

from refold.gateway.page import reading, showing
from refold.gateway.page.asking import Cursor, PageRoute, Reader, Text
from refold.gateway.page.figures import tiles_of
from refold.gateway.page.reading import page_with_tables
from refold.gateway.page.run_view import with_needs
from refold.gateway.page.said import said_of
from refold.gateway.page.site import Page, url
from refold.gateway.problems import status_of
from refold_projections.tables.queries import Page as Rows
from refold_schemas.errors import RefoldError

router = APIRouter(route_class=PageRoute, include_in_schema=False)

STATUSES = (
    *("in_doubt", "blocked", "diverged", "running", "waiting", "cancelling"),
    *("completed", "failed", "cancelled"),
)
NEEDS = (("person", "a person"), ("code", "other code"), ("time", "time"))


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
        needing=[with_needs(one) for one in needing.rows],
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
    return await rejections_page(page, cursor=cursor, said=said)


async def rejections_page(
    page: Page,
    *,
    cursor: str | None = None,
    said: str | None = None,
    error: RefoldError | None = None,
) -> Response:
    """The commands that no worker could apply, and what became of an action on one of them."""
    found = await reading.listed(page.gateway, reading.REJECTIONS, cursor)
    more = None if found.next is None else url("/rejections", cursor=found.next)
    return page.answer(
        "rejections.html",
        "rejections",
        status=200 if error is None else status_of(error),
        rejections=found.rows,
        next_url=more,
        said=said_of(said),
        error=error,
    )
