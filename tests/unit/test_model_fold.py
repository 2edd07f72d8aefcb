"""refold's own fold reads logs of the model as the model does: the claim rule, attempts, evidence.

The model shows that the rules are right; this shows that the fold that readers share keeps them.
Logs come from random walks through the cases, faults included.
"""

import random
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from model.cases import CASES, Case
from model.fold import (
    ABSENT,
    DENIED,
    DONE,
    DOUBT,
    NEVER,
    OPEN,
    STEP_FAILED,
    State,
    conflicts,
    empty,
    evolve,
    excess,
    is_under_way,
)
from model.records import SAYS_NEVER, Claim, Record, Report
from model.rules import Rules
from model.spoken import RUN, SAYS, SLOT, claim_id, event_of, header_of, run_started
from model.transitions import Protocol
from refold_projections import fold as real

STATUS: Final = {
    OPEN: real.OPEN,
    DOUBT: real.IN_DOUBT,
    DONE: real.DONE,
    ABSENT: real.ABSENT,
    NEVER: real.NEVER_STARTED,
    STEP_FAILED: real.FAILED,
    DENIED: real.DENIED,
}
WALKS: Final = 40
STEPS_MAX: Final = 60
# Rare enough that a walk gets somewhere before its last claim is spent.
RARE: Final = frozenset({"claims", "deadline passes", "crashes", "CancelRun is published"})
# A rejection found by lookup is no single event of refold.
SPOKEN: Final = [case for case in CASES if not case.settings.keeps_refusals]


@pytest.mark.parametrize("case", SPOKEN, ids=lambda case: case.name)
def test_refold_folds_what_the_model_folds(case: Case) -> None:
    for seed in range(WALKS):
        _compare(case, seed, _walk(case, seed), Rules())


@pytest.mark.parametrize(
    "broken",
    [
        replace(Rules(), epoch_compared=False),
        replace(Rules(), event_needs_claim=False),
        replace(Rules(), duplicate="count"),
        replace(Rules(), duplicate="break"),
        replace(Rules(), missing_n_breaks=False),
        replace(Rules(), report_outside_claim=False),
        replace(Rules(), evidence_after_settlement=False),
        replace(Rules(), excess_reports_kept=False),
        replace(Rules(), rejection_own_attempt=False),
        replace(Rules(), never_started_own_attempt=False),
    ],
    ids=lambda rules: next(n for n in rules.__slots__ if getattr(rules, n) != getattr(Rules(), n)),
)
def test_the_walks_would_notice_a_fold_with_a_broken_rule(broken: Rules) -> None:
    with pytest.raises(AssertionError):
        _compare_all(broken)


def _compare_all(rules: Rules) -> None:
    for seed in range(WALKS):
        for case in SPOKEN:
            _compare(case, seed, _walk(case, seed), rules)


@cache
def _walk(case: Case, seed: int) -> list[Record]:
    """The log at the end of one random walk; the normal form would forget its beginning."""
    chance = random.Random(f"{case.name}/{seed}")
    protocol = Protocol(replace(case.settings, reduced=False), Rules())
    world = protocol.initial()
    for _ in range(STEPS_MAX):
        steps = protocol.steps(world)
        if not steps:
            break
        weights = [0.1 if action[0] in RARE else 1.0 for action, _ in steps]
        world = chance.choices(steps, weights)[0][1]
    return [protocol.interned.records[number] for number in world.tail]


def _compare(case: Case, seed: int, log: list[Record], rules: Rules) -> None:
    state = empty(attempts=case.settings.attempts, started=not case.settings.start)
    position = real.Position()
    run: real.RunState | None = None
    if not case.settings.start:
        run = real.evolve(None, RUN, run_started(), real.Stamp(0, real.NO_CLAIM, 0))
    for offset, record in enumerate(log):
        if _overtakes(state, record):
            continue
        latest = max((x.generation for x in state.attempts if x.status), default=0)
        before, state = state, evolve(rules, state, record)
        position, verdict = real.judge(position, offset, header_of(record))
        counted = verdict in (real.Verdict.COUNTS, real.Verdict.REPORT)
        if counted and not isinstance(record, Claim):
            stamp = real.Stamp(0, claim_id(record.claim), record.n)
            run = real.evolve(run, RUN, event_of(record, latest), stamp)
        where = f"{case.name}, walk {seed}, offset {offset}: {record} after {before}"
        _same_claim(state, position, where)
        if run is not None:
            _same_run(state, run, where)


def _overtakes(state: State, record: Record) -> bool:
    """A `never started` stored before its intent: what refold makes of it is tested elsewhere."""
    if not isinstance(record, Report) or record.what != SAYS_NEVER:
        return False
    return all(x.intent != (record.claim, record.n) for x in state.attempts if x.status)


def _same_claim(state: State, position: real.Position, where: str) -> None:
    ours = (claim_id(state.claim), state.epoch, state.n_next, state.broken, state.command_next)
    theirs = (
        position.claim_id,
        position.claim_epoch,
        position.n_next,
        position.claim_broken,
        position.command_next,
    )
    assert ours == theirs, where


def _same_run(state: State, run: real.RunState, where: str) -> None:
    slot = run.slots.get(SLOT)
    found = () if slot is None else slot.attempts
    known = [(a, x) for a, x in enumerate(state.attempts) if x.status]
    ours = [
        (
            a + 1,
            STATUS[x.status],
            claim_id(x.intent[0]),
            x.intent[1],
            {SAYS[says] for says in x.evidence},
            x.conflict,
            is_under_way(state, a),
        )
        for a, x in known
    ]
    theirs = [
        (
            x.number,
            x.status,
            x.claim_id,
            x.n,
            set(x.evidence),
            x.conflict_written,
            real.is_under_way(x, claim_id(state.claim)),
        )
        for x in found
    ]
    assert ours == theirs, where
    written = [a for a, x in known if x.conflict]
    red = {a + 1 for a in conflicts(Rules(), state) if a not in written}
    assert red == {number for _, number in run.red}, where
    if not written:
        stray = {(SAYS[says]) for _, _, says in excess(state)}
        assert stray == {outcome for _, _, outcome in run.stray}, where
    assert bool(state.cancels) == (run.cancel is not None), where
    assert state.ended == (run.ended is not None), where
