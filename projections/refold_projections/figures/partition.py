"""The live figures of one partition: claim rule, memory of open runs, windows; restored exactly.

They are written in steps (`Changes`), and a process may die between any two keys of them. What is
written is right all the same: every value names the record that it includes, so records that are
read again change nothing that has them. It holds as long as the steps are stored in their order.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from refold_projections.figures.cells import (
    NAMES_MAX,
    OTHER,
    TOTAL,
    Cell,
    CellKey,
    is_expired,
    merge,
    windows_of,
)
from refold_projections.figures.measuring import Counts, Moment, claimed, measure, undecodable
from refold_projections.figures.memory import OpenRun
from refold_projections.figures.spans import Span
from refold_projections.fold.boundary import FOR_A_PERSON
from refold_projections.fold.partition import StoredRecord
from refold_projections.fold.position import Position, Verdict, judge
from refold_schemas.codec import KIND_REPORT, Codec, RecordHeader
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.events import AttemptReported, PartitionReleased

ENDED_KEPT_MAX = 1_000
"""Ended runs whose name is remembered, for what is said of them later; the newest are kept."""
FAILED_KEPT_MAX = 10_000
"""The same for failed ones: a person may let them go on."""
CHUNK_EVENTS_MAX = 400
"""Records between two writes: two chunks are fewer than the ended runs that are remembered."""


class Waiting(NamedTuple):
    """How many attempts or runs wait, for what, and since when the oldest of them does.

    `kind`: in_doubt (attempts), person (those of them that only a person settles, and runs that
    are blocked for one), blocked, diverged (runs). `step` is empty for runs.
    """

    kind: str
    run: str
    step: str
    number: int
    since_ms: int


class Standing(NamedTuple):
    """What a partition is like at `offset_next`: absolute, not a sum of changes.

    `open_runs` maps (run function, status) to a count. `seen_ms` is the log's clock at the last
    record, `last_ms` the time of the last event that counts.
    """

    offset_next: int
    seen_ms: int
    last_ms: int
    open_runs: Mapping[tuple[str, str], int]
    waiting: tuple[Waiting, ...]


class Changes(NamedTuple):
    """What to store, in this order: all of `cells`, then all of `runs`, then the position.

    A cell of None has expired, a run of None is remembered no more.
    """

    cells: Mapping[CellKey, Cell | None]
    runs: Mapping[str, OpenRun | None]
    place: list[Any]
    standing: Standing


class RecordsChanged(Exception):
    """The record before the position is not the one that was read there: the log was cut."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"the record at offset {offset} is not the one that was counted")


