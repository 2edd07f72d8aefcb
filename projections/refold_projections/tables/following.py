"""One partition's fold and the rows that follow from it: what a batch of records has changed.

Rows are a function of the fold's state at a position, so it is no matter how records were batched,
where a projector was killed, or which one of several wrote them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from refold_projections.fold import (
    NO_CLAIM,
    Applied,
    Facts,
    Mark,
    Orders,
    PartitionFold,
    Position,
    RunState,
    Verdict,
)
from refold_projections.fold.partition import StoredRecord
from refold_projections.tables.book import Book, Noted, Rows
from refold_projections.tables.keeping import Packer
from refold_projections.tables.shapes import at
from refold_projections.tables.showing import name, text
from refold_schemas.codec import Codec, RecordHeader
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    CommandRejected,
    EvidenceConflict,
    FindingRecorded,
    PartitionReleased,
    RunResumed,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerCancelled,
    TimerFired,
    TimerScheduled,
)

_OF_A_SLOT = (
    StepCompleted,
    StepIntended,
    StepFailed,
    StepInDoubt,
    StepResolved,
    AttemptReported,
    EvidenceConflict,
    RunResumed,
)
_OF_A_TIMER = (TimerScheduled, TimerFired, TimerCancelled)


class At(NamedTuple):
    """Where the rows are: the reader's whole position and what the latest claim says."""

    position: Position
    facts: Facts
    claimed_ms: int | None


class Kept(NamedTuple):
    """A run as it was read back from rows, or from a snapshot."""

    state: RunState
    mark: Mark
    noted: Noted | None
    """None: its events are gone, so there is only what the state says."""


