"""The operator's sentence: a pure function of boundary, time zone and today's date."""

from datetime import date, tzinfo
from typing import Final

from refold_projections.fold.boundary import Boundary
from refold_projections.fold.calendar import on_calendar

NEAR_MS: Final = 3_600_000
_WORDS: Final = tuple(
    "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen "  # noqa: SIM905
    "fifteen sixteen seventeen eighteen nineteen twenty".split()
)


def count_words(number: int, noun: str) -> str:
    """A count as people write it.

    >>> [count_words(number, "step") for number in (6, 1, 0, 41)]
    ['six steps', 'one step', 'no steps', '41 steps']
    """
    word = _WORDS[number] if number < len(_WORDS) else f"{number:,}"
    return f"{word} {noun}{'' if number == 1 else 's'}"


def moment(at_ms: int, zone: tzinfo, today: date) -> str:
    """A time of day today, else with its date: `14:07`, `2026-08-08 14:07`."""
    at = on_calendar(at_ms, zone)
    return f"{at:%H:%M}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}"


def moment_near(at_ms: int, zone: tzinfo, now_ms: int) -> str:
    """The same, with seconds where it is within an hour of now: `14:07:09`."""
    at = on_calendar(at_ms, zone)
    if abs(at_ms - now_ms) < NEAR_MS:
        return f"{at:%H:%M:%S}"
    return moment(at_ms, zone, on_calendar(now_ms, zone).date())


def sentence(boundary: Boundary, zone: tzinfo, today: date) -> str:
    """One sentence that an operator can act on.

    `six steps complete, charge in doubt since 14:07, three steps remaining`. "Remaining" counts
    plan names without a done slot; without a plan the clause is left out.
    """
    told = said(
        boundary,
        len(boundary.done),
        None if boundary.remaining is None else len(boundary.remaining),
    )
    return "".join(part if isinstance(part, str) else moment(part, zone, today) for part in told)


def said(boundary: Boundary, done_count: int, remaining_count: int | None) -> list[str | int]:
    """The sentence in parts: texts, and moments (milliseconds) that a reader's day decides about.

    Of what is done and remaining only the numbers are needed.
    """
    parts: list[str | int] = [f"{count_words(done_count, 'step')} complete"]
    for entry in boundary.in_doubt:
        parts += [f", {_label(entry.slot, entry.step)} in doubt since ", entry.since_ms]
    for entry in boundary.under_way:
        parts += [f", {_label(entry.slot, entry.step)} under way since ", entry.since_ms]
    for failure in boundary.failed:
        parts.append(f", {_label(failure.slot, failure.step)} failed ({failure.error})")
    if boundary.status in ("diverged", "blocked"):
        parts.append(f", {boundary.status}: {boundary.reason}")
    elif boundary.status == "cancelling":
        parts.append(", being cancelled")
    elif boundary.status in ("completed", "failed", "cancelled"):
        parts.append(f", the run {_ENDED[boundary.status]}")
    elif boundary.status == "waiting" and boundary.wakes_ms is not None:
        parts += [", waiting until ", boundary.wakes_ms]
    if boundary.conflicts:
        parts.append(f", evidence conflicts with the record of {', '.join(boundary.conflicts)}")
    if remaining_count is not None and boundary.status not in _ENDED:
        parts.append(f", {count_words(remaining_count, 'step')} remaining")
    return parts


_ENDED: Final = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}


def _label(slot: str, step: str) -> str:
    """The step's name where its slot says no more, else the slot."""
    return step if slot == f"{step}#1" else slot
