"""A run's state as a snapshot record and back, and a state hash that readers compare."""

import hashlib
from collections.abc import Iterator

import immutables

from refold_projections.fold.evidence import conflicts
from refold_projections.fold.partition import Mark
from refold_projections.fold.state import (
    UNSETTLED,
    Attempt,
    Cancel,
    Cursor,
    Ended,
    Finding,
    FormerKey,
    Outcome,
    Parked,
    RunState,
    Slot,
    Timer,
)
from refold_schemas.snapshots import (
    AmountsKept,
    AttemptKept,
    CursorKept,
    EarlyKept,
    FindingKept,
    FormerKeyKept,
    OutcomeKept,
    RunSnapshot,
    SlotKept,
    StrayKept,
    TimerKept,
)


def kept_slots(state: RunState) -> Iterator[SlotKept]:
    """The slots of `state` as a snapshot has them, in the order of their birth."""
    over = state.ended is not None and state.ended.status in ("completed", "cancelled")
    for slot in sorted(state.slots.values(), key=lambda s: s.born):
        if over:
            slot = _without_values(slot, state.amounts.get(slot.step, ()))
        yield slot_kept(slot)


def to_snapshot(
    state: RunState, mark: Mark, slots: tuple[SlotKept, ...] | None = None
) -> RunSnapshot:
    """The durable `state` with the label of its last record; `slots` if they were made before.

    Of a run that completed or was cancelled the values inside and what they are compared by are
    left out: nobody replays it, `history` reads them from the log, and input and result stay, as
    do declared amounts.
    """
    return RunSnapshot(
        run_id=state.run_id,
        offset=mark.offset,
        record_claim_id=mark.claim_id,
        record_n=mark.n,
        run=state.run,
        version=state.version,
        input=state.input,
        nonce=state.nonce,
        started_ms=state.started_ms,
        era=state.era,
        plan=state.plan,
        slots=tuple(kept_slots(state)) if slots is None else slots,
        timers=tuple(TimerKept(*t) for t in sorted(state.timers.values())),
        cursors=tuple(CursorKept(*c) for c in sorted(state.cursors.values(), key=lambda c: c.born)),
        commands=tuple(sorted(state.commands)),
        stray=tuple(StrayKept(*s) for s in sorted(state.stray)),
        early=tuple(EarlyKept(*e) for e in sorted(state.early)),
        born_next=state.born_next,
        order_next=state.order_next,
        event_count=state.event_count,
        byte_count=state.byte_count,
        changed_ms=state.changed_ms,
        unclean_mark=state.unclean_mark,
        cancel_by=None if state.cancel is None else state.cancel.by,
        cancel_why=None if state.cancel is None else state.cancel.why,
        parked=None if state.parked is None else state.parked.kind,
        parked_reason=None if state.parked is None else state.parked.reason,
        parked_detail=None if state.parked is None else state.parked.detail,
        ended=None if state.ended is None else state.ended.status,
        ended_ms=None if state.ended is None else state.ended.at_ms,
        result=None if state.ended is None else state.ended.result,
        error=None if state.ended is None else state.ended.error,
        findings=tuple(FindingKept(*one) for one in sorted(state.findings.values())),
        amounts=tuple(AmountsKept(*one) for one in sorted(state.amounts.items())),
        keys_former=tuple(
            FormerKeyKept(slot, *former)
            for slot, keys in sorted(state.keys_former.items())
            for former in keys
        ),
    )


