"""One run as its page shows it: from the tables' rows, or from its folded state. Pure.

Both sources give rows of the same shape, that of the views `v1_runs`, `v1_steps`, `v1_attempts` and
`v1_timers`; everything that the page says is made of those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from functools import partial
from typing import Any

from refold.client.questions import BoundaryAt
from refold.gateway.page import timeline
from refold.gateway.page.showing import from_ms
from refold_projections.fold import Slot, sentence
from refold_projections.fold.boundary import EFFECTLESS, FOR_A_PERSON, Boundary
from refold_projections.fold.state import UNSETTLED
from refold_schemas.errors.shell import shell_line
from refold_schemas.values import Policy
from refold_schemas.values.plain import plain_value

Row = Mapping[str, Any]

POLICY_WORDS = {
    "escalate": "a person must say what happened; the run stops here until then",
    "keyed": "its owner repeats it under the same key while the key surely lives, and asks a "
    "lookup or a person after that",
    "resolvable": "its owner looks it up by this key, and believes an absence only after timeout "
    "and settle",
    "re_executable": "it changes nothing outside, so it is run again",
}
NEEDS_WORDS = {"person": "a person", "code": "other code", "time": "time"}
OPEN_STATUSES = UNSETTLED | {"under_way"}
"""Of attempts whose outcome is not known, in the words of both sources."""
NO_REASON = "the process that ran it ended before its outcome was recorded"
PATIENCE = 1.01
"""Source: design, section 6, When "absent" may be believed."""


def with_needs(run: Row) -> dict[str, Any]:
    """The run's row, with what it needs in words."""
    return {**run, "needs_words": NEEDS_WORDS.get(run["needs"] or "", "nothing")}


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run in the shape of the views, and what it is from."""

    run: dict[str, Any]
    steps: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    timers: list[dict[str, Any]]
    remaining: list[str] | None
    from_log: bool


def rows_of_log(seen: BoundaryAt, zone: tzinfo, today: date) -> RunRows:
    """The rows as the tables would have them, from the state at the log's end."""
    state, boundary = seen.state, seen.boundary
    ended, error = state.ended, state.ended.error if state.ended else None
    doubts = [one.since_ms for one in boundary.in_doubt]
    run = {
        "run_id": state.run_id,
        "run": state.run,
        "version": state.version,
        "status": boundary.status,
        "reason": boundary.reason,
        "needs": boundary.needs,
        "sentence": sentence(boundary, zone, today),
        "partition": seen.partition,
        "started_at": from_ms(state.started_ms),
        "changed_at": from_ms(state.changed_ms),
        "ended_at": None if ended is None else from_ms(ended.at_ms),
        "wakes_at": None if boundary.wakes_ms is None else from_ms(boundary.wakes_ms),
        "event_count": state.event_count,
        "byte_count": state.byte_count,
        "input": plain_value(state.input),
        "result": plain_value(ended.result) if ended else None,
        "error_type": error.type if error else None,
        "error_message": error.message if error else None,
        "in_doubt_since": from_ms(min(doubts)) if doubts else None,
    }
    slots = sorted(state.slots.values(), key=lambda slot: slot.born)
    shown = [slot for slot in slots if slot.attempts or slot.step not in EFFECTLESS]
    attempts = [_attempt_row(slot, n) for slot in shown for n in range(len(slot.attempts))]
    timers = [
        {
            "timer_id": one.timer_id,
            "kind": one.kind,
            "slot": one.slot,
            "due_at": from_ms(one.deadline_ms),
        }
        for one in sorted(state.timers.values(), key=lambda timer: timer.deadline_ms)
    ]
    return RunRows(
        run,
        [_step_row(slot, boundary) for slot in shown],
        attempts,
        timers,
        None if boundary.remaining is None else list(boundary.remaining),
        from_log=True,
    )


