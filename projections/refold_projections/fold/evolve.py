"""The fold: one small applier for each event, total, at a constant cost whatever the history."""

from collections.abc import Callable
from typing import Any, Final

from refold_projections.fold.evidence import conflicts
from refold_projections.fold.state import (
    ABSENT,
    DENIED,
    DONE,
    FAILED,
    IN_DOUBT,
    NEVER_STARTED,
    OPEN,
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
    Stamp,
    Timer,
)
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    CommandRejected,
    CursorAdvanced,
    EvidenceConflict,
    FindingRecorded,
    PlanDeclared,
    RunBlocked,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunDiverged,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerCancelled,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import ErrorInfo

_tuple: Final = tuple.__new__
"""Makes a NamedTuple without the Python function that its own call goes through."""
_HOT: Final = RunState._fields.index("slots")
"""Where the fields of a state begin that a completed step changes."""
_NO_INTENT: Final = tuple(Slot._field_defaults.values())[3:-1]
"""From `effect_key` on, without the outcome: what a slot without an intent has there."""


def evolve(state: RunState | None, run_id: str, event: RunEvent, stamp: Stamp) -> RunState | None:
    """The state after `event`; None while the run does not exist.

    Total: the fold believes the log and refuses nothing (refusing is the work of `decide`).
    """
    if state is None:
        if type(event) is not RunStarted:
            return None
        state = _born(run_id, event, stamp)
    else:
        if type(event) is StepCompleted:
            step = event.step
            if step is not None and event.slot not in state.slots:
                return _completed_at_once(state, event, step, stamp)
        applier = _APPLIERS.get(type(event))
        if applier is not None:  # a record of another kind under a run's key says nothing of it
            state = applier(state, event, stamp)
    # A report stands outside the order of its run's events, so it must not move the run's time.
    changed_ms = state.changed_ms if type(event) is AttemptReported else stamp.at_ms
    return RunState(*state[:-3], state.event_count + 1, state.byte_count + stamp.size, changed_ms)


def _born(run_id: str, event: RunStarted, stamp: Stamp) -> RunState:
    return RunState(
        run_id=run_id,
        run=event.run,
        version=event.version,
        input=event.input,
        nonce=event.nonce,
        started_ms=stamp.at_ms,
        commands=RunState._field_defaults["commands"].set(event.command_id, True),
        unclean_mark=stamp.unclean_total,
    )


def _started_again(state: RunState, event: RunStarted, stamp: Stamp) -> RunState:
    return state  # decide never writes one; a reader that meets one keeps the first


def _plan(state: RunState, event: PlanDeclared, stamp: Stamp) -> RunState:
    return state._replace(plan=event.steps)


def _amounts(state: RunState, event: AmountsDeclared, stamp: Stamp) -> RunState:
    return state._replace(amounts=state.amounts.set(event.step, event.arguments))


def _intended(state: RunState, event: StepIntended, stamp: Stamp) -> RunState:
    attempt = Attempt(
        event.attempt,
        stamp.claim_id,
        stamp.n,
        stamp.at_ms,
        OPEN,
        event.timeout_ms,
        event.settle_ms,
        event.generation,
    )
    early = state.early
    name = (stamp.claim_id, stamp.n)
    if name in early:  # its report was stored first
        attempt = attempt._replace(evidence=frozenset({"never_started"}))
        early = early - {name}
    slot = state.slots.get(event.slot)
    born = state.born_next
    if slot is None:
        slot = Slot(
            event.slot,
            event.step,
            born,
            event.policy,
            event.fingerprint,
            event.arguments or (),
            event.effect_key,
            event.generation,
            event.key_ttl_ms,
            stamp.at_ms,
            (attempt,),
        )
        born += 1
    else:
        fresh = event.generation != slot.generation or not slot.attempts
        if event.effect_key != slot.effect_key and slot.effect_key:
            state = _with_former_key(state, slot)
        slot = slot._replace(
            policy=event.policy,
            effect_key=event.effect_key,
            generation=event.generation,
            key_ttl_ms=event.key_ttl_ms,
            key_since_ms=stamp.at_ms if fresh else slot.key_since_ms,
            arguments=slot.arguments or event.arguments or (),
            attempts=(*slot.attempts, attempt),
            fresh_key=False,
            escalated=False,
            # A repeat under a living key is safe; one that is only found by it is not.
            absent_until_proven=slot.absent_until_proven and event.key_ttl_ms == 0,
        )
    return state._replace(
        slots=state.slots.set(event.slot, slot),
        open_slots=state.open_slots | {event.slot},
        born_next=born,
        early=early,
    )


