"""What routes share: time for those who wait, room for those who read much, ids for commands."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Header, Query, Request

from refold.client import Client, waiting
from refold.gateway.state import Gateway, gateway_of
from refold_schemas.errors.gateway import GatewayBusy, RequestInvalid
from refold_schemas.values.keys import REFOLD

KEY_MAX = 200

Within = Annotated[
    float | None,
    Query(
        ge=0,
        le=3_600,
        description="Seconds to wait; the gateway has a limit of its own. By default 10 for a "
        "decision, 1 where no worker is alive.",
    ),
]


async def _command_id(
    idempotency_key: Annotated[
        str | None,
        Header(
            description="1 to 200 printable ASCII characters; becomes the command's id. A repeat "
            "under the same key is applied once.",
        ),
    ] = None,
) -> str:
    """The command's id: the Idempotency-Key, or a fresh one. Raises RequestInvalid."""
    if idempotency_key is None:
        return str(uuid.uuid4())
    check_key("Idempotency-Key", idempotency_key)
    return idempotency_key


def check_key(name: str, key: str) -> None:
    """That this can be a command's id. Raises RequestInvalid."""
    if not 0 < len(key) <= KEY_MAX or not (key.isascii() and key.isprintable()):
        raise RequestInvalid(f"{name} has not 1 to {KEY_MAX} printable ASCII characters")


CommandId = Annotated[str, Depends(_command_id)]


def run_id_for(command_id: str) -> str:
    """The id of a run that is started without one: the same for the same command."""
    return str(uuid.uuid5(REFOLD, f"run of {command_id}"))


def extend(request: Request, seconds: float) -> None:
    """Give this request so many seconds from now, and its answer the usual deadline behind them."""
    deadline = request.scope.get("refold.deadline")
    if isinstance(deadline, asyncio.Timeout):
        now = asyncio.get_running_loop().time()
        deadline.reschedule(now + seconds + gateway_of(request).settings.deadline_s)


async def patience(
    request: Request, gateway: Gateway, run_id: str, within: float | None
) -> timedelta:
    """How long to wait for a decision on the run, and time for this request to do so."""
    if within is None:
        within = (await waiting.patience(gateway.client, run_id)).total_seconds()
    within = min(within, gateway.settings.within_max_s)
    extend(request, within)
    return timedelta(seconds=within)


@asynccontextmanager
async def scanning(gateway: Gateway) -> AsyncIterator[Client]:
    """The client, for a question that reads whole partitions: a few at a time.

    Raises GatewayBusy if none of those ends in time.
    """
    try:
        async with asyncio.timeout(gateway.settings.acquire_s):
            await gateway.scans.acquire()
    except TimeoutError:
        told = f"{gateway.settings.scans_max} others read whole partitions of the log"
        raise GatewayBusy(told) from None
    try:
        yield gateway.client
    finally:
        gateway.scans.release()
