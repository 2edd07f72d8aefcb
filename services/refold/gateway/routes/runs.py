"""One run: its boundary, its state and its record."""

import time
from contextlib import suppress
from datetime import timedelta, tzinfo
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from refold.client.handle import end_error
from refold.client.history import HistoryRecord
from refold.client.pending import orders_of
from refold.client.questions import BoundaryAt
from refold.client.words import Scene, event_words, explain
from refold.gateway.asking import Within, extend, scanning
from refold.gateway.auth import Reader
from refold.gateway.openapi import TimeZone
from refold.gateway.paths import RunId
from refold.gateway.routes.lists import tables
from refold.gateway.shapes import (
    AttemptShape,
    BoundaryShape,
    ErrorShape,
    HistoryShape,
    PositionShape,
    RecordShape,
    ResultShape,
    RunShape,
    SlotShape,
    TimerShape,
    WhyShape,
)
from refold.gateway.state import Gateway, gateway_of, today, zone_of
from refold.gateway.streams import EventStream, last_event_id, shown_in
from refold.log import Topic
from refold_projections.fold import RunState, Slot, sentence
from refold_projections.fold.plain import boundary_json, iso
from refold_schemas.errors.cli import ResultNotThere, RunUnknown
from refold_schemas.errors.gateway import GatewayBusy, TablesAbsent
from refold_schemas.values.plain import plain_value

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


async def seen_and_said(gateway: Gateway, run_id: str, zone: tzinfo) -> tuple[BoundaryAt, str]:
    """The run's boundary now, and its sentence. Raises RunUnknown."""
    seen = await gateway.client.boundary_at(run_id)
    return seen, sentence(seen.boundary, zone, today(zone))


@router.get("/{run_id}/boundary")
async def boundary(
    request: Request,
    run_id: RunId,
    caller: Reader,
    source: Annotated[
        Literal["log", "tables"],
        Query(description="The log's end, or the tables: quick, UTC, perhaps a little behind."),
    ] = "log",
    time_zone: TimeZone = None,
) -> BoundaryShape:
    """What is done, under way, in doubt, failed and remaining of a run, at one log position."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    if source == "tables":
        async with tables(gateway) as views:
            found = await views.boundary(run_id)
        if found is None:
            raise RunUnknown(run_id, gateway.namespace)
        return BoundaryShape.model_validate(found)
    async with scanning(gateway):
        seen, said = await seen_and_said(gateway, run_id, zone)
    shape = boundary_json(seen.boundary, seen.partition, seen.offset, zone, said)
    return BoundaryShape.model_validate({**shape, "archived": list(seen.archived)})


@router.get("/{run_id}")
async def run(
    request: Request, run_id: RunId, caller: Reader, time_zone: TimeZone = None
) -> RunShape:
    """The whole state of a run at the log's end now, with its values as plain JSON."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    async with scanning(gateway):
        seen, said = await seen_and_said(gateway, run_id, zone)
    return run_shape(seen, said, zone)


@router.get("/{run_id}/result")
async def result(
    request: Request,
    run_id: RunId,
    caller: Reader,
    within_s: Within = None,
    time_zone: TimeZone = None,
) -> ResultShape:
    """How a run stands; with `within_s` once it has ended or waits for a person or other code."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    return await result_of(request, gateway, run_id, within_s or 0.0, zone)


@router.get("/{run_id}/why")
async def why(
    request: Request, run_id: RunId, caller: Reader, time_zone: TimeZone = None
) -> WhyShape:
    """Explain a run: what is known, since when, on what evidence, and what moves it next."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    async with scanning(gateway) as client:
        orders = await orders_of(client, run_id, zone)
        seen, said = await seen_and_said(gateway, run_id, zone)
    now_ms = time.time_ns() // 1_000_000
    scene = Scene(seen.owner, seen.owner_lives, seen.released, zone, now_ms, orders)
    explained = explain(seen.boundary, seen.state, said, scene)
    return WhyShape(
        run_id=run_id,
        status=seen.boundary.status,
        reason=seen.boundary.reason,
        needs=seen.boundary.needs,
        sentence=said,
        text=explained.text,
        commands=list(explained.commands),
    )


