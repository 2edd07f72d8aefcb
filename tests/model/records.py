"""What one partition's log holds in the model: claims, events under the claim rule, and reports.

A record carries only what a rule reads: the header (`claim`, `n`, `command_next`) and the attempt.
"""

from typing import Final, NamedTuple, TypeAlias


class Claim(NamedTuple):
    """`PartitionClaimed`; `epoch` is that of the latest claim its writer had read, plus one."""

    claim: int
    epoch: int


class Event(NamedTuple):
    """An event under the claim rule; `attempt` is -1 where none is meant."""

    kind: str
    claim: int
    n: int
    attempt: int
    command_next: int


class Report(NamedTuple):
    """`AttemptReported`, outside the claim rule; `(claim, n)` names the intent it is about."""

    what: str
    claim: int
    n: int
    attempt: int


Record: TypeAlias = Claim | Event | Report

RUN_STARTED: Final = "RunStarted"
INTENDED: Final = "StepIntended"
INTENDED_FRESH: Final = "StepIntended under a fresh key"
COMPLETED: Final = "StepCompleted"
FAILED: Final = "StepFailed"
IN_DOUBT: Final = "StepInDoubt"
RESOLVED_DONE: Final = "StepResolved (done)"
RESOLVED_ABSENT: Final = "StepResolved (absent)"
RESOLVED_NEVER: Final = "StepResolved (never started)"
RESOLVED_FAILED: Final = "StepResolved (failed, from a report)"
RESOLVED_REJECTED: Final = "StepFailed (rejected, from the lookup)"
PERSON_DONE: Final = "StepResolved (a person: it happened)"
PERSON_DENIED: Final = "StepResolved (a person: it did not happen)"
CONFLICT: Final = "EvidenceConflict"
CANCEL_REQUESTED: Final = "RunCancelRequested"
CANCELLED: Final = "RunCancelled"
REJECTED: Final = "CommandRejected"

INTENTS: Final = (INTENDED, INTENDED_FRESH)

# What a report says of its attempt. One letter each: a set of them is a short sorted string.
SAYS_COMPLETED: Final = "c"
SAYS_FAILED: Final = "f"
SAYS_NEVER: Final = "n"
SAYS_WORDS: Final = {
    SAYS_COMPLETED: "completed",
    SAYS_FAILED: "failed",
    SAYS_NEVER: "never started",
}