class PartitionFigures:
    """Figures of one partition of `ns.events`. Feed it records in their order, again or not.

    `traces` makes it collect spans in `spans`, for whoever exports and clears them.
    """

    def __init__(self, codec: Codec, *, traces: bool = False) -> None:
        self.codec = codec
        self.position = Position()
        self.seen_ms = 0
        """The log's clock at the last record, never falling."""
        self.claimed_ms = 0
        """When the claim in force was made."""
        self.cells: dict[CellKey, Cell] = {}
        self.runs: dict[str, OpenRun] = {}
        self.skipped: dict[str, int] = {}
        """Records that do not count, by their verdict's name, since the process began."""
        self.read = 0
        """Records read since the process began."""
        self.spans: list[Span] = []
        self._traces = traces
        self._ended: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._changed_cells: dict[CellKey, None] = {}
        self._changed_runs: dict[str, None] = {}
        self._waiting: dict[str, tuple[tuple[str, str, int], ...]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._standing_of: dict[str, tuple[str, str]] = {}
        self._starts: dict[tuple[str, int], list[CellKey]] = {}
        self._names = 0
        self._unread = 0

    @classmethod
    def restored(
        cls,
        codec: Codec,
        place: list[Any],
        runs: Mapping[str, OpenRun],
        cells: Mapping[CellKey, Cell],
        *,
        traces: bool = False,
    ) -> "PartitionFigures":
        """Figures as they were stored, whole or in the middle of a write."""
        figures = cls(codec, traces=traces)
        position, figures.seen_ms, figures.claimed_ms = place
        unpacked: list[Any] = [bytes.fromhex(p) if isinstance(p, str) else p for p in position]
        figures.position = Position(*unpacked)
        for key, cell in cells.items():
            figures._put(key, cell)
        last = figures.position.offset_next
        for run_id, run in sorted(runs.items(), key=lambda item: item[1].offset):
            figures.runs[run_id] = run
            if run.offset < last:  # of the others the record comes again
                figures._note_end(run_id, run)
            figures._stands(run_id, run)
        return figures

    @property
    def unwritten(self) -> int:
        """Records read since the last `changes`."""
        return self._unread

    def apply(self, record: StoredRecord, *, unknown: SchemaUnavailable | None = None) -> None:
        """Count one record, unless it was counted before.

        Raises SchemaUnavailable with nothing changed: learn the schema, then the same record comes
        again; `unknown` says that nobody has it. Raises RecordsChanged where the log was cut.
        """
        before = self.position
        offset = record.offset
        header = RecordHeader.read(record.header)
        if offset < before.offset_next:
            if offset == before.last_offset:
                self._check(header, offset)
            return
        position, verdict = judge(before, offset, header)
        seen_ms = max(self.seen_ms, record.append_ms)
        if verdict > Verdict.REPORT or header is None:
            self._passed(position, seen_ms)
            name = verdict.name.lower()
            self.skipped[name] = self.skipped.get(name, 0) + 1
            return
        # A claim's time is its writer's; the log's own bounds it, as the owner does.
        at_ms = header.at_ms
        moment = Moment(offset, at_ms, position.claim_epoch, self.claimed_ms, traces=self._traces)
        if verdict is Verdict.CLAIM:
            self._passed(position, seen_ms)
            self.claimed_ms = at_ms
            self._acts_no_more(moment)
            return
        run_id = None if record.key is None else record.key.decode("utf-8", "replace")
        known = None if run_id is None else self.runs.get(run_id)
        if known is not None and known.offset >= offset:
            # It was stored with this record in it, and so was every cell before it.
            if known.offset == offset and run_id is not None:
                self._note_end(run_id, known)
            self._passed(position, seen_ms)
            return
        try:
            event = self.codec.decode(record.value or b"")
        except UndecodableRecord:
            event = None
        except SchemaUnavailable as error:
            if (unknown or error).mends:
                raise
            event = None  # nobody has it
        self._passed(position, seen_ms)
        is_report = header.kind == KIND_REPORT
        if run_id is None:
            if event is not None and type(event).__name__ == "CommandRejected":
                moment.add("", "", "commands_rejected")
                self._add(moment)
            elif isinstance(event, PartitionReleased):
                self._acts_no_more(moment, released=True)
            return
        if event is None:
            if is_report:
                return
            told: OpenRun | None = undecodable(known, moment)
        elif is_report != isinstance(event, AttemptReported):
            return
        else:
            told = measure(known, run_id, event, moment)
        self._add(moment)
        if told is not None:
            self._ran(run_id, told)

    def _acts_no_more(self, moment: Moment, *, released: bool = False) -> None:
        """Put in doubt what the owner before has left open."""
        for name, run in list(self.runs.items()):
            is_new = run.slots and run.offset < moment.offset
            if is_new and claimed(run, name, moment, released=released):
                run.offset = moment.offset
                self._ran(name, run)
        self._add(moment)

    def changes(self) -> Changes:
        """What has changed since the last call, expired windows included."""
        for width, start_ms in [w for w in self._starts if is_expired(*w, self.seen_ms)]:
            for key in self._starts.pop((width, start_ms)):
                del self.cells[key]
                self._changed_cells[key] = None
        changes = Changes(
            {key: self.cells.get(key) for key in self._changed_cells},
            {run_id: self.runs.get(run_id) for run_id in self._changed_runs},
            self.place(),
            self.standing(),
        )
        self._changed_cells, self._changed_runs, self._unread = {}, {}, 0
        return changes

    def starts(self, width: str) -> Iterable[int]:
        """When the windows of this width begin that hold anything; 0 for the total."""
        return [start_ms for found, start_ms in self._starts if found == width]

    def window(self, width: str, start_ms: int) -> Iterable[tuple[CellKey, Cell]]:
        """The cells of one window."""
        return [(key, self.cells[key]) for key in self._starts.get((width, start_ms), ())]

    def place(self) -> list[Any]:
        """Position and clocks as JSON can hold them."""
        position = [p.hex() if isinstance(p, bytes) else p for p in self.position]
        return [position, self.seen_ms, self.claimed_ms]

    def standing(self) -> Standing:
        """What waits and what is open, now."""
        found: dict[tuple[str, str, str], tuple[int, int]] = {}
        for run_id, waits in self._waiting.items():
            run = self.runs[run_id].run
            for kind, step, since_ms in waits:
                count, oldest_ms = found.get((kind, run, step), (0, since_ms))
                found[kind, run, step] = (count + 1, min(oldest_ms, since_ms))
        return Standing(
            self.position.offset_next,
            self.seen_ms,
            self.position.time_last_ms,
            {key: count for key, count in self._counts.items() if count},
            tuple(Waiting(*key, *found[key]) for key in sorted(found)),
        )

    def begin_at(self, offset: int) -> None:
        """The log begins at `offset`: what was before it is gone, archived as a rule."""
        if offset >= self.position.offset_next:
            self.position = self.position._replace(offset_next=offset, last_offset=-1)

    def _check(self, header: RecordHeader | None, offset: int) -> None:
        position = self.position
        found = (bytes(16), -1) if header is None else (header.claim_id, header.n)
        if found != (position.last_claim_id, position.last_n):
            raise RecordsChanged(offset)

    def _passed(self, position: Position, seen_ms: int) -> None:
        self.position, self.seen_ms = position, seen_ms
        self._unread += 1
        self.read += 1

    def _add(self, moment: Moment) -> None:
        for (run, step), counts in self._named(moment.counts).items():
            for width, start_ms in windows_of(moment.at_ms, self.seen_ms):
                key = CellKey(width, start_ms, run, step)
                cell = self.cells.get(key)
                if cell is None:
                    cell = Cell()
                    self._put(key, cell)
                elif cell.offset >= moment.offset:
                    continue  # stored with this record in it
                merge(cell.counts, counts)
                cell.offset = moment.offset
                self._changed_cells[key] = None
        if moment.spans:
            self.spans.extend(moment.spans)

    def _named(self, counts: Counts) -> Counts:
        """The counts, those of names that are one too many under `OTHER`."""
        if self._names < NAMES_MAX - len(counts):
            return counts
        named: Counts = {}
        for (run, step), found in counts.items():
            known = CellKey(TOTAL, 0, run, step) in self.cells
            name = (run, step) if known or self._names < NAMES_MAX else (OTHER, OTHER)
            merge(named.setdefault(name, {}), found)
        return named

    def _put(self, key: CellKey, cell: Cell) -> None:
        self.cells[key] = cell
        self._names += key.width == TOTAL
        self._starts.setdefault((key.width, key.start_ms), []).append(key)

    def _ran(self, run_id: str, run: OpenRun) -> None:
        self.runs[run_id] = run
        self._changed_runs[run_id] = None
        self._note_end(run_id, run)
        self._stands(run_id, run)

    def _note_end(self, run_id: str, run: OpenRun) -> None:
        """Remember a limited number of ended runs, the newest."""
        self._ended.pop(run_id, None)
        self._failed.pop(run_id, None)
        if not run.ended or run.slots:
            return
        run.timers, run.scopes = {}, {}
        ended = self._failed if run.ended == "failed" else self._ended
        ended[run_id] = None
        if len(ended) > (FAILED_KEPT_MAX if ended is self._failed else ENDED_KEPT_MAX):
            oldest = next(iter(ended))
            del ended[oldest], self.runs[oldest]
            self._changed_runs[oldest] = None
            self._stands(oldest, None)

    def _stands(self, run_id: str, run: OpenRun | None) -> None:
        before = self._standing_of.pop(run_id, None)
        if before is not None:
            self._counts[before] -= 1
        self._waiting.pop(run_id, None)
        if run is None:
            return
        if not run.ended:
            after = (run.run, run.status)
            self._standing_of[run_id] = after
            self._counts[after] = self._counts.get(after, 0) + 1
        waits = tuple(_waits(run))
        if waits:
            self._waiting[run_id] = waits


def _waits(run: OpenRun) -> Iterable[tuple[str, str, int]]:
    """Kind, step and since when, for everything of a run that waits for somebody."""
    if run.parked is not None:
        kind, reason, since_ms = run.parked
        yield kind, "", since_ms
        if reason in FOR_A_PERSON:
            yield "person", "", since_ms
    for slot in run.slots.values():
        for attempt in slot.attempts.values():
            if attempt.in_doubt:
                yield "in_doubt", slot.step, attempt.at_ms
                if slot.for_person:
                    yield "person", slot.step, attempt.at_ms