@router.get("/{run_id}/history")
async def history(
    request: Request,
    run_id: RunId,
    caller: Reader,
    claims: Annotated[bool, Query(description="Also where the owner changed.")] = True,
    elsewhere: Annotated[
        bool,
        Query(description="Also what other partitions say of it; reads all of them."),
    ] = False,
    after: Annotated[
        int, Query(ge=-1, le=2**63 - 1, description="Only records behind this offset.")
    ] = -1,
    limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000,
    time_zone: TimeZone = None,
) -> HistoryShape:
    """A run's records in log order; those that do not count are marked with the reason."""
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    limit = min(limit, gateway.settings.records_max)
    found: list[HistoryRecord] = []
    known, more = False, None
    async with scanning(gateway) as client:
        async for one in client.history(run_id, claims=claims):
            known = True
            if one.offset <= after:
                continue
            if len(found) == limit:
                more = found[-1].offset
                break
            found.append(one)
        files = await client.archived(run_id)
        if elsewhere and more is None:
            async for one in client.history_elsewhere(run_id):
                if len(found) >= gateway.settings.records_max:
                    break
                found.append(one)
    if not known and not found and not files:
        raise RunUnknown(run_id, gateway.namespace)
    records = [record_shape(one, zone) for one in found]
    return HistoryShape(run_id=run_id, records=records, archived=list(files), next=more)


@router.get(
    "/{run_id}/events",
    response_class=EventStream,
    status_code=200,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    request: Request,
    run_id: RunId,
    caller: Reader,
    after: Annotated[
        int | None,
        Query(ge=-1, le=2**63 - 1, description="Go on behind this offset, as Last-Event-ID does."),
    ] = None,
    time_zone: TimeZone = None,
) -> Response:
    """Follow a run: server-sent events, each a record of its history, its offset the id.

    Claims are among them: with one, what was under way is in doubt. A reader that is too slow is
    cut off and goes on with `Last-Event-ID`. Where records that it asks for were archived, an event
    `archived` names their files first.
    """
    gateway = gateway_of(request)
    zone = zone_of(gateway, time_zone)
    last = last_event_id(request)
    last = after if last is None else last
    settings = gateway.settings
    if last is None and not await _exists(gateway, run_id):
        raise RunUnknown(run_id, gateway.namespace)
    client = gateway.client
    start, _ = await client.log.bounds(Topic.EVENTS, client.partition_of(run_id))
    missing = start > (0 if last is None else last + 1)
    archived = await client.archived(run_id) if missing else ()
    records = client.follow(run_id, after=last, count_max=settings.stream_queue_max)
    return EventStream(request, gateway, caller, records, shown_in(zone, record_shape), archived)


async def _exists(gateway: Gateway, run_id: str) -> bool:
    """Whether there is such a run; where the tables have it, nothing is folded to see that."""
    if gateway.views is not None:
        with suppress(TablesAbsent, GatewayBusy):
            async with tables(gateway) as views:
                if await views.boundary(run_id) is not None:
                    return True
    async with scanning(gateway) as client:
        return await client.find(run_id) is not None


# ---- shapes


def record_shape(one: HistoryRecord, zone: tzinfo) -> RecordShape:
    """One record of a history, with its words."""
    words = None if one.event is None else event_words(one.event, zone, today(zone))
    return RecordShape(
        offset=one.offset,
        partition=one.partition,
        at=iso(one.at_ms, zone),
        claim=one.claim_id.hex(),
        epoch=one.epoch,
        n=one.n,
        event=None if words is None else words.event,
        slot=(words.slot or None) if words is not None else None,
        what=words.what if words is not None else one.problem,
        counted=one.counted,
        why_skipped=one.why_skipped,
    )


