"""One run as its rows show it: only the slots that something happened to are looked at again."""

from typing import NamedTuple

from refold_projections.fold import (
    ABSENT,
    DENIED,
    OPEN,
    Amount,
    Boundary,
    DoneStep,
    FailedStep,
    Mark,
    OpenStep,
    RunState,
    Slot,
    amounts_json,
    is_under_way,
    of_slot,
    place_of,
    said,
    status_of,
)
from refold_projections.tables.keeping import Packer, pack_run
from refold_projections.tables.shapes import Row, at
from refold_projections.tables.showing import (
    arguments_json,
    name,
    optional,
    text,
    tree_json,
    value_json,
)
from refold_schemas.codec import Codec

ANSWER = "answer"
"""The call's own outcome is recorded: what settles an attempt unless somebody else says it."""
FROM_SNAPSHOT = "record"
"""How it is known stood in events that are gone; that it is stands in the run's snapshot."""


class Noted(NamedTuple):
    """What rows say that a run's state does not.

    `evidence`: by slot and generation what settled it, where that was not the call's own answer.
    """

    evidence: dict[tuple[str, int], str]


class Rows(NamedTuple):
    """Rows to be put, by table, and the keys of timers that are no more."""

    runs: list[Row]
    steps: list[Row]
    attempts: list[Row]
    timers: list[Row]
    effects: list[Row]
    rejections: list[Row]
    findings: list[Row]
    timers_gone: list[tuple[str, str]]

    @classmethod
    def none(cls) -> "Rows":
        """No rows yet."""
        return cls([], [], [], [], [], [], [], [])

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(self[:])


