"""When evidence contradicts what was settled: a function of two sets, so order cannot matter.

Source: design, section 3.1, rule 7 and section 6, "Who speaks for what".
"""

from refold_projections.fold.state import DONE, FAILED, NEGATIVE, NEVER_STARTED, Attempt, Slot


def _excluded(attempt: Attempt) -> bool:
    """Whether it is known by itself that this attempt did not act."""
    if attempt.status in (NEVER_STARTED, FAILED):
        return True
    return bool(attempt.evidence) and "completed" not in attempt.evidence


def conflicts(slot: Slot) -> tuple[int, ...]:
    """Attempts whose evidence contradicts their settlement, where nobody has written it down."""
    told = [a for a in slot.attempts if a.status in NEGATIVE and "completed" in a.evidence]
    for done in (a for a in slot.attempts if a.status == DONE):
        if all(_excluded(a) for a in slot.attempts if a.generation == done.generation):
            told.append(done)
    return tuple(sorted(a.number for a in told if not a.conflict_written))
