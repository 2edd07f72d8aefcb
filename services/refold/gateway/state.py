"""What all requests of one gateway share: the client, the tokens, the limits, the way to tables."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import Request

from refold.client import Client
from refold.gateway.counted import Counted
from refold.gateway.rates import Rates
from refold.gateway.settings import GatewaySettings
from refold.gateway.tokens import TokenFile
from refold_projections.tables.queries import Views
from refold_schemas.errors.gateway import GatewayBusy, RequestInvalid

if TYPE_CHECKING:
    from refold.gateway.oidc import Oidc
    from refold.gateway.sessions import Sessions
    from refold.gateway.streams import Streams


@dataclass(slots=True)
class Gateway:
    """One gateway: made when the app starts, closed when it stops."""

    settings: GatewaySettings
    client: Client
    tokens: TokenFile
    sessions: "Sessions"
    oidc: "Oidc | None"
    rates: Rates
    failures: Rates
    scans: asyncio.Semaphore
    streams: "Streams"
    views: Views | None = None
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    counted: Counted = field(default_factory=Counted)
    unserved_seen: tuple[float, frozenset[int]] | None = None
    """When the page has last asked for partitions without a live owner, and which there were."""
    under_way: Callable[[], int] = lambda: 0
    """How many requests are being answered."""

    @property
    def namespace(self) -> str:
        """The log's namespace."""
        return self.client.log.facts.namespace


def gateway_of(request: Request) -> Gateway:
    """The gateway that answers this request. Raises GatewayBusy before it has started."""
    gateway = getattr(request.app.state, "gateway", None)
    if not isinstance(gateway, Gateway):
        raise GatewayBusy("it has not started yet")
    return gateway


def zone_of(gateway: Gateway, asked: str | None) -> tzinfo:
    """The zone of times in an answer: as asked, else the gateway's. Raises RequestInvalid."""
    name = asked or gateway.settings.time_zone
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise RequestInvalid(f"time_zone: there is no time zone {name!r}") from error


def today(zone: tzinfo, clock: Callable[[tzinfo], datetime] = datetime.now) -> date:
    """Today's date there."""
    return clock(zone).date()
