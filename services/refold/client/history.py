"""A run's records in log order, those that do not count among them, with the reason."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from refold.client.judged import judged
from refold.log import Log, Record
from refold_projections.fold import Verdict
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.codec.learning import decode
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.events import AttemptReported, CommandEmitted, CommandParked, Event

WHY_SKIPPED = {
    Verdict.DUPLICATE: "a stored copy of a record that was read before",
    Verdict.FENCED: "written under a claim that a newer one had superseded",
    Verdict.BROKEN: "behind a record of its claim that is missing",
    Verdict.FOREIGN: "without a readable refold header: not written by refold",
}


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One record of a run. `at_ms` is the owner's clock, `append_ms` the log's.

    `event` is None where the body cannot be decoded; `problem` then says why. `claim_id` is empty
    and `at_ms` the log's time where the header cannot be read. For a report the claim and `n` name
    the intent. `why_skipped` is None for what counts.
    """

    partition: int
    offset: int
    at_ms: int
    append_ms: int
    claim_id: bytes
    epoch: int
    n: int
    verdict: Verdict
    event: Event | None
    problem: str | None

    @property
    def counted(self) -> bool:
        """Whether readers believe it; a report counts as evidence."""
        return self.why_skipped is None

    @property
    def why_skipped(self) -> str | None:
        """Why readers pass it by."""
        is_report = self.verdict is Verdict.REPORT
        if is_report and self.event is None:
            return "a report that cannot be read: evidence that says nothing"
        if self.verdict in (Verdict.COUNTS, Verdict.REPORT) and self.event is not None:
            if is_report and not isinstance(self.event, AttemptReported):
                return "the header of a report over another event: not written by refold"
            if not is_report and isinstance(self.event, AttemptReported):
                return "a report under the header of an event: not written by refold"
        return WHY_SKIPPED.get(self.verdict)


async def read_history(
    log: Log, codec: Codec, partition: int, run_id: str, *, claims: bool
) -> AsyncIterator[HistoryRecord]:
    """Yield the run's records from the start of the partition to its end as of now.

    Where the log begins behind an archive, it is read from the position that the archive ends at.
    Raises OffsetOutOfRange where something else has trimmed it: what counts nobody could say.

    With `claims` also each claim after the run's first record, just before the next record of the
    run: so one sees where its owner changed. Commands with the run's key that were parked are told.
    """
    key = run_id.encode()
    last_claim: HistoryRecord | None = None
    begun = False
    async for record, header, verdict in judged(log, codec, partition):
        if verdict is Verdict.CLAIM and claims:
            last_claim = await history_record(codec, partition, record, header, verdict)
        elif record.key == key or await _is_about(codec, record, verdict, run_id):
            if last_claim is not None and begun:
                yield last_claim
            last_claim, begun = None, True
            yield await history_record(codec, partition, record, header, verdict)


async def read_elsewhere(
    log: Log, codec: Codec, partition: int, run_id: str
) -> AsyncIterator[HistoryRecord]:
    """What a partition that is not the run's says of it: commands that were found there.

    Raises OffsetOutOfRange as `read_history`.
    """
    async for record, header, verdict in judged(log, codec, partition):
        if record.key == run_id.encode() or await _is_about(codec, record, verdict, run_id):
            yield await history_record(codec, partition, record, header, verdict)


async def _is_about(codec: Codec, record: Record, verdict: Verdict, run_id: str) -> bool:
    """Whether an event of the partition is about a command for the run."""
    if record.key is not None or verdict is not Verdict.COUNTS:
        return False
    try:
        event = await decode(codec, record.value or b"")
    except UndecodableRecord:
        return False
    except SchemaUnavailable as unknown:
        if unknown.mends:
            raise
        return False
    if isinstance(event, CommandEmitted):
        return event.run_id == run_id
    return isinstance(event, CommandParked) and event.key == run_id.encode()


async def history_record(
    codec: Codec, partition: int, record: Record, header: RecordHeader | None, verdict: Verdict
) -> HistoryRecord:
    """One record, decoded; its schema is learnt first if need be."""
    event: Event | None = None
    problem: str | None = None
    try:
        event = await decode(codec, record.value or b"")
    except UndecodableRecord as error:
        problem = error.reason
    except SchemaUnavailable as unknown:
        if verdict is Verdict.CLAIM or (unknown.mends and verdict <= Verdict.REPORT):
            raise  # history shows what counts, or says that it cannot
        problem = unknown.message
    if header is None:
        return HistoryRecord(
            partition,
            record.offset,
            record.append_ms,
            record.append_ms,
            b"",
            0,
            -1,
            verdict,
            event,
            problem,
        )
    return HistoryRecord(
        partition,
        record.offset,
        header.at_ms,
        record.append_ms,
        header.claim_id,
        header.epoch,
        header.n,
        verdict,
        event,
        problem,
    )
