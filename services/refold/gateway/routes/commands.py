"""What is asked of runs: start, resolve, retry, cancel; and commands that were rejected.

Whoever was verified stands in each command as `by`; what a client says of itself is not asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from refold.client.pending import refuse_in_advance
from refold.client.rejected import REASONS, begun_since, is_start, publish_again, rejections
from refold.gateway.asking import CommandId, Within, patience, run_id_for, scanning
from refold.gateway.auth import Reader, requires
from refold.gateway.bodies import StrictRoute
from refold.gateway.identity import Caller
from refold.gateway.openapi import TimeZone
from refold.gateway.paths import RunId
from refold.gateway.roles import OPERATE, SETTLE
from refold.gateway.routes.runs import seen_and_said
from refold.gateway.shapes import (
    AgainShape,
    CancelShape,
    OutcomeShape,
    RejectedShape,
    RejectionsShape,
    ResolveShape,
    RetryShape,
    StartShape,
)
from refold.gateway.state import Gateway, gateway_of, zone_of
from refold_projections.fold.plain import iso
from refold_schemas.commands import CancelRun, ResolveStep, RetryRun
from refold_schemas.errors.cli import CommandUndecided, ResultNotThere
from refold_schemas.errors.gateway import RequestInvalid
from refold_schemas.events import CommandRejected
from refold_schemas.values import check_run_id

router = APIRouter(prefix="/api/v1", tags=["commands"], route_class=StrictRoute)

Operator = Annotated[Caller, requires(OPERATE)]
Settler = Annotated[Caller, requires(SETTLE)]
UNDECIDED: dict[int | str, dict[str, Any]] = {
    202: {"model": OutcomeShape, "description": "No worker has decided it yet."}
}
Brief = Annotated[
    bool,
    Query(description="Without the run's status and sentence: no run is folded for the answer."),
]
OFFSET_MAX = 2**63 - 1


@router.post("/runs", status_code=201, responses={**UNDECIDED, 200: {"model": OutcomeShape}})
async def start(
    request: Request,
    response: Response,
    given: StartShape,
    caller: Operator,
    command_id: CommandId,
    wait: Annotated[
        bool, Query(description="Wait for its end, or until it waits for a person or other code.")
    ] = False,
    within_s: Within = None,
    brief: Brief = False,
) -> OutcomeShape:
    """Start a run: 201, or 200 where it was there already with the same input."""
    gateway = gateway_of(request)
    run_id = run_id_for(command_id) if given.run_id is None else given.run_id
    check_run_id(run_id)
    within = await patience(request, gateway, run_id, within_s)
    until_s = asyncio.get_running_loop().time() + within.total_seconds()
    try:
        handle = await gateway.client.start(
            given.run,
            given.input,
            run_id=run_id,
            version=given.version,
            command_id=command_id,
            by=caller.who,
            within=within,
        )
    except CommandUndecided as undecided:
        return _undecided(response, undecided)
    if handle.existed:
        response.status_code = 200
    if wait:
        # What its decision has left of the time: the request has no more.
        left_s = max(0.0, until_s - asyncio.get_running_loop().time())
        with suppress(ResultNotThere):  # then it is said how it stands now
            await handle.wait(within=timedelta(seconds=left_s))
    outcome = await _outcome(gateway, command_id, run_id, brief)
    outcome.existed = bool(handle.existed)
    return outcome


class Asked:
    """What a command about a run is asked with, whichever it is, and how it is answered."""

    def __init__(
        self,
        request: Request,
        response: Response,
        run_id: RunId,
        command_id: CommandId,
        within_s: Within = None,
        brief: Brief = False,
    ) -> None:
        self.run_id, self.command_id = run_id, command_id
        self.gateway = gateway_of(request)
        self._request, self._response = request, response
        self._within_s, self._brief = within_s, brief

    async def order(
        self, word: ResolveStep | RetryRun | CancelRun, send: Callable[..., Awaitable[None]]
    ) -> OutcomeShape:
        """Send the command, unless `word` shows that it will be refused; say what became of it.

        `send` is the client's method, with what no other command has. Raises what it raises.
        """
        within = await patience(self._request, self.gateway, self.run_id, self._within_s)
        await refuse_in_advance(self.gateway.client, word)
        try:
            await send(
                self.run_id,
                by=word.by,
                why=word.why,
                command_id=self.command_id,
                within=within,
            )
        except CommandUndecided as undecided:
            return _undecided(self._response, undecided)
        return await _outcome(self.gateway, self.command_id, self.run_id, self._brief)


About = Annotated[Asked, Depends()]


@router.post("/runs/{run_id}/resolve", responses=UNDECIDED)
async def resolve(given: ResolveShape, caller: Settler, asked: About) -> OutcomeShape:
    """Say of a slot in doubt whether its effect happened; who said so and why is recorded."""
    if not given.happened and given.result is not None:
        raise RequestInvalid("result: what did not happen has none")
    slot, attempt, happened = given.slot, given.attempt, given.happened
    word = ResolveStep(
        asked.command_id, asked.run_id, slot, attempt, happened, None, caller.who, given.why
    )
    send = partial(
        asked.gateway.client.resolve,
        slot=slot,
        attempt=attempt,
        happened=happened,
        result=given.result,
    )
    return await asked.order(word, send)


@router.post("/runs/{run_id}/retry", responses=UNDECIDED)
async def retry(given: RetryShape, caller: Operator, asked: About) -> OutcomeShape:
    """Let a diverged or blocked run go on, or try the failure of a failed one again."""
    slot, fresh_key = given.slot, given.fresh_key
    word = RetryRun(asked.command_id, asked.run_id, slot, fresh_key, caller.who, given.why)
    send = partial(asked.gateway.client.retry, slot=slot, fresh_key=fresh_key)
    return await asked.order(word, send)


@router.post("/runs/{run_id}/cancel", responses=UNDECIDED)
async def cancel(given: CancelShape, caller: Operator, asked: About) -> OutcomeShape:
    """Ask for a run's end: nothing new starts, what is open is settled first."""
    word = CancelRun(asked.command_id, asked.run_id, caller.who, given.why)
    return await asked.order(word, asked.gateway.client.cancel)


