"""The fold of one partition: claim rule, runs, what a claim needs to know. Every reader uses it."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import NamedTuple, Protocol

from refold_projections.fold.evolve import evolve
from refold_projections.fold.orders import OrderEvent, Orders, ParkedCommand
from refold_projections.fold.position import Position, Verdict, judge
from refold_projections.fold.state import Parked, RunState, Stamp
from refold_schemas.codec import KIND_REPORT, Codec, RecordHeader
from refold_schemas.errors import HeaderUnreadable, SchemaUnavailable, UndecodableRecord
from refold_schemas.events import (
    AttemptReported,
    Event,
    PartitionClaimed,
    PartitionReleased,
)
from refold_schemas.events.types import RunEvent
from refold_schemas.values import Value


class StoredRecord(Protocol):
    """What the fold needs of a stored record (`refold.log` has it)."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""

    @property
    def key(self) -> bytes | None:
        """The UTF-8 run_id, None for partition events."""

    @property
    def value(self) -> bytes | None:
        """The framed Avro body."""

    @property
    def header(self) -> bytes | None:
        """The `refold` header."""

    @property
    def append_ms(self) -> int:
        """The log's clock."""


class Mark(NamedTuple):
    """The last record of a run, reports included: what a snapshot is labelled with."""

    offset: int
    claim_id: bytes
    n: int


class Facts(NamedTuple):
    """What the latest claim that counts says, and how the earlier ones ended.

    `unclean_row`: claims by another process without a release before them, in a row;
    `unclean_total`: the same over the partition's life.
    """

    process: str = ""
    owner: str = ""
    app: str = ""
    partition_count: int = 0
    topic_ids: tuple[str, ...] = ()
    format_level: int = 0
    released: bool = True
    unclean_total: int = 0
    unclean_row: int = 0


class Applied(NamedTuple):
    """What one record was to the fold. `event` is None where its body was not read."""

    verdict: Verdict
    run_id: str | None
    event: Event | None
    header: RecordHeader | None
    problem: str | None


