"""What the page asks of the tables, through the gateway's own views and connections."""

import asyncio
import uuid
from typing import NamedTuple

from fastapi import Request

from refold.gateway.identity import Caller
from refold.gateway.page.site import Page, lag_of
from refold.gateway.routes.lists import no_nul, tables
from refold.gateway.state import Gateway, gateway_of
from refold_projections.tables.queries import (
    Asked,
    EffectsAsked,
    FindingsAsked,
    RejectionsAsked,
    Row,
    RunsAsked,
    TimersAsked,
)
from refold_projections.tables.queries import Page as Rows
from refold_schemas.errors import RefoldError
from refold_schemas.errors.gateway import GatewayBusy, TablesAbsent

ROWS_MAX = 50
"""Rows of a list before there is a link to further ones."""
STEPS_MAX = 200
TIMERS_OF_RUN_MAX = 50
NEEDING_MAX = 20
"""Runs that the overview names."""
NEEDING_LOOK_MAX = 200
"""So many of a status are looked at for the one that waits longest."""
LATEST_MAX = 8
OWNERS_WITHIN_S = 1.0
"""How long a page waits for the log to say which owners live."""
OWNERS_FOR_S = 2.0
"""For so long the answer is good for every page."""

ATTENTION = ("in_doubt", "blocked", "diverged")
"""Statuses that the overview shows first, in this order."""
OUTCOMES = ("done", "in_doubt", "under_way", "failed", "absent")
ENDED = ("completed", "failed", "cancelled")


class Needing(NamedTuple):
    """What needs a person or other code: rows, and how many there are by status."""

    rows: list[Row]
    counts: dict[str, int]
    longest_known: bool
    """Whether the rows are sure to be those that wait longest."""


async def page_of(request: Request, caller: Caller) -> Page:
    """The page of a request, with how far the tables are; without tables it says so."""
    page = Page(request, gateway_of(request), caller)
    try:
        async with tables(page.gateway) as views:
            page.partitions = await views.partitions()
    except (TablesAbsent, GatewayBusy) as error:
        page.no_tables = error
    else:
        page.lag = lag_of(page.partitions, page.now)
    return page


async def page_with_tables(request: Request, caller: Caller) -> Page:
    """The same, for what is read from tables alone. Raises TablesAbsent, GatewayBusy."""
    page = await page_of(request, caller)
    if page.no_tables is not None:
        raise page.no_tables
    return page


async def listed(gateway: Gateway, asked: Asked, cursor: str | None = None) -> Rows:
    """One page of a list. Raises TablesAbsent, GatewayBusy, RequestInvalid."""
    async with tables(gateway) as views:
        return await views.page(asked, cursor=cursor or None, limit=ROWS_MAX)


async def needing(gateway: Gateway) -> Needing:
    """Runs that need a person or other code: in doubt first, of each those that wait longest."""
    rows: list[Row] = []
    counts: dict[str, int] = {}
    whole = True
    async with tables(gateway) as views:
        totals = await views.counts(ATTENTION)
        for status in ATTENTION:
            # A run in doubt whose policy settles it by itself needs nobody.
            needs = "person" if status == "in_doubt" else None
            asked = RunsAsked(status=(status,), needs=needs)
            found = await views.page(asked, limit=NEEDING_LOOK_MAX)
            rows += sorted(found.rows, key=lambda one: one["in_doubt_since"] or one["changed_at"])
            counts[status] = len(found.rows)
            if found.next is not None:
                whole, counts[status] = False, totals.get(status, NEEDING_LOOK_MAX)
        asked = RunsAsked(status=("cancelling",), needs="person")
        found = await views.page(asked, limit=NEEDING_LOOK_MAX)
        rows += found.rows
        counts["cancelling"] = len(found.rows)
    return Needing(rows[:NEEDING_MAX], counts, whole)


async def unserved(gateway: Gateway) -> frozenset[int]:
    """Partitions whose owner is surely dead, or that nobody owns. Where it is not known: none.

    Tables cannot know it: what they show as under way there is nobody's work.
    """
    loop = asyncio.get_running_loop()
    if gateway.unserved_seen is None or loop.time() - gateway.unserved_seen[0] > OWNERS_FOR_S:
        client = gateway.client
        count = client.log.facts.partition_count
        found: frozenset[int] = frozenset()
        try:
            async with asyncio.timeout(OWNERS_WITHIN_S):
                lives = await asyncio.gather(*(client.owner_lives(one) for one in range(count)))
            found = frozenset(one for one, alive in enumerate(lives) if alive is False)
        except (TimeoutError, RefoldError):
            pass  # the log does not answer: what needs it says so itself
        gateway.unserved_seen = loop.time(), found
    return gateway.unserved_seen[1]


async def latest(gateway: Gateway) -> list[Row]:
    """The runs that changed last."""
    async with tables(gateway) as views:
        return (await views.page(RunsAsked(), limit=LATEST_MAX)).rows


async def run_of(gateway: Gateway, run_id: str) -> tuple[Row, Row | None] | None:
    """A run with its `steps`, `attempts`, `timers`, and its boundary; None: not in the tables."""
    async with tables(gateway) as views:
        found = await views.run(run_id)
        return None if found is None else (found, await views.boundary(run_id))


def runs_asked(prefix: str | None, status: str | None, needs: str | None, run: str | None) -> Asked:
    """The filters of the list of runs; an empty field is no filter."""
    return RunsAsked(
        (status,) if status else None,
        needs or None,
        no_nul("run", run) or None,
        no_nul("q", prefix.strip()) or None if prefix else None,
    )


def effects_asked(q: str | None, outcome: str | None, *, unproven: bool) -> Asked:
    """The filters of the ledger: `q` is a whole effect key or a whole run id."""
    key = run_id = None
    if q and q.strip():
        try:
            key = str(uuid.UUID(q.strip()))
        except ValueError:
            run_id = no_nul("q", q.strip())
    return EffectsAsked(
        run_id, key, outcome=(outcome,) if outcome else None, absent_until_proven=unproven or None
    )


def findings_asked(*, everything: bool) -> Asked:
    """Findings that nothing has settled, or all."""
    return FindingsAsked(settled=None if everything else False)


TIMERS = TimersAsked()
REJECTIONS = RejectionsAsked()
