"""The fold, the same for every reader: the claim rule, evidence as a set, conflicts."""

from typing import Final, NamedTuple

from model.records import (
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    CONFLICT,
    FAILED,
    IN_DOUBT,
    INTENDED_FRESH,
    INTENTS,
    PERSON_DENIED,
    PERSON_DONE,
    REJECTED,
    RESOLVED_ABSENT,
    RESOLVED_DONE,
    RESOLVED_FAILED,
    RESOLVED_NEVER,
    RESOLVED_REJECTED,
    RUN_STARTED,
    SAYS_COMPLETED,
    SAYS_NEVER,
    Claim,
    Event,
    Record,
    Report,
)
from model.rules import Rules

NONE: Final = ""
OPEN: Final = "open"
DOUBT: Final = "in doubt"
DONE: Final = "done"
ABSENT: Final = "absent"
ABSENT_UNOWED: Final = "absent, no second lookup owed"
NEVER: Final = "never started"
STEP_FAILED: Final = "failed"
DENIED: Final = "denied by a person"

UNSETTLED: Final = (OPEN, DOUBT)
EXCLUDED: Final = (ABSENT, ABSENT_UNOWED, NEVER, STEP_FAILED, DENIED)

# Who speaks for what (section 6): an attempt for itself, a lookup or a person for the key.
_ONE_ATTEMPT: Final = {
    IN_DOUBT: DOUBT,
    COMPLETED: DONE,
    RESOLVED_DONE: DONE,
    PERSON_DONE: DONE,
    FAILED: STEP_FAILED,
    RESOLVED_FAILED: STEP_FAILED,
    RESOLVED_NEVER: NEVER,
}
_WHOLE_KEY: Final = {
    RESOLVED_ABSENT: ABSENT,
    PERSON_DENIED: DENIED,
    RESOLVED_REJECTED: STEP_FAILED,
}


class Attempt(NamedTuple):
    """One attempt of the slot; `evidence` is the sorted set of what reports say of it."""

    status: str = NONE
    generation: int = 0
    intent: tuple[int, int] = (-1, -1)
    evidence: str = ""
    conflict: bool = False


class State(NamedTuple):
    """What a reader knows after a prefix of the log: its place in the claim, and the run."""

    claim: int
    epoch: int
    n_next: int
    broken: bool
    command_next: int
    started: int
    cancels: int
    ended: bool
    unplaced: tuple[tuple[int, int, str], ...]
    attempts: tuple[Attempt, ...]


def empty(*, attempts: int, started: bool) -> State:
    """The state before the first record; `started` where the case has no StartRun of its own."""
    return State(-1, 0, 0, False, 0, int(started), 0, False, (), (Attempt(),) * attempts)


def evolve(rules: Rules, state: State, record: Record) -> State:
    """Fold one record. Total: what does not count leaves the state as it is (3.1 rules 1, 2, 7)."""
    match record:
        case Claim():
            if record.epoch <= state.epoch and rules.epoch_compared:
                return state
            return state._replace(claim=record.claim, epoch=record.epoch, n_next=0, broken=False)
        case Report():
            return _report(rules, state, record)
        case Event():
            return _event(rules, state, record)


def _event(rules: Rules, state: State, event: Event) -> State:
    if rules.event_needs_claim and (event.claim != state.claim or state.broken):
        return state
    if event.n < state.n_next and event.claim == state.claim:
        if rules.duplicate == "break":
            return state._replace(broken=True)
        if rules.duplicate == "skip":
            return state
    if event.n > state.n_next and event.claim == state.claim and rules.missing_n_breaks:
        return state._replace(broken=True)
    n_next = max(state.n_next, event.n + 1) if event.claim == state.claim else state.n_next
    counted = state._replace(n_next=n_next, command_next=event.command_next)
    return _apply(rules, counted, event)


