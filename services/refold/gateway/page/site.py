"""Renders a template for a request: who looks, how far the tables are, times, the entity tag."""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from refold.client.words import is_ours
from refold.gateway.identity import Caller
from refold.gateway.page import showing
from refold.gateway.roles import OPERATE, SETTLE, Role
from refold.gateway.state import Gateway, zone_of
from refold_schemas.commands.limits import WHY_CHARS_MAX
from refold_schemas.errors.gateway import GatewayError

PLACES = (
    ("overview", "/", "Overview"),
    ("runs", "/runs", "Runs"),
    ("effects", "/effects", "Effects"),
    ("findings", "/findings", "Findings"),
    ("timers", "/timers", "Timers"),
    ("partitions", "/partitions", "Partitions"),
    ("rejections", "/rejections", "Rejections"),
)
BEHIND_SHOWN_S = 1.0
STOPPED_AFTER_S = 15.0
"""A projector that has read nothing for so long is not running."""
HEADERS = {
    # With no-referrer, which the gateway says elsewhere, a browser sends `Origin: null` with forms.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Cookie, Authorization",
}
_AGES = re.compile(r'(<span class="ago"[^>]*>)[^<]*')
_MAIN = re.compile(r"<main.*</main>", re.DOTALL)
_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}


class Lag(NamedTuple):
    """How far the tables are behind the log, in words, and the colour that repeats it."""

    text: str
    tone: str


def lag_of(partitions: Sequence[Mapping[str, Any]], now: datetime) -> Lag:
    """The badge: the worst of all partitions.

    >>> now = datetime(2026, 8, 8, 12, 0, 10, tzinfo=UTC)
    >>> at = datetime(2026, 8, 8, 12, 0, 8, tzinfo=UTC)
    >>> lag_of([{"lag": 0, "read_at": now, "applied_at": at}], now).text
    'up to date'
    >>> lag_of([{"lag": 7, "read_at": at, "applied_at": at}], now).text
    '2 s behind'
    >>> lag_of([], now).text
    'tables are empty'
    """
    if not partitions:
        return Lag("tables are empty", "doubt")
    ages = [(now - one["read_at"]).total_seconds() for one in partitions if one["read_at"]]
    oldest = max(ages, default=0.0)
    if oldest > STOPPED_AFTER_S:
        return Lag(f"tables stand still for {showing.duration(oldest * 1000)}", "bad")
    behind = [one for one in partitions if one["lag"]]
    if not behind:
        return Lag("up to date", "good")
    late = max(
        (now - (one["applied_at"] or one["read_at"])).total_seconds()
        for one in behind
        if one["applied_at"] or one["read_at"]
    )
    count = sum(one["lag"] for one in behind)
    if late < BEHIND_SHOWN_S:
        return Lag(f"{count:,} events behind", "dim")
    return Lag(f"{showing.duration(round(late) * 1000)} behind", "doubt")


def url(place: str, **query: object) -> str:
    """A place of the page, with its query; ids are never part of a path, whatever is in them.

    >>> url("/run", id="a/../b?c"), url("/runs", status="")
    ('/run?id=a%2F..%2Fb%3Fc', '/runs')
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{place}?{urlencode(given)}" if given else place


@cache
def static(name: str) -> tuple[bytes, str] | None:
    """A file of the page and its type; None for a name that is none."""
    if name not in _STATIC:
        return None
    return (files("refold.gateway.page") / "static" / name).read_bytes(), _STATIC[name]


@cache
def version() -> str:
    """Changes with the style and the script, so that no browser keeps an old one."""
    whole = b"".join(found[0] for name in _STATIC if (found := static(name)))
    return hashlib.sha256(whole).hexdigest()[:12]


@cache
def environment() -> Environment:
    """Escapes everything by itself; a name that is missing is an error, not an empty place."""
    env = Environment(
        loader=PackageLoader("refold.gateway.page"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("line", "visible", "pretty", "cut", "duration", "size", "sign"):
        env.filters[name] = getattr(showing, name)
    env.filters["compact"] = showing.compact
    env.filters["ago"] = _ago
    env.filters["clock"] = _clock
    env.filters["iso"] = _iso
    env.tests["ours"] = is_ours
    env.globals["url"] = url
    env.globals["why_max"] = WHY_CHARS_MAX
    return env


@pass_context
def _ago(context: Context, at: datetime | None) -> str:
    return showing.ago(at, context["now"])


@pass_context
def _clock(context: Context, at: datetime | None) -> str:
    return showing.clock(at, context["zone"], context["now"])


@pass_context
def _iso(context: Context, at: datetime) -> str:
    zone: tzinfo = context["zone"]
    return at.astimezone(zone).isoformat(sep=" ", timespec="milliseconds")


class Page:
    """One request for a page."""

    def __init__(self, request: Request, gateway: Gateway, caller: Caller | None) -> None:
        self.request, self.gateway, self.caller = request, gateway, caller
        self.now = datetime.fromtimestamp(time.time(), UTC)
        self.zone = zone_of(gateway, None)
        self.lag: Lag | None = None
        self.no_tables: GatewayError | None = None
        self.partitions: list[dict[str, Any]] = []
        """How far the tables are, as `v1_partitions` has it."""
        self.unserved: frozenset[int] = frozenset()
        """Partitions without a live owner, as the log has it."""

    def may(self, allowed: frozenset[Role]) -> bool:
        """Whether whoever looks may do that."""
        return self.caller is not None and self.caller.may(allowed)

    def answer(
        self,
        template: str,
        active: str = "",
        *,
        status: int = 200,
        follow: bool = True,
        **more: Any,
    ) -> Response:
        """The page; 304 where the browser has it already. Ages alone make no new page."""
        caller, gateway = self.caller, self.gateway
        csrf = ""
        if caller is not None and caller.session is not None:
            csrf = gateway.sessions.csrf(caller)
        values = {
            "namespace": gateway.namespace,
            "caller": _shown(caller),
            "csrf": csrf,
            "places": PLACES,
            "active": active,
            "lag": self.lag,
            "unserved": self.unserved,
            "now": self.now,
            "now_ms": round(self.now.timestamp() * 1000),
            "zone": self.zone,
            "zone_name": gateway.settings.time_zone,
            "version": version(),
            "follow": follow and status == 200,
            "can_operate": self.may(OPERATE),
            "can_settle": self.may(SETTLE),
            "etag": "",
            **more,
        }
        # The tag is of what is read; it goes into the page itself, too, for its script.
        html = environment().get_template(template).render(values)
        etag = etag_of(html)
        headers = {**HEADERS, "ETag": etag}
        if self.lag is not None:
            headers["Refold-Lag"], headers["Refold-Lag-Tone"] = self.lag
        if status == 200 and self.request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        html = html.replace('data-etag=""', f"data-etag='{etag}'", 1)
        return HTMLResponse(html, status, headers)


def etag_of(html: str) -> str:
    """A tag of what the page says, without the ages, which its script counts on by itself."""
    main = _MAIN.search(html)
    said = _AGES.sub(r"\1", main[0] if main else html)
    return f'"{hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:24]}"'


def _shown(caller: Caller | None) -> dict[str, Any] | None:
    if caller is None:
        return None
    roles = ", ".join(role.value for role in Role if role in caller.roles) or "no role"
    return {"who": caller.who, "roles": roles, "session": caller.session}
