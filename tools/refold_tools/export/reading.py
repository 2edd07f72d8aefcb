"""Reads one partition for an export: every record with its verdict, runs and effects at its end."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

from refold.client.history import WHY_SKIPPED
from refold.client.judged import position_at
from refold.client.reading import Meter
from refold.client.states import StateReader, claim_as_seen
from refold.log import Log, Record, Topic
from refold_projections.fold import Position, Verdict, judge, ledger
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.codec.learning import decode, name_of
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.events import AttemptReported, Event
from refold_tools.export.columns import Row, effect_row, event_row, run_row

READ_BYTES = 4 << 20


async def event_rows(
    log: Log,
    codec: Codec,
    partition: int,
    position: Position | None,
    window: tuple[int, int],
    offset_end: int,
) -> AsyncGenerator[tuple[Position, Row | None], None]:
    """The position behind each record up to `offset_end`, and its row if it is in the window.

    `position` None begins at the log's start. The window is about the log's clock, in
    milliseconds. Raises OffsetOutOfRange where the log was trimmed from before the position.
    """
    since_ms, until_ms = window
    if position is None:
        start, end = await log.bounds(Topic.EVENTS, partition)
        position = (await position_at(log, codec, partition, start, end))._replace(
            offset_next=start
        )
    offset = position.offset_next
    while offset < offset_end:
        records = await log.read(Topic.EVENTS, partition, offset, size_max=READ_BYTES)
        if not records:
            return  # the rest are holes
        for record in records:
            if record.offset >= offset_end:
                return
            header = RecordHeader.read(record.header)
            position, verdict = judge(position, record.offset, header)
            row = None
            if since_ms <= record.append_ms < until_ms:
                row = await _row(codec, partition, record, header, verdict)
            yield position, row
        offset = records[-1].offset + 1
        await asyncio.sleep(0)


async def _row(
    codec: Codec, partition: int, record: Record, header: RecordHeader | None, verdict: Verdict
) -> Row:
    data = record.value or b""
    event: Event | None = None
    name = problem = None
    try:
        event = await decode(codec, data)
        name = type(event).__name__
    except UndecodableRecord as error:
        problem = error.reason
        name = await name_of(codec, data)
    except SchemaUnavailable as unknown:
        if unknown.mends and verdict <= Verdict.REPORT:
            raise  # what counts is exported, or the export says that it cannot
        problem = unknown.message
    if event is not None and not type(event).__module__.endswith("events.types"):
        event, problem = None, f"{name} is no event"
    is_report = isinstance(event, AttemptReported)
    counts = verdict <= Verdict.REPORT and (
        event is None or verdict is Verdict.CLAIM or is_report == (verdict is Verdict.REPORT)
    )
    if verdict is Verdict.REPORT and event is None:
        counts = False
    size = len(data) + len(record.key or b"") + len(record.header or b"")
    if not counts and problem is None:
        problem = WHY_SKIPPED.get(verdict, "its header is that of another event")
    return event_row(
        partition,
        record.offset,
        record.append_ms,
        record.key,
        header,
        verdict,
        size,
        event,
        name,
        problem,
        data,
        counts,
    )


async def run_rows(
    log: Log, codec: Codec, partition: int, window: tuple[int, int], tables: frozenset[str]
) -> tuple[int, Iterator[tuple[str, Row]]]:
    """The offset at the log's end, and `(table, row)` of runs and effects as they are there.

    Runs that changed in the window, effects whose last attempt or outcome is in it; by run_id.
    Memory follows the runs of the partition.
    """
    since_ms, until_ms = window
    fold = await StateReader(log, codec, partition, Meter(None)).of_all()
    lives = await log.owner_lives(partition)
    claim_id = claim_as_seen(fold.claim_id, fold.facts, owner_lives=lives)

    def rows() -> Iterator[tuple[str, Row]]:
        for run_id in sorted(fold.runs):
            state = fold.runs[run_id]
            if state.changed_ms < since_ms:
                continue
            if "runs" in tables and state.changed_ms < until_ms:
                yield "runs", run_row(state, partition, claim_id)
            if "effects" in tables:
                for entry in ledger(state, claim_id):
                    if since_ms <= entry.last_ms < until_ms:
                        yield "effects", effect_row(entry)

    return fold.position.offset_next, rows()