def from_snapshot(snapshot: RunSnapshot) -> tuple[RunState, Mark]:
    """The state that `to_snapshot` was given, and its label."""
    slots = [slot_from(s) for s in snapshot.slots]
    cancel = parked = ended = None
    if snapshot.cancel_by is not None:
        cancel = Cancel(snapshot.cancel_by, snapshot.cancel_why or "")
    if snapshot.parked is not None:
        parked = Parked(snapshot.parked, snapshot.parked_reason or "", snapshot.parked_detail or "")
    if snapshot.ended is not None:
        ended = Ended(snapshot.ended, snapshot.ended_ms or 0, snapshot.result, snapshot.error)
    former: dict[str, tuple[FormerKey, ...]] = {}
    for key in snapshot.keys_former:
        kept = FormerKey(key.generation, key.effect_key)
        former[key.slot] = (*former.get(key.slot, ()), kept)
    state = RunState(
        run_id=snapshot.run_id,
        run=snapshot.run,
        version=snapshot.version,
        input=snapshot.input,
        nonce=snapshot.nonce,
        started_ms=snapshot.started_ms,
        era=snapshot.era,
        plan=snapshot.plan,
        cancel=cancel,
        parked=parked,
        ended=ended,
        timers=immutables.Map({t.timer_id: _timer(t) for t in snapshot.timers}),
        cursors=immutables.Map({c.slot: _cursor(c) for c in snapshot.cursors}),
        commands=immutables.Map(dict.fromkeys(snapshot.commands, True)),
        red=frozenset((s.name, number) for s in slots for number in conflicts(s)),
        early=frozenset((e.claim_id, e.n) for e in snapshot.early),
        stray=frozenset((s.slot, s.attempt, s.outcome) for s in snapshot.stray),
        findings=immutables.Map({f.finding_id: _finding(f) for f in snapshot.findings}),
        amounts=immutables.Map({a.step: a.arguments for a in snapshot.amounts}),
        keys_former=immutables.Map(former),
        slots=immutables.Map({s.name: s for s in slots}),
        open_slots=frozenset(
            s.name
            for s in slots
            if s.outcome is None and any(a.status in UNSETTLED for a in s.attempts)
        ),
        born_next=snapshot.born_next,
        order_next=snapshot.order_next,
        unclean_mark=snapshot.unclean_mark,
        event_count=snapshot.event_count,
        byte_count=snapshot.byte_count,
        changed_ms=snapshot.changed_ms,
    )
    return state, Mark(snapshot.offset, snapshot.record_claim_id, snapshot.record_n)


def _without_values(slot: Slot, amounts: tuple[str, ...]) -> Slot:
    outcome = slot.outcome
    return slot._replace(
        arguments=tuple(a for a in slot.arguments if a.name in amounts),
        fingerprint=b"",
        outcome=None if outcome is None else outcome._replace(value=None),
    )


def slot_kept(slot: Slot) -> SlotKept:
    """One slot as a snapshot has it, with all that is in it."""
    return SlotKept(
        *slot[:10],
        tuple(AttemptKept(*a[:9], tuple(sorted(a.evidence)), *a[10:]) for a in slot.attempts),
        *slot[11:16],
        None if slot.outcome is None else OutcomeKept(*slot.outcome),
    )


def slot_from(kept: SlotKept) -> Slot:
    """The slot that `slot_kept` was given."""
    return Slot(
        kept.name,
        kept.step,
        kept.born,
        kept.policy,
        kept.fingerprint,
        kept.arguments,
        kept.effect_key,
        kept.generation,
        kept.key_ttl_ms,
        kept.key_since_ms,
        tuple(_attempt(a) for a in kept.attempts),
        kept.failures,
        kept.fresh_key,
        kept.escalated,
        kept.absent_until_proven,
        kept.conflicted,
        None if kept.outcome is None else _outcome(kept.outcome),
    )


def _attempt(kept: AttemptKept) -> Attempt:
    return Attempt(
        kept.number,
        kept.claim_id,
        kept.n,
        kept.at_ms,
        kept.status,
        kept.timeout_ms,
        kept.settle_ms,
        kept.generation,
        kept.reason,
        frozenset(kept.evidence),
        kept.reported_result,
        kept.reported_error,
        kept.conflict_written,
    )


def _outcome(kept: OutcomeKept) -> Outcome:
    return Outcome(kept.kind, kept.order, kept.at_ms, kept.value, kept.error, kept.unrecordable)


def _finding(kept: FindingKept) -> Finding:
    return Finding(
        kept.finding_id,
        kept.kind,
        kept.slot,
        kept.step,
        kept.effect_key,
        kept.detail,
        kept.command,
        kept.status,
        kept.at_ms,
    )


def _timer(kept: TimerKept) -> Timer:
    return Timer(kept.timer_id, kept.generation, kept.kind, kept.slot, kept.deadline_ms)


def _cursor(kept: CursorKept) -> Cursor:
    return Cursor(kept.slot, kept.born, kept.cursor, kept.total, kept.order, kept.at_ms, kept.state)


def state_hash(state: RunState) -> str:
    """A digest of the whole state, independent of the order in which maps were filled."""
    snapshot = to_snapshot(state, Mark(0, b"", 0))
    text = repr((snapshot, sorted(state.stray), sorted(state.red)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