class Following:
    """Folds a partition and keeps count of what rows have to be written anew.

    Runs that are not in memory have to be given back (`take_back`): `lacks` names those of records
    to come, `owes` those that a claim shows anew. `keep` limits the runs that are followed at all.
    """

    def __init__(
        self,
        codec: Codec,
        partition: int,
        at: At | None = None,
        *,
        keep: Callable[[str], bool] | None = None,
    ) -> None:
        self.partition, self.codec = partition, codec
        self.fold = PartitionFold(codec, keep=keep)
        self.claimed_ms: int | None = None
        if at is not None:
            self.fold.position, self.fold.facts, self.claimed_ms = at
        self.open_runs: set[str] = set()
        """Runs with an unsettled attempt, in memory or not: a claim changes what they show."""
        self.shown: list[str] = []
        """The runs that the last `rows` are of."""
        self._keep = keep
        self._packer = Packer(codec)
        self._books: dict[str, Book] = {}
        self._slots: dict[str, set[str]] = {}
        self._timers: dict[str, set[str]] = {}
        self._findings: dict[str, set[str]] = {}
        self._claim_changed = False
        self._rejections: list[tuple[object, ...]] = []

    @property
    def at(self) -> At:
        """Where it is."""
        return At(self.fold.position, self.fold.facts, self.claimed_ms)

    @property
    def claim_shown(self) -> bytes:
        """The claim that attempts may be under way in; none where its owner has handed over."""
        return NO_CLAIM if self.fold.facts.released else self.fold.claim_id

    def lacks(self, records: Iterable[StoredRecord]) -> set[str]:
        """The runs that these records are of and that are not in memory."""
        runs = self.fold.runs
        keys = {record.key for record in records if record.key is not None}
        wanted = {key.decode("utf-8", "replace") for key in keys}
        return {one for one in wanted if one not in runs and self._follows(one)}

    def owes(self) -> set[str]:
        """The runs that a claim among the records folded so far shows anew, if not in memory.

        They have to be given back before `rows`.
        """
        return self.open_runs - self.fold.runs.keys() if self._claim_changed else set()

    def _follows(self, run_id: str) -> bool:
        return self._keep is None or self._keep(run_id)

    def take_back(self, kept: Mapping[str, Kept]) -> None:
        """Runs that were asked for; what is not among them does not exist yet."""
        for run_id, one in kept.items():
            self.fold.runs[run_id] = one.state
            self.fold.marks[run_id] = one.mark
            if one.noted is None:
                self._books[run_id] = Book.from_snapshot(one.state, self.claim_shown)
            else:
                self._books[run_id] = Book(one.state, self.claim_shown, one.noted)
            self._note_open(run_id)

    def show_all(self, run_ids: Iterable[str]) -> None:
        """Write all rows of these runs, which are in memory: they come from snapshots."""
        for run_id in run_ids:
            state = self.fold.runs[run_id]
            self._slots[run_id] = set(state.slots)
            self._timers[run_id] = set(state.timers)
            self._findings[run_id] = set(state.findings)

    def apply(self, record: StoredRecord, *, unknown: SchemaUnavailable | None = None) -> Applied:
        """Fold one record. Raises SchemaUnavailable as `PartitionFold.apply`: nothing was done."""
        fold = self.fold
        applied = fold.apply(record, unknown=unknown)
        verdict, run_id, event, header, _ = applied
        if verdict > Verdict.REPORT:
            return applied
        if run_id is None:
            if verdict is Verdict.CLAIM:
                self._claim_changed = True
                self.claimed_ms = None if header is None else at(header.at_ms)
            elif isinstance(event, PartitionReleased):
                self._claim_changed = True
            elif isinstance(event, CommandRejected) and header is not None:
                self._rejected(None, event, record.offset, header)
            return applied
        if event is None and applied.problem is None and verdict is Verdict.COUNTS:
            event = self._rejection_behind_a_snapshot(record, run_id)
        if isinstance(event, CommandRejected) and header is not None and verdict is Verdict.COUNTS:
            self._rejected(run_id, event, record.offset, header)
        if run_id not in fold.touched:
            return applied  # nothing of it was folded
        del fold.touched[run_id]
        state = fold.runs[run_id]
        book = self._books.get(run_id)
        if book is None:
            book = self._books[run_id] = Book(state, self.claim_shown, Noted({}))
        slots = self._slots.get(run_id)
        if slots is None:
            slots = self._slots[run_id] = set()
        if isinstance(event, _OF_A_SLOT):
            if event.slot is not None:
                slots.add(event.slot)
                if not isinstance(event, StepCompleted) or book.has_intents:
                    self._note(book, event, state)
        elif isinstance(event, _OF_A_TIMER):
            self._timers.setdefault(run_id, set()).add(event.timer_id)
            if isinstance(event, TimerScheduled):
                book.timers[event.timer_id] = event.slot
                if event.kind == "sleep":
                    slots.add(event.slot)
            else:
                slots.add(book.timers.get(event.timer_id, ""))
                if event.timer_id not in state.timers:
                    book.timers.pop(event.timer_id, None)
        elif isinstance(event, FindingRecorded):
            self._findings.setdefault(run_id, set()).add(event.finding_id)
        elif isinstance(event, AmountsDeclared):  # they hold for earlier effects of the run, too
            slots.update(s.name for s in state.slots.values() if s.step == event.step)
        return applied

    def _rejection_behind_a_snapshot(
        self, record: StoredRecord, run_id: str
    ) -> CommandRejected | None:
        """The event of a record that the run's snapshot reaches beyond, if it is a rejection."""
        if not self._follows(run_id):
            return None
        if self.codec.name_of(record.value or b"") != "CommandRejected":
            return None
        try:
            event = self.codec.decode(record.value or b"")
        except (UndecodableRecord, SchemaUnavailable):
            return None
        return event if isinstance(event, CommandRejected) else None

    def _note(self, book: Book, event: object, state: RunState) -> None:
        """Keep what the state forgets: who settled an attempt."""
        if isinstance(event, StepIntended):
            book.has_intents = True
        elif isinstance(event, StepCompleted | StepFailed | StepResolved):
            slot = state.slots.get(event.slot)
            if slot is None:
                return
            generation = slot.generation
            for attempt in slot.attempts:
                if attempt.number == event.attempt:
                    generation = attempt.generation
            if isinstance(event, StepResolved):
                book.noted.evidence[event.slot, generation] = text(event.evidence)
            else:
                book.noted.evidence.pop((event.slot, generation), None)

    def _rejected(
        self, run_id: str | None, event: CommandRejected, offset: int, header: RecordHeader
    ) -> None:
        self._rejections.append(
            (
                self.partition,
                offset,
                at(header.at_ms),
                None if run_id is None else name(run_id),
                text(event.command_id),
                text(event.command_type),
                event.command_offset,
                text(event.reason),
                text(event.detail),
                None,
                event.raw,
            )
        )

    def _note_open(self, run_id: str) -> None:
        if self._books[run_id].open:
            self.open_runs.add(run_id)
        else:
            self.open_runs.discard(run_id)

    def rows(self) -> Rows:
        """What has to be written since the last call; nothing is owed (`owes`)."""
        rows, fold, claim_id = Rows.none(), self.fold, self.claim_shown
        if self._claim_changed:
            for run_id in self.open_runs & self._books.keys():  # of any other no row is left
                self._slots.setdefault(run_id, set()).update(self._books[run_id].open)
            self._claim_changed = False
        rows.rejections.extend(self._rejections)
        self._rejections = []
        for run_id, slots in self._slots.items():
            self._books[run_id].show(
                rows,
                self.codec,
                self._packer,
                self.partition,
                fold.runs[run_id],
                fold.marks[run_id],
                claim_id,
                slots,
                self._timers.get(run_id, set()),
                self._findings.get(run_id, set()),
            )
            self._note_open(run_id)
        self.shown = list(self._slots)
        self._slots, self._timers, self._findings = {}, {}, {}
        # What is still to be sent concerns owners alone, and nobody sends it here.
        fold.orders = Orders()
        return rows

    def forget(self, run_ids: Iterable[str]) -> None:
        """Let runs go whose rows are written."""
        for run_id in run_ids:
            self.fold.runs.pop(run_id, None)
            self.fold.marks.pop(run_id, None)
            self._books.pop(run_id, None)