def _settle(
    state: RunState,
    slot: Slot,
    number: int,
    status: str,
    *,
    whole_key: bool = False,
    error: ErrorInfo | None = None,
) -> Slot:
    """The slot with attempt `number` (with `whole_key` every unsettled one) in `status`."""
    return slot._replace(
        attempts=tuple(
            a._replace(status=status, reported_error=_chosen(a.reported_error, error))
            if (a.number == number if not whole_key else a.status in UNSETTLED)
            else a
            for a in slot.attempts
        )
    )


def _put(state: RunState, slot: Slot, **changes: Any) -> RunState:
    """`slot` in its place, the sets of open slots and of contradictions kept true."""
    is_open = slot.outcome is None and any(a.status in UNSETTLED for a in slot.attempts)
    red = state.red
    if slot.conflicted or any(a.evidence for a in slot.attempts):
        red = frozenset(k for k in red if k[0] != slot.name) | {
            (slot.name, number) for number in conflicts(slot)
        }
    name = slot.name
    was_open = name in state.open_slots
    if is_open != was_open:
        changes["open_slots"] = state.open_slots | {name} if is_open else state.open_slots - {name}
    return state._replace(slots=state.slots.set(name, slot), red=red, **changes)


def _with_outcome(state: RunState, slot: Slot, outcome: Outcome, **changes: Any) -> RunState:
    """An outcome of the slot. A handle acquired anew keeps the place of the one that ran out."""
    kept = slot.outcome
    if kept is not None:
        outcome = outcome._replace(order=kept.order)
    return _put(
        state,
        slot._replace(outcome=outcome, escalated=False),
        order_next=state.order_next + (kept is None),
        **changes,
    )


def _result(state: RunState, event: StepCompleted, stamp: Stamp) -> Outcome:
    if event.unrecordable is None:
        ok = ("ok", state.order_next, stamp.at_ms, event.result, None, None)
        return _tuple(Outcome, ok)
    return Outcome("unrecordable", state.order_next, stamp.at_ms, None, None, event.unrecordable)


def _completed_at_once(state: RunState, event: StepCompleted, step: str, stamp: Stamp) -> RunState:
    """The hot path, whole: a step without an intent, at its first try."""
    at_ms, _, _, size, unclean_total = stamp
    name = event.slot
    hot: Any = state[_HOT:]
    slots, open_slots, born, order, _, event_count, byte_count, _ = hot
    outcome: Any
    if event.unrecordable is None:
        outcome = _tuple(Outcome, ("ok", order, at_ms, event.result, None, None))
    else:
        outcome = _result(state, event, stamp)
    arguments = event.arguments or ()
    made = (name, step, born, "", event.fingerprint or b"", arguments, *_NO_INTENT, outcome)
    # What every event changes comes last in a state, so that the rest is taken over in one piece.
    changed = (
        slots.set(name, _tuple(Slot, made)),
        open_slots,
        born + 1,
        order + 1,
        unclean_total,
        event_count + 1,
        byte_count + size,
        at_ms,
    )
    return _tuple(RunState, state[:_HOT] + changed)


def _completed(state: RunState, event: StepCompleted, stamp: Stamp) -> RunState:
    slot = state.slots.get(event.slot)
    if slot is None:
        return state
    outcome = _result(state, event, stamp)
    if slot.attempts:
        slot = _settle(state, slot, event.attempt, DONE)
    return _with_outcome(state, slot, outcome, unclean_mark=stamp.unclean_total)


def _failed(state: RunState, event: StepFailed, stamp: Stamp) -> RunState:
    slot = state.slots.get(event.slot)
    born = state.born_next
    if slot is None:
        if event.step is None:
            return state
        slot = Slot(
            event.slot,
            event.step,
            born,
            fingerprint=event.fingerprint or b"",
            arguments=event.arguments or (),
        )
        born += 1
    if slot.attempts:
        slot = _settle(state, slot, event.attempt, FAILED, error=event.error)
    slot = slot._replace(failures=slot.failures + 1, fresh_key=slot.fresh_key or event.fresh_key)
    if event.final and not slot.unsettled:
        outcome = Outcome("failed", state.order_next, stamp.at_ms, error=event.error)
        return _with_outcome(state, slot, outcome, born_next=born, unclean_mark=stamp.unclean_total)
    return _put(state, slot, born_next=born, unclean_mark=stamp.unclean_total)


def _in_doubt(state: RunState, event: StepInDoubt, stamp: Stamp) -> RunState:
    slot = state.slots.get(event.slot)
    if slot is None:
        return state
    attempts = tuple(
        a._replace(status=IN_DOUBT, reason=event.reason)
        if a.number == event.attempt and a.status in UNSETTLED
        else a
        for a in slot.attempts
    )
    slot = slot._replace(attempts=attempts, escalated=event.escalated or slot.escalated)
    return _put(state, slot, unclean_mark=stamp.unclean_total)