def _step_row(slot: Slot, boundary: Boundary) -> dict[str, Any]:
    outcome = slot.outcome
    last = slot.attempts[-1] if slot.attempts else None
    error = outcome.error if outcome else last.reported_error if last else None
    since = slot.unsettled[0].at_ms if slot.unsettled else last.at_ms if last else None
    return {
        "slot": slot.name,
        "step": slot.step,
        "born": slot.born,
        "policy": slot.policy or Policy.RE_EXECUTABLE.value,
        "status": _status(slot, boundary),
        "attempt": slot.tried or 1,
        "since": None if since is None else from_ms(since),
        "at": None if outcome is None else from_ms(outcome.at_ms),
        "effect_key": slot.effect_key,
        "arguments": {one.name: plain_value(one.value) for one in slot.arguments},
        "result": plain_value(outcome.value) if outcome else None,
        "error_type": error.type if error else None,
        "error_message": error.message if error else None,
        "escalated": slot.escalated,
        "absent_until_proven": slot.absent_until_proven,
        "conflicted": slot.conflicted,
    }


def _status(slot: Slot, boundary: Boundary) -> str:
    for status, entries in (
        ("done", boundary.done),
        ("under_way", boundary.under_way),
        ("in_doubt", boundary.in_doubt),
        ("failed", boundary.failed),
    ):
        if any(entry.slot == slot.name for entry in entries):
            return status
    return "not_started"


def _attempt_row(slot: Slot, number: int) -> dict[str, Any]:
    one = slot.attempts[number]
    return {
        "slot": slot.name,
        "attempt": one.number,
        "status": one.status,
        "began_at": from_ms(one.at_ms),
        "timeout_ms": one.timeout_ms,
        "settle_ms": one.settle_ms,
        "generation": one.generation,
        "reason": one.reason,
        "evidence": sorted(one.evidence),
        "claim_id": one.claim_id.hex(),
    }


# ---- what the page says of it


def picture_of(
    rows: RunRows, now: datetime, claim: tuple[str, datetime] | None
) -> timeline.Picture:
    """The timeline. `claim`: the id of the partition's latest one and when it was written."""
    by_slot: dict[str, list[Row]] = {}
    for attempt in rows.attempts:
        by_slot.setdefault(attempt["slot"], []).append(attempt)
    spans = []
    for step in rows.steps:
        attempts = sorted(by_slot.get(step["slot"], ()), key=lambda one: int(one["attempt"]))
        if not attempts and step["at"] is not None:
            spans.append(
                timeline.Span(
                    step["slot"], step["attempt"] or 1, step["status"], step["at"], step["at"]
                )
            )
        for number, one in enumerate(attempts):
            is_last = number == len(attempts) - 1
            ended = step["at"] if is_last else attempts[number + 1]["began_at"]
            status = one["status"]
            if status in OPEN_STATUSES or (
                is_last and step["status"] in ("done", "in_doubt", "under_way")
            ):
                status = step["status"] if is_last else "in_doubt"
            spans.append(
                timeline.Span(
                    step["slot"],
                    one["attempt"],
                    status,
                    one["began_at"],
                    ended,
                    str(one["claim_id"] or ""),
                )
            )
    end = rows.run["ended_at"] or max(
        [now, *(one.began for one in spans)] if _is_open(rows) else [rows.run["changed_at"]]
    )
    return timeline.picture(spans, rows.run["started_at"], end, claim)


def _is_open(rows: RunRows) -> bool:
    return any(one["status"] in ("in_doubt", "under_way") for one in rows.steps)