async def result_of(
    request: Request, gateway: Gateway, run_id: str, within_s: float, zone: tzinfo
) -> ResultShape:
    """How a run stands, at the latest after `within_s`. Raises RunUnknown."""
    within_s = min(within_s, gateway.settings.within_max_s)
    if within_s:
        extend(request, within_s)
        with suppress(ResultNotThere):  # then it is said how it stands now
            await gateway.client.handle(run_id).wait(within=timedelta(seconds=within_s))
    seen, said = await seen_and_said(gateway, run_id, zone)
    bound, ended = seen.boundary, seen.state.ended
    shape = ResultShape(run_id=run_id, status=bound.status, needs=bound.needs, sentence=said)
    if bound.status == "completed":
        shape.result = plain_value(ended.result if ended else None)
    error = end_error(run_id, ended, seen.state.cancel)
    if error is not None:
        shape.error = ErrorShape(
            code=error.code, message=error.message, kept=error.kept, next=error.next
        )
    return shape


def run_shape(seen: BoundaryAt, said: str, zone: tzinfo) -> RunShape:
    """A run's state as plain JSON."""
    state, bound = seen.state, seen.boundary
    ended, fault = state.ended, state.ended.error if state.ended else None
    return RunShape(
        run_id=state.run_id,
        run=state.run,
        version=state.version,
        status=bound.status,
        reason=bound.reason,
        needs=bound.needs,
        sentence=said,
        position=PositionShape(partition=seen.partition, offset=seen.offset),
        started_at=iso(state.started_ms, zone),
        changed_at=iso(state.changed_ms, zone),
        ended_at=iso(ended.at_ms, zone) if ended else None,
        input=plain_value(state.input),
        result=plain_value(ended.result) if ended else None,
        error=f"{fault.type}: {fault.message}" if fault else None,
        plan=None if state.plan is None else list(state.plan),
        cancel_by=state.cancel.by if state.cancel else None,
        cancel_why=state.cancel.why if state.cancel else None,
        parked=state.parked.detail if state.parked else None,
        events=state.event_count,
        bytes=state.byte_count,
        slots=[_slot_shape(slot, zone) for slot in _slots(state)],
        timers=[
            TimerShape(
                timer_id=one.timer_id,
                kind=one.kind,
                slot=one.slot,
                due_at=iso(one.deadline_ms, zone),
            )
            for one in sorted(state.timers.values(), key=lambda one: one.deadline_ms)
        ],
    )


def _slots(state: RunState) -> list[Slot]:
    return sorted(state.slots.values(), key=lambda one: one.born)


def _slot_shape(slot: Slot, zone: tzinfo) -> SlotShape:
    outcome = slot.outcome
    error = outcome.error if outcome else None
    result = outcome.value if outcome else None
    lost = outcome.unrecordable if outcome else None
    return SlotShape(
        slot=slot.name,
        step=slot.step,
        policy=slot.policy,
        effect_key=slot.effect_key,
        arguments={one.name: plain_value(one.value) for one in slot.arguments},
        outcome=outcome.kind if outcome else None,
        at=iso(outcome.at_ms, zone) if outcome else None,
        result=plain_value(result) if lost is None else {"unrecordable": lost.repr},
        error=f"{error.type}: {error.message}" if error else None,
        escalated=slot.escalated,
        absent_until_proven=slot.absent_until_proven,
        conflicted=slot.conflicted,
        attempts=[
            AttemptShape(
                attempt=one.number,
                status=one.status,
                began_at=iso(one.at_ms, zone),
                timeout_ms=one.timeout_ms,
                settle_ms=one.settle_ms,
                generation=one.generation,
                reason=one.reason,
                evidence=sorted(one.evidence),
                conflict=one.conflict_written,
            )
            for one in slot.attempts
        ],
    )
