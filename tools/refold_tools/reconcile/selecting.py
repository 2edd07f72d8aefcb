"""Which effects are asked about: those of a window of time, and what earlier looks left open."""

from collections.abc import Iterator
from typing import NamedTuple

from refold.app import App
from refold.app.definitions import StepDef
from refold.client import Client
from refold.client.judged import judged
from refold.client.states import claim_as_seen
from refold_projections.fold import (
    DONE,
    IN_DOUBT,
    LedgerEntry,
    PartitionFold,
    RunState,
    Slot,
    Verdict,
    ledger,
)
from refold_projections.fold.ledger import UNDER_WAY
from refold_schemas.errors import OffsetOutOfRange, SchemaUnavailable, UndecodableRecord
from refold_schemas.events import StepCompleted, StepResolved
from refold_schemas.values import Value
from refold_tools.reconcile.judging import Recorded, settled_ms

Place = tuple[str, str, int]
"""run_id, slot and attempt: where a result stands on record."""

ASK, YOUNG, BUSY, NO_LOOKUP, NO_CODE = "ask", "young", "busy", "no_lookup", "no_code"


class Window(NamedTuple):
    """Effects whose last attempt or outcome is at `since_ms` or later, and before `until_ms`."""

    since_ms: int
    until_ms: int

    def holds(self, at_ms: int) -> bool:
        """Whether a moment is in it."""
        return self.since_ms <= at_ms < self.until_ms


class Effect(NamedTuple):
    """One effect to look at.

    `how`: ask; young (not settled yet), busy (its owner is at work on it), no_lookup, no_code (the
    app has no such step): those are not asked.
    """

    partition: int
    state: RunState
    slot: Slot
    entry: LedgerEntry
    definition: StepDef | None
    how: str

    @property
    def place(self) -> Place:
        """Where its result stands on record."""
        return self.state.run_id, self.slot.name, self.entry.attempt


async def fold_and_claim(client: Client, partition: int) -> tuple[PartitionFold, bytes]:
    """All runs of a partition at the log's end, and the claim to read them with."""
    fold = await client.fold_of(partition)
    lives = await client.owner_lives(partition)
    return fold, claim_as_seen(fold.claim_id, fold.facts, owner_lives=lives)


def select(
    fold: PartitionFold,
    claim_id: bytes,
    partition: int,
    app: App,
    window: Window,
    again: frozenset[str],
    now_ms: int,
) -> Iterator[Effect]:
    """The effects of one partition to look at.

    Those of the window; those with an open finding, or a conflict that nobody was told of yet,
    whatever their time; and the keys in `again`.
    """
    for state in fold.runs.values():
        open_keys = {f.effect_key for f in state.findings.values() if f.is_open}
        quiet = state.changed_ms < window.since_ms and not open_keys
        # A late report does not move the run's time; what it contradicts is told all the same.
        if quiet and not again and not _any_conflict(state):
            continue
        told = {f.effect_key for f in state.findings.values() if f.kind == "conflict"}
        for entry in ledger(state, claim_id):
            key = entry.effect_key
            wanted = window.holds(entry.last_ms) or key in open_keys or key in again
            if wanted or ("conflict" in entry.reported and key not in told):
                yield _effect(partition, state, entry, app, now_ms)


def _any_conflict(state: RunState) -> bool:
    return bool(state.red) or any(slot.conflicted for slot in state.slots.values())


def _effect(partition: int, state: RunState, entry: LedgerEntry, app: App, now_ms: int) -> Effect:
    slot = state.slots[entry.slot]
    definition = app.steps.get(entry.step)
    how = ASK
    if definition is None:
        how = NO_CODE
    elif definition.lookup is None:
        how = NO_LOOKUP
    elif entry.outcome == UNDER_WAY or (entry.outcome == IN_DOUBT and not slot.escalated):
        how = BUSY  # recovery asks by itself, and acts on the answer
    elif now_ms < settled_ms(slot, entry):
        how = YOUNG
    return Effect(partition, state, slot, entry, definition, how)


def result_of(effect: Effect) -> Recorded | None:
    """The effect's result as the state has it; None where only the log can say."""
    outcome = effect.slot.outcome
    entry = effect.entry
    if entry.outcome != DONE:
        return Recorded(None, "it is not done")
    if entry.generation != effect.slot.generation or outcome is None:
        return None  # a handle was acquired anew: the state has the later one
    if outcome.kind == "unrecordable":
        return Recorded(None, "it could not be stored when the step returned")
    # A completed run's snapshot has no values inside.
    return None if outcome.value is None else Recorded(outcome.value)


async def results_in_log(
    client: Client, partition: int, places: frozenset[Place]
) -> dict[Place, Value]:
    """The results that stand at these places, read from the whole partition in one pass.

    What was archived is not among them.
    """
    found: dict[Place, Value] = {}
    runs = {place[0].encode() for place in places}
    try:
        async for record, _, verdict in judged(client.log, client.codec, partition):
            if verdict is not Verdict.COUNTS or record.key not in runs:
                continue
            data = record.value or b""
            if client.codec.name_of(data) not in ("StepCompleted", "StepResolved"):
                continue
            try:
                event = client.codec.decode(data)
            except (UndecodableRecord, SchemaUnavailable):
                continue
            if isinstance(event, StepCompleted | StepResolved) and event.result is not None:
                place = (record.key.decode(), event.slot, event.attempt)
                if place in places:
                    found[place] = event.result
    except OffsetOutOfRange:
        return {}  # trimmed under us: what counts nobody can say
    return found
