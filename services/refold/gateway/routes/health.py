"""Whether it lives, whether it can answer, what it stands on, and who owns which partition."""

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel

from refold.client.claims import ClaimSeen
from refold.gateway.asking import scanning
from refold.gateway.auth import Reader, anybody
from refold.gateway.routes.lists import tables
from refold.gateway.shapes import HealthShape, PartitionShape, PartitionsShape
from refold.gateway.state import Gateway, gateway_of
from refold.log import Topic
from refold_schemas.errors import RefoldError
from refold_schemas.errors.gateway import GatewayBusy

router = APIRouter(prefix="/api/v1", tags=["health"])
LOOK_S = 3.0
"""How long the log has to answer a look."""
LAG_MANY = 1_000
"""Commands that wait in one partition, from which on somebody should look."""


class AliveShape(BaseModel):
    """It answers."""

    ok: bool


@router.get("/health/live", dependencies=[anybody])
async def live() -> AliveShape:
    """For whoever restarts processes: it answers."""
    return AliveShape(ok=True)


@router.get("/health/ready", dependencies=[anybody])
async def ready(request: Request) -> AliveShape:
    """For load balancers: the log answers, and nobody has asked the gateway to stop."""
    gateway = gateway_of(request)
    if gateway.draining.is_set():
        raise GatewayBusy("it is being stopped")
    problem = await _log_problem(gateway)
    if problem:
        raise GatewayBusy("the log does not answer")  # to strangers no more than that
    return AliveShape(ok=True)


@router.get("/health")
async def health(request: Request, caller: Reader) -> HealthShape:
    """What the gateway stands on, and what somebody has to look at."""
    gateway = gateway_of(request)
    log_problem = await _log_problem(gateway)
    problems = [f"the log does not answer: {log_problem}"] if log_problem else []
    if not log_problem:
        for one in await _claims(gateway):
            if one.owner_lives is False:
                problems.append(f"no live worker owns partition {one.partition}")
            elif one.lag >= LAG_MANY:
                problems.append(f"{one.lag:,} commands wait in partition {one.partition}")
    tables = await tables_problem(gateway)
    if tables not in ("ok", "absent"):
        problems.append(f"the tables: {tables}")
    return HealthShape(
        ok=not problems,
        namespace=gateway.namespace,
        log=log_problem or "ok",
        tables=tables,
        requests=gateway.under_way(),
        streams=gateway.streams.count,
        draining=gateway.draining.is_set(),
        problems=problems,
    )


@router.get("/partitions")
async def partitions(request: Request, caller: Reader) -> PartitionsShape:
    """Who owns each partition and with what, and how many commands wait, as the log has it."""
    gateway = gateway_of(request)
    shapes = [
        PartitionShape(
            partition=one.partition,
            owner=one.fold.facts.owner,
            owner_lives=one.owner_lives,
            released=one.fold.facts.released,
            claim=one.fold.claim_id.hex(),
            epoch=one.fold.position.claim_epoch,
            app=one.claimed.app if one.claimed else None,
            offset=one.fold.position.offset_next,
            command_next=one.fold.position.command_next,
            lag=one.lag,
        )
        for one in await _claims(gateway)
    ]
    return PartitionsShape(namespace=gateway.namespace, partitions=shapes)


async def _claims(gateway: Gateway) -> list[ClaimSeen]:
    async with scanning(gateway) as client:
        return await client.claims()


async def _log_problem(gateway: Gateway) -> str:
    """Why the log does not answer; empty if it does."""
    try:
        async with asyncio.timeout(LOOK_S):
            await gateway.client.log.bounds(Topic.EVENTS, 0)
    except TimeoutError:
        return f"no answer within {LOOK_S:g} s"
    except RefoldError as error:
        return error.message
    return ""


async def tables_problem(gateway: Gateway) -> str:
    """`ok`, `absent`, or what is wrong with the tables."""
    if gateway.views is None:
        return "absent"
    try:
        async with tables(gateway) as views:
            rows = await views.partitions()
    except RefoldError as error:
        return error.message
    count = gateway.client.log.facts.partition_count
    behind = sum(row["lag"] or 0 for row in rows)
    if len(rows) < count:
        return f"{count - len(rows)} of {count} partitions are not in them yet"
    return f"{behind:,} records behind the log" if behind >= LAG_MANY else "ok"
