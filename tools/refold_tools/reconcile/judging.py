"""What follows from one effect's record and one answer of the far system. Pure."""

import json
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid5

from refold_projections.fold import DONE, IN_DOUBT, Finding, LedgerEntry, RunState, Slot
from refold_schemas.commands import TEXT_CHARS_MAX
from refold_schemas.errors import RefoldError
from refold_schemas.errors.shell import shell_line
from refold_schemas.values import REFOLD, Value, values_differ

MISSING, UNEXPECTED, DIFFERENT = "missing", "unexpected", "different"
CONFLICT, SETTLEABLE = "conflict", "settleable"
KINDS = (MISSING, UNEXPECTED, DIFFERENT, CONFLICT, SETTLEABLE)
"""missing: done here, absent there. unexpected: it did not happen here, and is there. different:
done here and there, with another result. conflict: the record contradicts itself. settleable: a
person is asked here, and the far system can say."""
RESULT_MAX = 500
"""Characters of a result that is written out in a command to be typed."""
MARGIN = 1.01
"""Clocks of two machines that count the same minute."""

_NOT_DONE = {
    "failed": "failed",
    "absent": "was found absent",
    "denied": "did not happen, as a person has said,",
    "never_started": "never started",
}


class Answer(NamedTuple):
    """What a lookup said: found (value), absent, rejected (error), or none (what was seen)."""

    kind: str
    value: Any = None


class Recorded(NamedTuple):
    """The result on record; `value` None where there is none, and `why_not` says so."""

    value: Value | None
    why_not: str = ""


class Judged(NamedTuple):
    """What was found of one effect. `agrees`: the kinds that are surely not so now.

    `unknown` says what could not be compared, empty where everything was.
    """

    findings: tuple[Finding, ...]
    agrees: frozenset[str]
    unknown: str


def finding_id(run_id: str, effect_key: str, kind: str) -> str:
    """The id of a finding: the same whenever the same is found again, in any process.

    >>> finding_id("order-48211", "6fa1", "missing")
    '4b2b65a5-aba4-5c9b-b93d-ad8db91156cb'
    """
    return str(uuid5(REFOLD, json.dumps(["finding", 1, run_id, effect_key, kind])))


def settled_ms(slot: Slot, entry: LedgerEntry) -> int:
    """From when on the far system's answer says something: its last attempt, timeout and settle."""
    attempts = [a for a in slot.attempts if a.generation == entry.generation]
    waits = max(a.timeout_ms + a.settle_ms for a in attempts)
    return entry.last_ms + round(waits * MARGIN)


def judge(
    state: RunState,
    slot: Slot,
    entry: LedgerEntry,
    answer: Answer | None,
    recorded: Recorded,
    returns: object,
    now_ms: int,
) -> Judged:
    """What an answer means; `answer` None: the far system cannot be asked.

    `returns` is the type that the step declares today, into which both results are read. Pending,
    an exception or rubbish is no answer: then nothing is found and nothing agrees.
    """
    found: list[Finding] = []
    agrees: set[str] = set()
    unknown = ""
    if answer is not None and answer.kind != "none":
        difference, unknown = None, ""
        if entry.outcome == DONE and answer.kind == "found":
            difference, unknown = _difference(recorded, answer.value, returns)
        about = _finding(state, slot, entry, answer, difference, now_ms)
        if about is not None:
            found.append(about)
        agrees = {MISSING, UNEXPECTED, SETTLEABLE} | (set() if unknown else {DIFFERENT})
        agrees -= {one.kind for one in found}
    elif answer is not None:
        unknown = str(answer.value)
    proven = entry.outcome == DONE and not entry.absent_until_proven
    if "conflict" in entry.reported:
        if DIFFERENT in agrees and proven and not found and answer and answer.kind == "found":
            agrees.add(CONFLICT)  # the far system has one effect under this key, and the same one
        else:
            found.append(_conflict(entry, answer))
    elif agrees:
        agrees.add(CONFLICT)
    return Judged(tuple(found), frozenset(agrees), unknown)


def _difference(recorded: Recorded, value: object, returns: object) -> tuple[str | None, str]:
    """How the results differ, and what kept them from being compared."""
    if recorded.value is None:
        return None, f"its result was not compared: {recorded.why_not}"
    try:
        said = values_differ(recorded.value, value, returns)
    except RefoldError as error:  # what was found is no value that could ever be recorded
        return None, f"its result was not compared: {error.message}"
    except Exception as error:  # comparing them is code of the author's
        return None, f"its result was not compared: {type(error).__name__}"
    if said is None:
        return None, ""
    return f"result{said}" if said[:1] in ".[" else f"result {said}", ""


