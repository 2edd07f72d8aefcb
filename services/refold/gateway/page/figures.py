"""The tiles of the overview: what went through in the last hour, from the live figures.

They are approximate by contract, and the page is whole without them. They come from whoever keeps
them: a function beside the gateway (`refold dev`), or `refold live` over HTTP.
"""

import asyncio
import http.client
import json
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlencode

from fastapi import Request

from refold.gateway.page.showing import duration
from refold.gateway.state import gateway_of
from refold_projections.figures import BOUNDS_MS, MINUTE, WIDTHS_MS, Histogram

HOUR_MS = 3_600_000
MINUTES = HOUR_MS // WIDTHS_MS[MINUTE]
ANSWER_S = 1.0
ANSWER_SIZE_MAX = 16 << 20
HEIGHT = 20.0
NAME_SHOWN_MAX = 100
"""Characters of what somebody else answers as the name of its namespace."""
UNREADABLE = (
    *(OSError, http.client.HTTPException),  # the second: it broke off, or speaks no HTTP
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
)
"""What says that whoever keeps the figures gave none."""
COUNTED = (
    ("runs_started", "started"),
    ("runs_completed", "completed"),
    ("runs_failed", "failed"),
    ("steps_in_doubt", "new in doubt"),
)
IF_ANY = (("runs_diverged", "diverged"), ("input_tokens", "tokens read"))
"""Shown only where there is something to show."""
STEP_MS = "step_ms"
SAID = "The last hour, by the minute. Approximate; the lists are exact."


class Tile(NamedTuple):
    """One figure of the last hour; `points` draw it by the minute."""

    name: str
    value: str
    unit: str
    points: str
    points_count: int
    words: str


async def tiles_of(request: Request, now: datetime) -> tuple[list[Tile], str]:
    """The tiles, and a sentence on them; without live figures no tile."""
    now_ms = round(now.timestamp() * 1000)
    since_ms = now_ms - now_ms % WIDTHS_MS[MINUTE] - HOUR_MS + WIDTHS_MS[MINUTE]
    source: Callable[[int], Awaitable[Mapping[str, Any]]] | None = getattr(
        request.app.state, "figures", None
    )
    live_url = gateway_of(request).settings.live_url
    if source is None and live_url is None:
        return [], "No live figures: refold live keeps them, and REFOLD_GATEWAY_LIVE_URL names it."
    try:
        async with asyncio.timeout(ANSWER_S):
            found = await (source(since_ms) if source else _ask(str(live_url), since_ms))
        theirs, ours = found.get("namespace"), gateway_of(request).namespace
        if source is None and theirs not in (None, ours):
            said = f"those of {str(theirs)[:NAME_SHOWN_MAX]}, not {ours}"
            return [], f"No live figures: REFOLD_GATEWAY_LIVE_URL has {said}."
        return tiles(found["windows"], since_ms), SAID
    except UNREADABLE as error:
        return [], unread(error, live_url)


def unread(error: Exception, live_url: str | None) -> str:
    """Why there are no tiles. The address is left out: it may hold a password.

    >>> unread(URLError(ConnectionRefusedError(111, "Connection refused")), "http://127.0.0.1:9411")
    'The live figures cannot be read now (Connection refused): does refold live --web-port run?'
    >>> unread(TimeoutError(), None)
    'The live figures cannot be read now (TimeoutError).'
    """
    reason = error.reason if isinstance(error, URLError) else error
    said = getattr(reason, "strerror", None) or type(reason).__name__
    asked = "" if live_url is None else ": does refold live --web-port run?"
    return f"The live figures cannot be read now ({said})" + (asked or ".")


async def _ask(live_url: str, since_ms: int) -> Mapping[str, Any]:
    """What `refold live` says of the minutes."""
    query = urlencode({"window": MINUTE, "since_ms": since_ms})

    def get() -> Mapping[str, Any]:
        place = f"{live_url.rstrip('/')}/figures?{query}"
        with urllib.request.urlopen(place, timeout=ANSWER_S) as answer:
            found: Mapping[str, Any] = json.loads(answer.read(ANSWER_SIZE_MAX))
            return found

    return await asyncio.to_thread(get)


def tiles(windows: Sequence[Mapping[str, Any]], since_ms: int) -> list[Tile]:
    """The tiles of an hour of minutes that begins at `since_ms`.

    >>> counts = {"runs_started": 3, "runs_completed": 2}
    >>> cell = {"counts": counts, "durations": {}}
    >>> found = tiles([{"start_ms": 60_000, "cells": [cell, cell]}], 0)
    >>> [(tile.name, tile.value) for tile in found][:3]
    [('started', '6'), ('completed', '4'), ('failed', '0')]
    """
    by_minute: dict[str, list[int]] = {}
    buckets = [0] * (len(BOUNDS_MS) + 1)
    sum_ms = 0
    for window in windows:
        minute = (int(window["start_ms"]) - since_ms) // WIDTHS_MS[MINUTE]
        if not 0 <= minute < MINUTES:
            continue
        for cell in window["cells"]:
            for name, amount in cell["counts"].items():
                by_minute.setdefault(name, [0] * MINUTES)[minute] += int(amount)
            if steps := cell["durations"].get(STEP_MS):
                sum_ms += int(steps["sum_ms"])
                for place, amount in enumerate(steps["buckets"][: len(buckets)]):
                    buckets[place] += int(amount)
    found = [_tile(name, by_minute.get(key, [0] * MINUTES)) for key, name in COUNTED]
    found += [_tile(name, by_minute[key]) for key, name in IF_ANY if any(by_minute.get(key, ()))]
    took = Histogram(tuple(buckets), sum_ms)
    if took.total:
        middle, late = took.quantile_ms(0.5), took.quantile_ms(0.95)
        words = f"95 % within {duration(late)}" if late is not None else ""
        shown = duration(middle) if middle is not None else "over a day"
        found.append(Tile("a step, median", f"≤ {shown}", words, "", 0, ""))
    return found


def _tile(name: str, amounts: Sequence[int]) -> Tile:
    most, whole = max(amounts), sum(amounts)
    points = ""
    if most:
        points = " ".join(
            f"{minute},{HEIGHT - 1 - (HEIGHT - 2) * amount / most:.1f}"
            for minute, amount in enumerate(amounts)
        )
    words = f"{name} by the minute, at most {most:,} in one"
    return Tile(name, f"{whole:,}", "last hour", points, len(amounts), words)