class PartitionFold:
    """Folds records of `ns.events` of one partition, in order.

    `keep` limits the runs whose state is kept (a client that follows one run needs no others).
    """

    def __init__(self, codec: Codec, *, keep: Callable[[str], bool] | None = None) -> None:
        self.codec = codec
        self.position = Position()
        self.facts = Facts()
        self.orders = Orders()
        self.runs: MutableMapping[str, RunState] = {}
        self.marks: dict[str, Mark] = {}
        self.touched: dict[str, None] = {}
        """Runs that a record was folded into by this fold, not by what it was restored from."""
        self.skipped: dict[Verdict, int] = {}
        self._keep = keep

    def apply(self, record: StoredRecord, *, unknown: SchemaUnavailable | None = None) -> Applied:
        """Fold one record. Never raises for what stands in the log, but SchemaUnavailable.

        Then nothing was folded: the schema has to be learnt first, and the same record comes again.
        `unknown` says of the record's schema that nobody has it. If its claim could be read, the
        writers' schemas are known here: then it is nobody's record, and parks its run alone. One
        of the partition has no run to park: it may be a command that waits, so it is not passed.
        """
        before = self.position
        header: RecordHeader | None = None
        if record.header is not None:
            try:
                header = RecordHeader.unpack(record.header)
            except HeaderUnreadable:
                header = None
        self.position, verdict = judge(self.position, record.offset, header)
        if verdict > Verdict.REPORT or header is None:
            self.skipped[verdict] = self.skipped.get(verdict, 0) + 1
            return Applied(verdict, None, None, header, None)
        run_id = None if record.key is None else record.key.decode("utf-8", "replace")
        if run_id is not None and verdict is not Verdict.CLAIM and not self._keeps(run_id):
            return Applied(verdict, run_id, None, header, None)  # the claim rule needs no body
        if run_id is not None and verdict is not Verdict.CLAIM:
            mark = self.marks.get(run_id)
            if mark is not None and record.offset <= mark.offset:
                # The run's snapshot reaches beyond this record; what has to be sent is not in it.
                name = None
                try:
                    name = self.codec.name_of(record.value or b"", strict=True)
                except SchemaUnavailable as error:
                    if not self._is_nobodys(verdict, run_id, unknown or error):
                        self.position = before
                        raise unknown or error from None
                if name == "CommandRejected" and not is_report(header):
                    self._order_of_run(record, header)
                return Applied(verdict, run_id, None, header, None)
        event: Event | None = None
        problem: str | None = None
        try:
            event = self.codec.decode(record.value or b"")
        except UndecodableRecord as fault:
            problem = str(fault)
        except SchemaUnavailable as error:
            if not self._is_nobodys(verdict, run_id, unknown or error):
                self.position = before
                raise unknown or error from None
            problem = (unknown or error).message
        if verdict is Verdict.CLAIM:
            self._claimed(event, header)
            return Applied(verdict, None, event, header, problem)
        if isinstance(event, OrderEvent) and not is_report(header):
            self.orders.apply(event, record.offset, header.at_ms)
        if run_id is None:
            self._of_partition(event)
            return Applied(verdict, None, event, header, problem)
        self._of_run(run_id, event, header, record, problem)
        return Applied(verdict, run_id, event, header, problem)

    def apply_all(self, records: Iterable[StoredRecord]) -> None:
        """Fold several records. Raises SchemaUnavailable in front of one, as `apply`."""
        for record in records:
            self.apply(record)

    def _is_nobodys(self, verdict: Verdict, run_id: str | None, error: SchemaUnavailable) -> bool:
        if error.mends or verdict is Verdict.CLAIM or self.facts.process == "":
            return False
        return run_id is not None or verdict is Verdict.REPORT

    def _keeps(self, run_id: str) -> bool:
        return self._keep is None or self._keep(run_id)

    def _claimed(self, event: Event | None, header: RecordHeader) -> None:
        facts = self.facts
        if not isinstance(event, PartitionClaimed):  # unreadable, but it is a claim all the same
            self.facts = facts._replace(released=False, process="")
            return
        unclean = not facts.released and facts.process != event.process
        row = facts.unclean_row + 1 if unclean else 0 if facts.released else facts.unclean_row
        self.facts = Facts(
            event.process,
            event.owner,
            event.app,
            event.partition_count,
            event.topic_ids,
            event.format_level,
            False,
            facts.unclean_total + unclean,
            row,
        )

    def _of_partition(self, event: Event | None) -> None:
        if isinstance(event, PartitionReleased):
            self.facts = self.facts._replace(released=True)

    def _order_of_run(self, record: StoredRecord, header: RecordHeader) -> None:
        try:
            event = self.codec.decode(record.value or b"")
        except UndecodableRecord:
            return
        self.orders.apply(event, record.offset, header.at_ms)

    def _of_run(
        self,
        run_id: str,
        event: Event | None,
        header: RecordHeader,
        record: StoredRecord,
        problem: str | None,
    ) -> None:
        state = self.runs.get(run_id)
        if event is None:
            if state is None and not is_report(header):
                # Perhaps its start: a run that nobody can read is not started a second time.
                state = _unreadable(run_id, header)
            if state is not None and not is_report(header):  # evidence nobody can read says nothing
                # One unreadable body parks its run and nothing else.
                detail = f"event at offset {record.offset} cannot be read: {problem}"
                self.touched[run_id] = None
                self.runs[run_id] = state._replace(
                    parked=Parked("blocked", "undecodable_event", detail)
                )
                self.marks[run_id] = Mark(record.offset, header.claim_id, header.n)
            return
        if is_report(header) != isinstance(event, AttemptReported):
            return  # no writer of ours makes it: it says nothing, to no reader
        after = evolve(state, run_id, _run_event(event), stamp_of(header, record, self.facts))
        if after is not None:
            self.touched[run_id] = None
            self.runs[run_id] = after
            self.marks[run_id] = Mark(record.offset, header.claim_id, header.n)

    @property
    def parked(self) -> Mapping[int, ParkedCommand]:
        """Commands before `command_next` that are not decided, by their offset, rising."""
        return self.orders.parked

    @property
    def claim_id(self) -> bytes:
        """The latest claim that counts; 16 zero bytes before the first."""
        return self.position.claim_id


def stamp_of(header: RecordHeader, record: StoredRecord, facts: Facts) -> Stamp:
    """What `evolve` needs of a record beside its event. `size` counts key, value and header."""
    size = len(record.value or b"") + len(record.key or b"") + len(record.header or b"")
    return Stamp(header.at_ms, header.claim_id, header.n, size, facts.unclean_total)


def _unreadable(run_id: str, header: RecordHeader) -> RunState:
    """A run of which the first event cannot be read: only that it exists is known."""
    nothing = Value("", 1, "j1", None, b"null", None)
    return RunState(run_id, "?", "?", nothing, b"", header.at_ms)


def is_report(header: RecordHeader) -> bool:
    """Whether the record is evidence outside the claim rule."""
    return header.kind == KIND_REPORT


def _run_event(event: Event) -> RunEvent:
    return event  # type: ignore[return-value]  # a keyed record; anything else has no applier


__all__ = [
    "Applied",
    "Facts",
    "Mark",
    "PartitionFold",
    "StoredRecord",
    "is_report",
    "stamp_of",
]