def _finding(
    state: RunState,
    slot: Slot,
    entry: LedgerEntry,
    answer: Answer,
    difference: str | None,
    now_ms: int,
) -> Finding | None:
    """What record and answer come to; None where they agree."""
    name, key = entry.slot, entry.effect_key
    there = {"absent": "does not have it", "rejected": "has refused it"}.get(answer.kind, "has it")
    if entry.outcome == DONE:
        if answer.kind != "found":
            detail = (
                f"{name} is done here (attempt {entry.attempt}), and under its key {key} the far "
                f"system {there}: find out whether it was taken back, and do it there under this "
                "key if it is wanted"
            )
            return _made(entry, MISSING, detail)
        if difference is not None:
            detail = (
                f"{name} is done here and there under key {key}, with another result (recorded → "
                f"found): {difference}; find out which is right, and correct it in the far system"
            )
            return _made(entry, DIFFERENT, detail)
        return None
    if entry.outcome in _NOT_DONE:
        if answer.kind != "found":
            return None
        # Without the value: what a far system tells of it may change from look to look.
        words = _NOT_DONE[entry.outcome]
        detail = f"{name} {words} here, and the far system has it under key {key}"
        if _retries_under_its_key(state, slot, entry, now_ms):
            command = shell_line("refold retry", entry.run_id, options=("--slot", name))
            detail += "; a retry repeats it under this key, which is answered with what is there"
            return _made(entry, UNEXPECTED, detail, command)
        return _made(entry, UNEXPECTED, f"{detail}; undo it there if it is not wanted")
    if entry.outcome == IN_DOUBT and slot.escalated:
        resolve = partial(shell_line, "refold resolve", entry.run_id, name)
        if answer.kind == "found":
            detail = f"{name} waits for a person, and under key {key} the far system has it"
            result = _result_text(answer.value)
            command = resolve(options=("--happened", "--result", result))
            return _made(entry, SETTLEABLE, detail, command)
        detail = f"{name} waits for a person, and under key {key} the far system {there}"
        return _made(entry, SETTLEABLE, detail, resolve(options=("--did-not-happen",)))
    return None


def _retries_under_its_key(state: RunState, slot: Slot, entry: LedgerEntry, now_ms: int) -> bool:
    """Whether a retry of the failed run tries this slot again, under a key that surely lives."""
    outcome = slot.outcome
    if state.ended is None or state.ended.status != "failed" or outcome is None:
        return False
    if outcome.kind != "failed" or outcome.order != state.order_next - 1:
        return False
    lives = slot.key_ttl_ms is None or now_ms < slot.key_since_ms + slot.key_ttl_ms
    return lives and not slot.fresh_key and entry.generation == slot.generation


def _conflict(entry: LedgerEntry, answer: Answer | None) -> Finding:
    facts = [fact.replace("_", " ") for fact in entry.reported if fact != "conflict"]
    told = f"reported: {', '.join(facts)}" if facts else "a lookup found it later"
    asked = ""
    if answer is not None and answer.kind != "none":
        asked = (
            f", and the far system {'has' if answer.kind == 'found' else 'does not have'} it now"
        )
    detail = (
        f"evidence contradicts what is on record of {entry.slot} under key {entry.effect_key}: "
        f"settled as {entry.outcome.replace('_', ' ')}, {told}{asked}; compare "
        f"`{shell_line('refold history', entry.run_id)}` with the far system, and correct it there"
    )
    return _made(entry, CONFLICT, detail)


def _made(entry: LedgerEntry, kind: str, detail: str, command: str | None = None) -> Finding:
    made = finding_id(entry.run_id, entry.effect_key, kind)
    accept = f"refold reconcile --accept {made} --why TEXT"
    if command is None or len(command) > TEXT_CHARS_MAX:
        command = accept
    detail = detail if len(detail) <= TEXT_CHARS_MAX else detail[: TEXT_CHARS_MAX - 1] + "…"
    return Finding(made, kind, entry.slot, entry.step, entry.effect_key, detail, command, "open", 0)


def _result_text(value: object) -> str:
    """A result as the JSON that `refold resolve --result` takes; `JSON` where it is too long."""
    from pydantic_core import to_json

    try:
        text = to_json(value, by_alias=False, inf_nan_mode="constants").decode()
    except Exception:  # whatever the far system's client made of its answer
        return "JSON"
    return text if len(text) <= RESULT_MAX and text.isprintable() else "JSON"


__all__ = [
    "CONFLICT",
    "DIFFERENT",
    "KINDS",
    "MISSING",
    "SETTLEABLE",
    "UNEXPECTED",
    "Answer",
    "Judged",
    "Recorded",
    "finding_id",
    "judge",
    "settled_ms",
]