def _resolved(state: RunState, event: StepResolved, stamp: Stamp) -> RunState:
    slot = state.slots.get(event.slot)
    if slot is None:
        return state
    changes: dict[str, Any] = {"unclean_mark": stamp.unclean_total}
    if event.command_id is not None:
        changes["commands"] = state.commands.set(event.command_id, True)
    by_person = event.evidence == "person"
    if event.verdict == "done":
        slot = _settle(state, slot, event.attempt, DONE)
        slot = slot._replace(absent_until_proven=slot.absent_until_proven and slot.key_ttl_ms == 0)
        outcome = Outcome("ok", state.order_next, stamp.at_ms, event.result)
        return _with_outcome(state, slot, outcome, **changes)
    if event.verdict == "absent":
        slot = _settle(
            state, slot, event.attempt, DENIED if by_person else ABSENT, whole_key=True
        )._replace(escalated=False, absent_until_proven=True)
    else:  # speaks for this attempt only
        status = FAILED if event.verdict == "failed" else NEVER_STARTED
        counted = any(a.number == event.attempt and a.status == FAILED for a in slot.attempts)
        slot = _settle(state, slot, event.attempt, status, error=event.error)
        slot = slot._replace(escalated=False)
        if status == FAILED and not counted:
            slot = slot._replace(failures=slot.failures + 1)
    if event.final and not slot.unsettled and slot.outcome is None:
        kind = "failed" if event.verdict == "failed" else "absent"
        outcome = Outcome(kind, state.order_next, stamp.at_ms, error=event.error)
        return _with_outcome(state, slot, outcome, **changes)
    return _put(state, slot, **changes)


def _reported(state: RunState, event: AttemptReported, stamp: Stamp) -> RunState:
    """Evidence is a set per attempt; the header's claim and n name the intent."""
    if event.outcome not in ("completed", "failed", "never_started"):
        return state
    slot = state.slots.get(event.slot)
    name = (stamp.claim_id, stamp.n)
    known = slot is not None and any((a.claim_id, a.n) == name for a in slot.attempts)
    if slot is None or not known:
        if event.outcome == "never_started":
            # Its intent may be stored later and count; if not, this says nothing of anything.
            return state._replace(early=state.early | {name})
        return state._replace(
            stray=state.stray | {(event.slot, event.attempt, event.outcome)},
        )
    attempts = tuple(
        a._replace(
            evidence=a.evidence | {event.outcome},
            reported_result=_chosen(a.reported_result, event.result),
            reported_error=_chosen(a.reported_error, event.error),
        )
        if (a.claim_id, a.n) == name
        else a
        for a in slot.attempts
    )
    return _put(state, slot._replace(attempts=attempts, conflicted=slot.conflicted))


def _chosen(kept: Any, told: Any) -> Any:
    """One of two reported values, the same whichever came first: reports are a set."""
    if kept is None or told is None:
        return told if kept is None else kept
    return min(kept, told, key=repr)


def _conflict(state: RunState, event: EvidenceConflict, stamp: Stamp) -> RunState:
    slot = state.slots.get(event.slot)
    if slot is None:
        return state._replace(
            stray=frozenset(s for s in state.stray if s[:2] != (event.slot, event.attempt)),
        )
    attempts = tuple(
        a._replace(conflict_written=True) if a.number == event.attempt else a for a in slot.attempts
    )
    stray = state.stray
    if stray:
        stray = frozenset(s for s in stray if s[:2] != (event.slot, event.attempt))
    return _put(state, slot._replace(attempts=attempts, conflicted=True), stray=stray)


def _with_former_key(state: RunState, slot: Slot) -> RunState:
    """The key that the slot has had so far is kept: the far system may know an effect by it."""
    former = FormerKey(slot.generation, slot.effect_key)
    kept = state.keys_former.get(slot.name, ())
    return state._replace(keys_former=state.keys_former.set(slot.name, (*kept, former)))


def _finding(state: RunState, event: FindingRecorded, stamp: Stamp) -> RunState:
    """The latest word on a finding stands; who asked for it is remembered as for any command."""
    finding = Finding(
        event.finding_id,
        event.kind,
        event.slot,
        event.step,
        event.effect_key,
        event.detail,
        event.command,
        event.status,
        stamp.at_ms,
    )
    return state._replace(
        findings=state.findings.set(event.finding_id, finding),
        commands=state.commands.set(event.command_id, True),
    )


def _cursor(state: RunState, event: CursorAdvanced, stamp: Stamp) -> RunState:
    kept = state.cursors.get(event.slot)
    born = state.born_next if kept is None else kept.born
    cursor = Cursor(
        event.slot, born, event.cursor, event.total, state.order_next, stamp.at_ms, event.state
    )
    return state._replace(
        cursors=state.cursors.set(event.slot, cursor),
        born_next=state.born_next + (kept is None),
        order_next=state.order_next + 1,
        unclean_mark=stamp.unclean_total,
    )