def _apply(rules: Rules, state: State, event: Event) -> State:
    kind, a = event.kind, event.attempt
    if kind in INTENTS:
        return _intend(state, event)
    if kind in _ONE_ATTEMPT:
        status = _ONE_ATTEMPT[kind]
        if status == STEP_FAILED and not rules.rejection_own_attempt:
            return _settle_key(state, a, status)
        if status == NEVER and not rules.never_started_own_attempt:
            return _settle_key(state, a, status)
        return put(state, a, state.attempts[a]._replace(status=status))
    if kind in _WHOLE_KEY:
        status = _WHOLE_KEY[kind]
        if status == ABSENT and not rules.proof_owed_after_late_cancel and not state.cancels:
            status = ABSENT_UNOWED
        return _settle_key(state, a, status)
    if kind == CONFLICT:
        return put(state, a, state.attempts[a]._replace(conflict=True))
    if kind == RUN_STARTED:
        return state._replace(started=state.started + 1)
    if kind == CANCEL_REQUESTED:
        return state._replace(cancels=state.cancels + 1)
    if kind == CANCELLED:
        return state._replace(ended=True)
    assert kind == REJECTED, f"an event that the model does not have: {kind}"
    return state


def _intend(state: State, event: Event) -> State:
    a = event.attempt
    name = (event.claim, event.n)
    generation = max((x.generation for x in state.attempts if x.status), default=0)
    if event.kind == INTENDED_FRESH:
        generation += 1
    early = "".join(sorted(u[2] for u in state.unplaced if u[:2] == name))
    rest = tuple(u for u in state.unplaced if u[:2] != name)
    return put(state._replace(unplaced=rest), a, Attempt(OPEN, generation, name, early))


def _report(rules: Rules, state: State, report: Report) -> State:
    name = (report.claim, report.n)
    if not rules.report_outside_claim and report.claim != state.claim:
        return state
    for a, attempt in enumerate(state.attempts):
        named = attempt.intent == name if rules.report_names_intent else a == report.attempt
        if named and attempt.status:
            if attempt.status not in UNSETTLED and not rules.evidence_after_settlement:
                return state
            evidence = "".join(sorted({*attempt.evidence, report.what}))
            return put(state, a, attempt._replace(evidence=evidence))
    # Its intent may still come: a report overtakes an append whose answer was unknown.
    keep = (
        rules.report_before_intent_kept if report.what == SAYS_NEVER else rules.excess_reports_kept
    )
    if not keep:
        return state
    unplaced = tuple(sorted({*state.unplaced, (*name, report.what)}))
    return state._replace(unplaced=unplaced)


def put(state: State, a: int, attempt: Attempt) -> State:
    """The state with attempt `a` replaced."""
    return state._replace(attempts=(*state.attempts[:a], attempt, *state.attempts[a + 1 :]))


def _settle_key(state: State, a: int, status: str) -> State:
    """Settle what is open under the key of attempt `a`: a lookup or a person speaks for the key."""
    key = state.attempts[a].generation
    return state._replace(
        attempts=tuple(
            x._replace(status=status) if x.status in UNSETTLED and x.generation == key else x
            for x in state.attempts
        )
    )


def conflicts(rules: Rules, state: State) -> tuple[int, ...]:
    """The attempts whose evidence contradicts what was settled; order of arrival cannot matter."""
    known = [(a, x) for a, x in enumerate(state.attempts) if x.status]
    bad = {a for a, x in known if x.status in EXCLUDED and SAYS_COMPLETED in x.evidence}
    done = [a for a, x in known if x.status == DONE]
    for a in done:
        key = state.attempts[a].generation
        same_key = [x for _, x in known if x.generation == key]
        if all(_is_excluded(x) for x in same_key):
            bad.add(a)
        own = state.attempts[a].evidence
        if not rules.conflict_over_all_attempts and own and SAYS_COMPLETED not in own:
            bad.add(a)
    return tuple(sorted(bad))


def _is_excluded(attempt: Attempt) -> bool:
    """Whether this attempt, taken alone, is known not to have acted."""
    if attempt.status in (NEVER, STEP_FAILED):
        return True
    return bool(attempt.evidence) and SAYS_COMPLETED not in attempt.evidence


def excess(state: State) -> tuple[tuple[int, int, str], ...]:
    """Reports of attempts that ran although their intent does not count: the log was cut."""
    return tuple(u for u in state.unplaced if u[2] != SAYS_NEVER)


def is_under_way(state: State, a: int) -> bool:
    """Whether attempt `a` belongs to the latest claim and nothing has ended it (section 6)."""
    attempt = state.attempts[a]
    return attempt.status == OPEN and attempt.intent[0] == state.claim
