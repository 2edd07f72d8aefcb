"""The model's records as refold's own, so that refold's fold can read them."""

from typing import Final

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
    RUN_STARTED,
    SAYS_COMPLETED,
    SAYS_FAILED,
    SAYS_NEVER,
    Claim,
    Event,
    Record,
    Report,
)
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, KIND_REPORT, RecordHeader
from refold_schemas.events import (
    AttemptReported,
    CommandRejected,
    EvidenceConflict,
    RunCancelled,
    RunCancelRequested,
    RunEvent,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refold_schemas.values import ErrorInfo, Value, encode_value

RUN: Final = "run-1"
SLOT: Final = "charge#1"
SAYS: Final = {
    SAYS_COMPLETED: "completed",
    SAYS_FAILED: "failed",
    SAYS_NEVER: "never_started",
}
_RESOLVED: Final = {
    RESOLVED_DONE: ("done", "lookup"),
    RESOLVED_ABSENT: ("absent", "lookup"),
    RESOLVED_NEVER: ("never_started", "late_report"),
    RESOLVED_FAILED: ("failed", "late_report"),
    PERSON_DONE: ("done", "person"),
    PERSON_DENIED: ("absent", "person"),
}


def claim_id(claim: int) -> bytes:
    """The 16 bytes of a claim of the model; -1, no claim, is all zeros."""
    return (claim + 1).to_bytes(16, "big")


def header_of(record: Record) -> RecordHeader:
    """What the claim rule needs of a record."""
    match record:
        case Claim():
            return RecordHeader(KIND_CLAIM, claim_id(record.claim), record.epoch, 0, 0, 0)
        case Report():
            return RecordHeader(KIND_REPORT, claim_id(record.claim), 0, record.n, 0, 0)
        case Event():
            commands = record.command_next
            return RecordHeader(KIND_EVENT, claim_id(record.claim), 0, record.n, 0, commands)


def run_started() -> RunStarted:
    """The event by which the run of a case exists."""
    return RunStarted("charge-once", "1", _value(), bytes(32), "start", "somebody")


def event_of(record: Event | Report, generation: int) -> RunEvent:
    """The event; `generation` is that of the key of the latest intent before it."""
    a = record.attempt + 1  # attempts are counted from one
    if isinstance(record, Report):
        return AttemptReported(SLOT, a, "key", SAYS[record.what], None, None, "process")
    kind = record.kind
    if kind in INTENTS:
        fresh = generation + (kind == INTENDED_FRESH)
        return StepIntended(
            SLOT, "charge", a, fresh, (), b"", f"key-{fresh}", "keyed", 1000, 1000, None
        )
    if kind == COMPLETED:
        return StepCompleted(SLOT, a, _value(), None, None, None, None, None)
    if kind == FAILED:
        return StepFailed(SLOT, a, _error(), False, False, None, None, None)
    if kind == IN_DOUBT:
        return StepInDoubt(SLOT, a, "timeout", False)
    if kind in _RESOLVED:
        verdict, evidence = _RESOLVED[kind]
        result = _value() if verdict == "done" else None
        error = _error() if verdict == "failed" else None
        return StepResolved(SLOT, a, verdict, evidence, result, error, False, None, None, None)
    if kind == CONFLICT:
        return EvidenceConflict(SLOT, a, "absent", "completed")
    if kind == RUN_STARTED:
        return run_started()
    if kind == CANCEL_REQUESTED:
        return RunCancelRequested("somebody", "why", "cancel")
    if kind == CANCELLED:
        return RunCancelled("nothing is open")
    assert kind == REJECTED, f"no event of refold for {kind}"
    return CommandRejected("cancel", "CancelRun", 0, "duplicate", "known", None)


def _value() -> Value:
    return encode_value(None)


def _error() -> ErrorInfo:
    return ErrorInfo("CardDeclined", "bank:CardDeclined", "declined", None)
