"""Who speaks for what: one attempt, or all of those under a key. Source: design, section 6."""

import pytest

from refold_projections.fold import RunState, Stamp, evolve
from refold_projections.fold.state import ABSENT, IN_DOUBT, NEVER_STARTED, OPEN
from refold_schemas.events import RunEvent, RunStarted, StepInDoubt, StepIntended, StepResolved
from refold_schemas.values import encode_value

FIRST, SECOND = b"1" * 16, b"2" * 16
SLOT = "charge#1"


def intent(attempt: int) -> StepIntended:
    return StepIntended(
        SLOT, "charge", attempt, 0, (), bytes(32), "one-key", "keyed", 1_000, 0, None
    )


def verdict(attempt: int, word: str, evidence: str) -> StepResolved:
    return StepResolved(SLOT, attempt, word, evidence, None, None, False, None, None, None)


def folded(*told: tuple[RunEvent, bytes]) -> RunState:
    """A run after its start and `told`: events, each under a claim."""
    state = evolve(
        None,
        "run",
        RunStarted("order", "1", encode_value(None), bytes(32), "command", "tester"),
        Stamp(0, FIRST, 0),
    )
    for n, (event, claim_id) in enumerate(told, 1):
        state = evolve(state, "run", event, Stamp(n, claim_id, n))
    assert state is not None
    return state


TWO_ATTEMPTS = (
    (intent(1), FIRST),
    (StepInDoubt(SLOT, 1, "no answer", False), SECOND),
    (intent(2), SECOND),
)


@pytest.mark.parametrize(
    ("event", "statuses"),
    [
        (verdict(2, "never_started", "owner"), [IN_DOUBT, NEVER_STARTED]),
        (verdict(1, "never_started", "late_report"), [NEVER_STARTED, OPEN]),
        (verdict(2, "failed", "late_report"), [IN_DOUBT, "failed"]),
        (verdict(2, "absent", "lookup"), [ABSENT, ABSENT]),
    ],
    ids=["the second never started", "the first never did", "the second failed", "absent"],
)
def test_a_word_for_an_attempt_leaves_the_others_of_its_key_as_they_are(
    event: StepResolved, statuses: list[str]
) -> None:
    state = folded(*TWO_ATTEMPTS, (event, SECOND))
    assert [a.status for a in state.slots[SLOT].attempts] == statuses
    assert (SLOT in state.open_slots) == any(s in (OPEN, IN_DOUBT) for s in statuses)