@router.get("/commands/rejected")
async def rejected(
    request: Request,
    caller: Reader,
    reason: Annotated[
        list[str] | None, Query(description="Only these reasons.", max_length=len(REASONS))
    ] = None,
    run_id: Annotated[str | None, Query(max_length=200, description="Only of this run.")] = None,
    everything: Annotated[
        bool, Query(alias="all", description="Also those that lost nothing.")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    time_zone: TimeZone = None,
) -> RejectionsShape:
    """Commands that were rejected, the latest first, as the log has them."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    for one in reason or ():
        if one not in REASONS:
            raise RequestInvalid(f"reason: {one!r} is none of {', '.join(REASONS)}")
    async with scanning(gateway) as client:
        found = await rejections(client, reason, run_id, everything=everything)
        shown = []
        for record in found[:limit]:
            event = record.event
            assert isinstance(event, CommandRejected)
            begun = await begun_since(client, record, event) if is_start(event) else None
            shown.append(
                RejectedShape(
                    partition=record.partition,
                    offset=event.command_offset,
                    at=iso(record.at_ms, zone),
                    reason=event.reason,
                    detail=event.detail,
                    command_type=event.command_type or None,
                    command_id=event.command_id or None,
                    run_id=record.run_id,
                    event_offset=record.offset,
                    run_exists_now=begun,
                )
            )
    return RejectionsShape(rejected=shown, total=len(found))


@router.post("/commands/rejected/{partition}/{offset}/republish", status_code=202)
async def republish(
    request: Request,
    caller: Operator,
    partition: Annotated[int, Path(ge=0, le=2**31 - 1)],
    offset: Annotated[int, Path(ge=0, le=OFFSET_MAX)],
) -> AgainShape:
    """Publish a rejected command again, to the partition of its run; its owner decides it."""
    gateway = gateway_of(request)
    async with scanning(gateway) as client:
        again = await publish_again(client, partition, offset, by=caller.who)
    return AgainShape(
        command_type=type(again.command).__name__,
        command_id=again.command.command_id,
        run_id=again.command.run_id,
        partition=again.partition,
        fresh_id=again.fresh,
    )


def _undecided(response: Response, error: CommandUndecided) -> OutcomeShape:
    response.status_code = 202
    return OutcomeShape(
        command_id=error.command_id,
        run_id=error.run_id,
        decided=False,
        next=f"{error.message}; {error.next}",
    )


async def _outcome(gateway: Gateway, command_id: str, run_id: str, brief: bool) -> OutcomeShape:
    if brief:
        return OutcomeShape(command_id=command_id, run_id=run_id, decided=True)
    seen, said = await seen_and_said(gateway, run_id, zone_of(gateway, None))
    return OutcomeShape(
        command_id=command_id,
        run_id=run_id,
        decided=True,
        status=seen.boundary.status,
        sentence=said,
    )