def doubts_of(
    rows: RunRows, given: Mapping[str, str], claim: tuple[str, datetime] | None = None
) -> list[dict[str, Any]]:
    """A card for each step in doubt. `given`: a form that was refused, to be shown again.

    `claim`: as for `picture_of`. An owner waits for calls of those before it from its own claim on.
    """
    cards = []
    doubtful = [one for one in rows.steps if one["status"] == "in_doubt"]
    for number, step in enumerate(doubtful):
        attempts = [one for one in rows.attempts if one["slot"] == step["slot"]]
        open_ones = [one for one in attempts if one["status"] in OPEN_STATUSES] or attempts[-1:]
        first = open_ones[0] if open_ones else None
        reasons = [one["reason"] for one in reversed(open_ones) if one["reason"]]
        wait_ms = max(
            ((one["timeout_ms"] or 0) + (one["settle_ms"] or 0) for one in open_ones), default=0
        )
        wait_ms = round(wait_ms * PATIENCE)
        since = first["began_at"] if first else step["since"]
        latest = max((one["began_at"] for one in open_ones), default=since)
        if claim is not None and latest is not None:
            latest = max(latest, claim[1])
        policy = step["policy"] or ""
        facts = sorted({fact for one in attempts for fact in one["evidence"] or ()})
        is_given = given.get("slot") == step["slot"]
        resolve = partial(shell_line, "refold resolve", rows.run["run_id"], step["slot"])
        cards.append(
            {
                "id": f"doubt-{number + 1}",
                "slot": step["slot"],
                "step": step["step"],
                "attempt": first["attempt"] if first else step["attempt"],
                "attempt_last": max(
                    (one["attempt"] for one in attempts), default=step["attempt"] or 1
                ),
                "attempts_open": len(open_ones),
                "since": since,
                "reason": reasons[0] if reasons else NO_REASON,
                "effect_key": step["effect_key"] or "",
                "policy": policy,
                "policy_words": POLICY_WORDS.get(policy, "its owner decides by it"),
                "timeout_ms": first["timeout_ms"] if first else None,
                "settle_ms": first["settle_ms"] if first else None,
                "evidence": [fact.replace("_", " ") for fact in facts],
                "absent_until_proven": step["absent_until_proven"],
                "arguments": step["arguments"],
                "wait_ms": wait_ms,
                "believed_at": latest + timedelta(milliseconds=wait_ms) if latest else None,
                "self_settling": not step["escalated"] and policy != Policy.ESCALATE.value,
                "command_happened": resolve(options=("--happened", "--result", "JSON")),
                "command_absent": resolve(options=("--did-not-happen",)),
                "given_result": given.get("result", "") if is_given else "",
                "given_why": given.get("why", "") if is_given else "",
                "open": ("happened" if given.get("happened") == "yes" else "absent")
                if is_given
                else "",
            }
        )
    return cards


def parked_of(run: Row) -> dict[str, Any] | None:
    """The card of a run that stands still until somebody acts, or has failed."""
    status, detail = run["status"], run["reason"] or ""
    command = shell_line("refold retry", run["run_id"])
    if status == "diverged":
        lead, parts = difference(detail)
        return {
            "title": "The code and the record differ",
            "lead": lead,
            "parts": parts,
            "detail": detail,
            "words": "Nothing was executed and nothing is lost. It goes on by itself when a worker "
            "with matching code owns it; or let the present code compare again.",
            "button": "Compare again",
            "fresh": False,
            "command": command,
        }
    if status == "blocked":
        reason = detail.partition(":")[0]
        mends = "Repair the cause, then let it go on." if reason in FOR_A_PERSON else ""
        return {
            "title": "No live worker can continue it as it is",
            "lead": "",
            "parts": [],
            "detail": detail,
            "words": mends
            or "Deploy code that can continue it; then a worker with it goes on by itself.",
            "button": "Let it go on",
            "fresh": False,
            "command": command,
        }
    if status == "failed":
        return {
            "title": "The run has failed",
            "lead": "",
            "parts": [],
            "detail": detail or f"{run['error_type']}: {run['error_message']}",
            "words": "Nothing of it moves by itself. Another try begins at the failure that ended "
            "it; what is done stays done.",
            "button": "Try it again",
            "fresh": True,
            "command": command,
        }
    return None


def difference(detail: str) -> tuple[str, list[dict[str, str]]]:
    """A divergence as the engine says it, taken apart: what differs, recorded and now.

    >>> difference("step 5 charge: argument pence 4160 → 4610")
    ('step 5 charge', [{'name': 'argument pence', 'was': '4160', 'now': '4610'}])
    >>> difference("step 2: the code asks for mail, the record has charge")
    ('', [])
    """
    lead, colon, rest = detail.partition(": ")
    parts: list[dict[str, str]] = []
    for one in rest.split("; ") if colon else ():
        if one.count(" → ") != 1:  # a value has one of its own: nobody could tell them apart
            return "", []
        before, _, now = one.partition(" → ")
        words = before.split(" ")
        name = " ".join(words[:2]) if words[0] == "argument" and len(words) > 2 else ""
        was = before[len(name) :].strip() if name else before
        parts.append({"name": name, "was": was, "now": now})
    return (lead, parts) if parts else ("", [])
