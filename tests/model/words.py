"""A trace in plain words: one line for each thing that happened."""

from model.explorer import Result
from model.records import SAYS_WORDS, Claim, Event, Record, Report
from model.transitions import CUT, DECIDES, Action, Protocol
from model.world import Call, Resolve


def record_words(record: Record) -> str:
    """One record of the log."""
    match record:
        case Claim():
            return f"PartitionClaimed (claim {record.claim}, epoch {record.epoch})"
        case Report():
            return (
                f"AttemptReported ({SAYS_WORDS[record.what]}: attempt {record.attempt}, "
                f"intent {record.claim}/{record.n})"
            )
        case Event():
            attempt = f" of attempt {record.attempt}" if record.attempt >= 0 else ""
            return f"{record.kind}{attempt} (claim {record.claim}, n {record.n})"


def action_words(protocol: Protocol, action: Action) -> str:
    """One step of a trace: who, what, and which records or attempt it was about."""
    name, claim, detail = action
    who = f"worker with claim {claim}: " if claim >= 0 else ""
    return f"{who}{name}{_detail_words(protocol, name, detail)}"


def _detail_words(protocol: Protocol, name: str, detail: object) -> str:
    match detail:
        case None:
            return ""
        case Resolve():
            answer = "it happened" if detail.happened else "it did not happen"
            when = "" if detail.waited else ", before the wait is over"
            return f": {answer} ({detail.attempts_seen} attempts seen{when})"
        case Call():
            return f" attempt {detail.attempt} (intent {detail.claim}/{detail.n})"
        case int():
            return f" (attempt {detail})"
        case (tuple() as batch, str(why)) if name == DECIDES:
            return f" {_batch_words(protocol, batch)}, because: {why}"
        case tuple():
            lost = ", its last record is lost" if name == CUT else ""
            return f"{lost}: {_batch_words(protocol, detail)}"
        case _:
            return f" {detail}"


def _batch_words(protocol: Protocol, batch: tuple[int, ...]) -> str:
    return " + ".join(record_words(protocol.interned.records[number]) for number in batch)


def result_words(protocol: Protocol, result: Result) -> list[str]:
    """The trace of a result, numbered; empty if nothing broke."""
    return [f"{k:4d}. {action_words(protocol, action)}" for k, action in enumerate(result.trace, 1)]
