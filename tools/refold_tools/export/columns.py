"""The tables of an export: their columns, and rows made of records, runs and effects. Pure.

A released column keeps its name, kind and meaning; new ones are added at the end of a table.
"""

from typing import Any, NamedTuple

from refold_projections.fold import (
    LedgerEntry,
    RunState,
    Verdict,
    amounts_json,
    boundary,
)
from refold_schemas.codec import RecordHeader
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    CommandRejected,
    Event,
    EvidenceConflict,
    FindingRecorded,
    PartitionClaimed,
    RunBlocked,
    RunCancelled,
    RunCompleted,
    RunDiverged,
    RunFailed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerScheduled,
)
from refold_schemas.values import ErrorInfo
from refold_tools.export.encoding import body_text, value_text

TEXT, INT, TIME, BOOL = "text", "int", "time", "bool"


class Column(NamedTuple):
    """One column. `kind`: text, int (64 bits), time (milliseconds, UTC), bool; all may be null."""

    name: str
    kind: str
    doc: str


EVENTS = (
    Column("partition", INT, "partition of NS.events"),
    Column("offset", INT, "offset of the record in it; with `partition` the row's identity"),
    Column("at", TIME, "its owner's clock; the log's for records without a refold header"),
    Column("appended_at", TIME, "the log's clock: what --since and --until are about"),
    Column("run_id", TEXT, "the run; null for events of the partition"),
    Column("event", TEXT, "the event's name; null where its schema is not known"),
    Column("slot", TEXT, "the step's place in its run"),
    Column("step", TEXT, "the step's name, from the event or its slot"),
    Column("attempt", INT, "number of the attempt"),
    Column("generation", INT, "generation of the effect key, of an intent"),
    Column("policy", TEXT, "policy of an intent"),
    Column("effect_key", TEXT, "effect key of an intent, a report or a finding"),
    Column(
        "outcome",
        TEXT,
        "what became of it: completed, unrecordable, failed, in_doubt, absent, "
        "never_started, done, cancelled, diverged, blocked, conflict; a rejection's reason, a "
        "finding's status",
    ),
    Column("evidence", TEXT, "who says so: lookup, person, late_report, owner"),
    Column("reason", TEXT, "why, in a sentence"),
    Column("error_type", TEXT, "class of the error, where there is one"),
    Column("error_message", TEXT, "its message"),
    Column("run", TEXT, "name of the run function, of RunStarted"),
    Column("version", TEXT, "its version"),
    Column("timeout_ms", INT, "timeout of an intent, milliseconds"),
    Column("settle_ms", INT, "settle of an intent, milliseconds"),
    Column("due_at", TIME, "when a scheduled timer is due"),
    Column("model", TEXT, "model snapshot of a model call"),
    Column("input_tokens", INT, "tokens of its input"),
    Column("output_tokens", INT, "tokens of its output"),
    Column("price_usd_micros", INT, "its price, millionths of a dollar"),
    Column("stop_reason", TEXT, "why it stopped"),
    Column("command_id", TEXT, "the command that it decides"),
    Column("by", TEXT, "who asked for it"),
    Column("claim_id", TEXT, "claim that it was written under, hexadecimal"),
    Column("epoch", INT, "epoch of that claim"),
    Column("n", INT, "its number within the claim; of a report, that of its intent"),
    Column("size", INT, "bytes of key, value and header"),
    Column("counts", BOOL, "whether readers believe it; everything else is kept and marked"),
    Column("verdict", TEXT, "counts, claim, report, duplicate, fenced, broken, foreign"),
    Column("problem", TEXT, "why its body could not be read"),
    Column("body", TEXT, 'all fields as JSON; of a body that could not be read {"$raw": base64}'),
)
RUNS = (
    Column("run_id", TEXT, "the run; the row's identity"),
    Column("run", TEXT, "name of its run function"),
    Column("version", TEXT, "version it was started in"),
    Column("status", TEXT, "as in its boundary"),
    Column("needs", TEXT, "time, person, code or null"),
    Column("reason", TEXT, "why it stands there"),
    Column("partition", INT, "where it lives"),
    Column("started_at", TIME, "when it was started"),
    Column("changed_at", TIME, "its last event: what --since and --until are about"),
    Column("ended_at", TIME, "when it ended"),
    Column("event_count", INT, "its events"),
    Column("byte_count", INT, "their bytes"),
    Column("done_count", INT, "steps with an outcome"),
    Column("under_way_count", INT, "steps under way"),
    Column("in_doubt_count", INT, "steps in doubt"),
    Column("failed_count", INT, "steps that failed"),
    Column("conflict_count", INT, "slots whose evidence conflicts"),
    Column("finding_count", INT, "open findings of reconciliations"),
    Column("input", TEXT, "its input as JSON (docs/values.md)"),
    Column("result", TEXT, "its result as JSON, if it completed"),
    Column("error_type", TEXT, "what it failed with"),
    Column("error_message", TEXT, "its message"),
)
EFFECTS = (
    Column("effect_key", TEXT, "the key; the row's identity"),
    Column("run_id", TEXT, "the run"),
    Column("slot", TEXT, "the step's place in it"),
    Column("step", TEXT, "the step's name"),
    Column("policy", TEXT, "its policy"),
    Column("generation", INT, "generation of the key"),
    Column("attempts", INT, "attempts under it"),
    Column("outcome", TEXT, "done, failed, absent, denied, never_started, in_doubt, under_way"),
    Column("reported", TEXT, "what reports say of it, and conflict; a JSON list"),
    Column("amounts", TEXT, "declared amounts, as a JSON object of exact numbers"),
    Column("absent_until_proven", BOOL, "whether its absence is believed, not proven"),
    Column("first_at", TIME, "its first intent"),
    Column("last_at", TIME, "its last attempt or outcome: what --since and --until are about"),
)
TABLES = {"events": EVENTS, "runs": RUNS, "effects": EFFECTS}