class Book:
    """What is known of one run beside its state. `places` of all slots, `open` those unsettled."""

    def __init__(self, state: RunState, claim_id: bytes, noted: Noted) -> None:
        self.noted = noted
        self.places: dict[str, str] = {}
        self.open: set[str] = set()
        self.timers: dict[str, str] = {}
        """Of armed timers the slot: what fires says only its id."""
        self.has_intents = False
        self._done = 0
        self._steps_done: dict[str, int] = {}
        self._failed: dict[str, tuple[int, FailedStep]] = {}
        self._conflicted: dict[str, int] = {}
        for slot in state.slots.values():
            self._look(slot, claim_id)
            if slot.attempts:
                self.has_intents = True
        for timer in state.timers.values():
            self.timers[timer.timer_id] = timer.slot

    @classmethod
    def from_snapshot(cls, state: RunState, claim_id: bytes) -> "Book":
        """Of a run whose events are gone: how its attempts were settled is partly lost."""
        evidence = {}
        for slot in state.slots.values():
            for attempt in slot.attempts:
                known = {DENIED: "person", ABSENT: "lookup", OPEN: ""}
                told = known.get(attempt.status, FROM_SNAPSHOT)
                if told:
                    evidence[slot.name, attempt.generation] = told
        return cls(state, claim_id, Noted(evidence))

    def _look(self, slot: Slot, claim_id: bytes) -> DoneStep | OpenStep | FailedStep | None:
        """Put the slot where it stands now."""
        place, entry = place_of(slot, claim_id)
        before = self.places.get(slot.name)
        if (before == "done") != (place == "done"):
            change = 1 if place == "done" else -1
            self._done += change
            self._steps_done[slot.step] = self._steps_done.get(slot.step, 0) + change
        self.places[slot.name] = place
        if isinstance(entry, FailedStep):
            self._failed[slot.name] = (slot.born, entry)
        else:
            self._failed.pop(slot.name, None)
        if slot.conflicted:
            self._conflicted[slot.name] = slot.born
        else:
            self._conflicted.pop(slot.name, None)
        if slot.unsettled:  # also of one that is done: its attempts are shown, too
            self.open.add(slot.name)
        else:
            self.open.discard(slot.name)
        return entry

    def show(
        self,
        rows: Rows,
        codec: Codec,
        packer: Packer,
        partition: int,
        state: RunState,
        mark: Mark,
        claim_id: bytes,
        slots: set[str],
        timers: set[str],
        findings: set[str],
    ) -> None:
        """Add the rows of the run, of these slots, of these timers and of these findings."""
        run_id = name(state.run_id)
        for slot_name in slots:
            slot = state.slots.get(slot_name)
            if slot is not None:
                self._show_slot(rows, packer, partition, run_id, state, slot, claim_id)
        for timer_id in timers:
            timer = state.timers.get(timer_id)
            if timer is None:
                rows.timers_gone.append((run_id, name(timer_id)))
            else:
                due = at(timer.deadline_ms)
                row = (run_id, name(timer_id), partition, text(timer.kind), name(timer.slot), due)
                rows.timers.append(row)
        for finding_id in findings:
            one = state.findings[finding_id]
            rows.findings.append(
                (
                    run_id,
                    name(one.finding_id),
                    partition,
                    at(one.at_ms),
                    text(one.kind),
                    name(one.effect_key),
                    name(one.slot),
                    name(one.step),
                    text(one.detail),
                    text(one.command),
                    not one.is_open,
                )
            )
        rows.runs.append(self._run_row(codec, partition, run_id, state, mark, claim_id))

    def _show_slot(
        self,
        rows: Rows,
        packer: Packer,
        partition: int,
        run_id: str,
        state: RunState,
        slot: Slot,
        claim_id: bytes,
    ) -> None:
        entry = self._look(slot, claim_id)
        outcome = slot.outcome
        slot_name = name(slot.name)
        attempt, since, when, error_words = slot.tried, None, None, None
        if isinstance(entry, OpenStep):
            attempt, since = entry.attempt, entry.since_ms
        elif entry is not None:
            attempt, when = entry.attempt, entry.at_ms
            error_words = text(entry.error) if isinstance(entry, FailedStep) else None
        result = None
        if outcome is not None and outcome.value is not None:
            result = value_json(outcome.value)
        elif outcome is not None and outcome.unrecordable is not None:
            lost = outcome.unrecordable
            result = tree_json({"$unrecordable": lost.reason, "type": lost.type, "path": lost.path})
        error = outcome.error if outcome is not None else None
        if error is None and isinstance(entry, FailedStep) and slot.attempts:
            error = slot.attempts[-1].reported_error
        rows.steps.append(
            (
                run_id,
                slot_name,
                partition,
                name(slot.step),
                slot.born,
                text(slot.policy),
                self.places[slot.name] or None,
                attempt,
                at(since),
                at(when),
                name(slot.effect_key),
                arguments_json(slot.arguments),
                result,
                None if error is None else text(error.type),
                None if error is None else text(error.message),
                error_words,
                slot.escalated,
                slot.absent_until_proven,
                slot.conflicted,
                packer.slot(slot),
            )
        )
        if slot.attempts:
            self._show_attempts(rows, partition, run_id, slot_name, slot, claim_id)
            self._show_effects(rows, partition, run_id, state, slot, claim_id)

    def _show_attempts(
        self,
        rows: Rows,
        partition: int,
        run_id: str,
        slot_name: str,
        slot: Slot,
        claim_id: bytes,
    ) -> None:
        numbers: dict[int, Row] = {}
        for one in slot.attempts:
            status = one.status
            if status == OPEN:
                status = "under_way" if is_under_way(one, claim_id) else "in_doubt"
            numbers[one.number] = (
                run_id,
                slot_name,
                one.number,
                partition,
                text(status),
                at(one.at_ms),
                one.timeout_ms,
                one.settle_ms,
                one.generation,
                optional(one.reason),
                ",".join(sorted(one.evidence)),
                one.claim_id,
                one.n,
                one.conflict_written,
            )
        rows.attempts.extend(numbers.values())

    def _show_effects(
        self,
        rows: Rows,
        partition: int,
        run_id: str,
        state: RunState,
        slot: Slot,
        claim_id: bytes,
    ) -> None:
        """The ledger's entries of the slot, with what settled each."""
        for entry in of_slot(state, slot, claim_id):
            evidence = None
            if entry.outcome not in ("in_doubt", "under_way"):
                evidence = self.noted.evidence.get((slot.name, entry.generation), ANSWER)
            rows.effects.append(
                (
                    run_id,
                    name(slot.name),
                    entry.generation,
                    partition,
                    name(entry.effect_key),
                    name(entry.step),
                    text(entry.policy),
                    entry.attempts,
                    entry.outcome,
                    evidence,
                    _amounts_shown(entry.amounts),
                    entry.absent_until_proven,
                    entry.generation != slot.generation,
                    at(entry.first_ms),
                    at(entry.last_ms),
                )
            )

    def _run_row(
        self,
        codec: Codec,
        partition: int,
        run_id: str,
        state: RunState,
        mark: Mark,
        claim_id: bytes,
    ) -> Row:
        opened: list[tuple[int, bool, OpenStep]] = []
        for slot_name in self.open:
            slot = state.slots[slot_name]
            place, entry = place_of(slot, claim_id)
            if isinstance(entry, OpenStep):
                opened.append((slot.born, place == "under_way", entry))
        opened.sort(key=lambda one: one[0])
        under_way = tuple(entry for _, under, entry in opened if under)
        in_doubt = tuple(entry for _, under, entry in opened if not under)
        failed = tuple(entry for _, entry in sorted(self._failed.values(), key=lambda f: f[0]))
        red = tuple(sorted(self._conflicted, key=lambda one: self._conflicted[one]))
        status, reason, needs, wakes_ms = status_of(state, under_way, in_doubt)
        remaining = None
        if state.plan is not None:
            remaining = tuple(one for one in state.plan if not self._steps_done.get(one))
        seen = Boundary(
            state.run_id,
            state.run,
            state.version,
            status,
            reason,
            needs,
            (),
            under_way,
            in_doubt,
            failed,
            remaining,
            wakes_ms,
            red,
        )
        told = said(seen, self._done, None if remaining is None else len(remaining))
        ended = state.ended
        error = ended.error if ended is not None else None
        return (
            run_id,
            partition,
            name(state.run),
            name(state.version),
            status,
            optional(reason),
            needs,
            tree_json(_joined(told)),
            at(state.started_ms),
            at(state.changed_ms),
            None if ended is None else at(ended.at_ms),
            at(wakes_ms),
            state.event_count,
            state.byte_count,
            value_json(state.input),
            None if ended is None else value_json(ended.result),
            None if error is None else text(error.type),
            None if error is None else text(error.message),
            self._done,
            len(in_doubt),
            at(min((entry.since_ms for entry in in_doubt), default=None)),
            len(red),
            None if remaining is None else tree_json(remaining),
            len(self.open),
            pack_run(codec, state, mark),
        )


def _amounts_shown(amounts: dict[str, Amount]) -> str | None:
    return amounts_json({text(one): amounts[one] for one in amounts}) if amounts else None


def _joined(told: list[str | int]) -> list[str | int]:
    """Texts that follow each other as one; moments cut to what both sides have."""
    parts: list[str | int] = []
    for part in told:
        if isinstance(part, int):
            parts.append(at(part) or 0)
        elif parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return parts