def _timer_scheduled(state: RunState, event: TimerScheduled, stamp: Stamp) -> RunState:
    timer = Timer(event.timer_id, event.generation, event.kind, event.slot, event.deadline_ms)
    state = state._replace(timers=state.timers.set(event.timer_id, timer))
    if event.kind == "sleep" and event.slot not in state.slots:
        slot = Slot(event.slot, "sleep", state.born_next)
        state = state._replace(
            slots=state.slots.set(event.slot, slot), born_next=state.born_next + 1
        )
    return state


def _armed(state: RunState, timer_id: str, generation: int) -> Timer | None:
    """The timer, if it is armed in this generation; anything else has fired or was replaced."""
    timer = state.timers.get(timer_id)
    return timer if timer is not None and timer.generation == generation else None


def _timer_fired(state: RunState, event: TimerFired, stamp: Stamp) -> RunState:
    timer = _armed(state, event.timer_id, event.generation)
    if timer is None:
        return state
    state = state._replace(timers=state.timers.delete(event.timer_id))
    slot = state.slots.get(timer.slot)
    if timer.kind != "sleep" or slot is None:
        return state
    slot = slot._replace(outcome=Outcome("ok", state.order_next, stamp.at_ms))
    return state._replace(
        slots=state.slots.set(timer.slot, slot),
        order_next=state.order_next + 1,
        unclean_mark=stamp.unclean_total,
    )


def _timer_cancelled(state: RunState, event: TimerCancelled, stamp: Stamp) -> RunState:
    if _armed(state, event.timer_id, event.generation) is None:
        return state
    return state._replace(timers=state.timers.delete(event.timer_id))


def _diverged(state: RunState, event: RunDiverged, stamp: Stamp) -> RunState:
    return state._replace(parked=Parked("diverged", event.slot, event.detail))


def _blocked(state: RunState, event: RunBlocked, stamp: Stamp) -> RunState:
    return state._replace(parked=Parked("blocked", event.reason, event.detail))


def _resumed(state: RunState, event: RunResumed, stamp: Stamp) -> RunState:
    changes: dict[str, Any] = {"parked": None, "unclean_mark": stamp.unclean_total}
    if event.command_id is not None:
        changes["commands"] = state.commands.set(event.command_id, True)
    if state.ended is not None and state.ended.status == "failed":
        changes["ended"] = None
    state = state._replace(**changes)
    slot = None if event.slot is None else state.slots.get(event.slot)
    if slot is None or slot.outcome is None or slot.outcome.kind != "failed":
        return state
    slot = slot._replace(outcome=None, failures=0, fresh_key=event.fresh_key)
    return _put(state, slot)


def _cancel_requested(state: RunState, event: RunCancelRequested, stamp: Stamp) -> RunState:
    return state._replace(
        cancel=state.cancel or Cancel(event.by, event.why),
        commands=state.commands.set(event.command_id, True),
    )


def _run_completed(state: RunState, event: RunCompleted, stamp: Stamp) -> RunState:
    if state.ended is not None:
        return state  # the first end stands
    return state._replace(ended=Ended("completed", stamp.at_ms, event.result), parked=None)


def _run_failed(state: RunState, event: RunFailed, stamp: Stamp) -> RunState:
    if state.ended is not None:
        return state  # the first end stands
    return state._replace(ended=Ended("failed", stamp.at_ms, error=event.error), parked=None)


def _run_cancelled(state: RunState, event: RunCancelled, stamp: Stamp) -> RunState:
    if state.ended is not None:
        return state  # the first end stands
    return state._replace(ended=Ended("cancelled", stamp.at_ms), parked=None)


def _rejected(state: RunState, event: CommandRejected, stamp: Stamp) -> RunState:
    """A refused command stays refused: its duplicate must not be applied when it is read later."""
    if not event.command_id:
        return state
    return state._replace(commands=state.commands.set(event.command_id, True))


_APPLIERS: dict[type, Callable[[RunState, Any, Stamp], RunState]] = {
    RunStarted: _started_again,
    PlanDeclared: _plan,
    AmountsDeclared: _amounts,
    StepIntended: _intended,
    StepCompleted: _completed,
    StepFailed: _failed,
    StepInDoubt: _in_doubt,
    StepResolved: _resolved,
    AttemptReported: _reported,
    EvidenceConflict: _conflict,
    FindingRecorded: _finding,
    CursorAdvanced: _cursor,
    TimerScheduled: _timer_scheduled,
    TimerFired: _timer_fired,
    TimerCancelled: _timer_cancelled,
    RunDiverged: _diverged,
    RunBlocked: _blocked,
    RunResumed: _resumed,
    RunCancelRequested: _cancel_requested,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
    RunCancelled: _run_cancelled,
    CommandRejected: _rejected,
}