Row = dict[str, Any]
"""Values by column; what is left out is null. Times are milliseconds since 1970 UTC."""


def event_row(
    partition: int,
    offset: int,
    append_ms: int,
    key: bytes | None,
    header: RecordHeader | None,
    verdict: Verdict,
    size: int,
    event: Event | None,
    name: str | None,
    problem: str | None,
    raw: bytes,
    counts: bool,
) -> Row:
    """A record of `NS.events` as a row."""
    row: Row = {
        "partition": partition,
        "offset": offset,
        "at": append_ms if header is None else header.at_ms,
        "appended_at": append_ms,
        "run_id": None if key is None else key.decode("utf-8", "backslashreplace"),
        "event": name,
        "size": size,
        "counts": counts,
        "verdict": verdict.name.lower(),
        "problem": problem,
    }
    if header is not None:
        row |= {"claim_id": header.claim_id.hex(), "epoch": header.epoch, "n": header.n}
    if event is None:
        from base64 import b64encode

        row["body"] = '{"$raw":"' + b64encode(raw).decode() + '"}'
        return row
    for field in ("slot", "attempt", "step", "effect_key", "command_id", "by"):
        found = getattr(event, field, None)
        if found is not None:
            row[field] = found
    if "step" not in row and "slot" in row:
        row["step"] = step_of(row["slot"])
    row.update(_particulars(event))
    row["body"] = body_text(event)
    return row


def step_of(slot: str) -> str:
    """The step's name in a slot.

    >>> step_of("gather#2[fraud]/check#1")
    'check'
    """
    return slot.rpartition("/")[2].partition("#")[0]


def _particulars(event: Event) -> Row:
    match event:
        case RunStarted():
            return {"run": event.run, "version": event.version, "by": event.started_by}
        case StepIntended():
            return {
                "generation": event.generation,
                "policy": event.policy,
                "timeout_ms": event.timeout_ms,
                "settle_ms": event.settle_ms,
            }
        case StepCompleted():
            row: Row = {"outcome": "completed" if event.unrecordable is None else "unrecordable"}
            if event.model is not None:
                used = event.model
                row |= {
                    "model": used.snapshot,
                    "input_tokens": used.input_tokens,
                    "output_tokens": used.output_tokens,
                    "price_usd_micros": used.price_usd_micros,
                    "stop_reason": used.stop_reason,
                }
            return row
        case StepFailed() | RunFailed():
            return {"outcome": "failed"} | _error(event.error)
        case StepInDoubt():
            return {"outcome": "in_doubt", "reason": event.reason}
        case StepResolved():
            told = {"outcome": event.verdict, "evidence": event.evidence, "reason": event.why}
            return told | _error(event.error)
        case AttemptReported():
            return {"outcome": event.outcome, "by": event.reporter} | _error(event.error)
        case EvidenceConflict():
            return {"outcome": "conflict", "evidence": event.evidence}
        case FindingRecorded():
            return {"outcome": event.status, "reason": event.detail}
        case TimerScheduled():
            return {"due_at": event.deadline_ms}
        case RunDiverged():
            return {"outcome": "diverged", "reason": event.detail}
        case RunBlocked():
            return {"outcome": "blocked", "reason": event.detail}
        case RunCompleted():
            return {"outcome": "completed"}
        case RunCancelled():
            return {"outcome": "cancelled", "reason": event.reason}
        case CommandRejected():
            return {"outcome": event.reason, "reason": event.detail}
        case PartitionClaimed():
            return {"by": event.owner}
        case AmountsDeclared():
            return {}
        case _:
            return {"reason": getattr(event, "why", None)}


def _error(error: ErrorInfo | None) -> Row:
    return {} if error is None else {"error_type": error.type, "error_message": error.message}


def run_row(state: RunState, partition: int, claim_id: bytes) -> Row:
    """A run as a row, as its boundary is under the claim."""
    seen = boundary(state, claim_id)
    ended = state.ended
    row: Row = {
        "run_id": state.run_id,
        "run": state.run,
        "version": state.version,
        "status": seen.status,
        "needs": seen.needs,
        "reason": seen.reason,
        "partition": partition,
        "started_at": state.started_ms,
        "changed_at": state.changed_ms,
        "event_count": state.event_count,
        "byte_count": state.byte_count,
        "done_count": len(seen.done),
        "under_way_count": len(seen.under_way),
        "in_doubt_count": len(seen.in_doubt),
        "failed_count": len(seen.failed),
        "conflict_count": len(seen.conflicts),
        "finding_count": sum(one.is_open for one in state.findings.values()),
        "input": value_text(state.input),
    }
    if ended is not None:
        row |= {"ended_at": ended.at_ms, "result": value_text(ended.result)}
        row |= _error(ended.error)
    return row


def effect_row(entry: LedgerEntry) -> Row:
    """An effect of the ledger as a row."""
    import json

    return {
        "effect_key": entry.effect_key,
        "run_id": entry.run_id,
        "slot": entry.slot,
        "step": entry.step,
        "policy": entry.policy,
        "generation": entry.generation,
        "attempts": entry.attempts,
        "outcome": entry.outcome,
        "reported": json.dumps(entry.reported),
        "amounts": amounts_json(entry.amounts),
        "absent_until_proven": entry.absent_until_proven,
        "first_at": entry.first_ms,
        "last_at": entry.last_ms,
    }


__all__ = [
    "EFFECTS",
    "EVENTS",
    "RUNS",
    "TABLES",
    "Column",
    "Row",
    "effect_row",
    "event_row",
    "run_row",
]
