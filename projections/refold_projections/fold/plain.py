"""Boundaries as plain JSON: what a program reads that knows no Python class."""

from datetime import tzinfo

from refold_projections.fold import Boundary
from refold_projections.fold.boundary import OpenStep
from refold_projections.fold.calendar import on_calendar


def iso(at_ms: int, zone: tzinfo) -> str:
    """A time as ISO 8601 with its offset, to the millisecond.

    >>> from datetime import UTC
    >>> iso(0, UTC)
    '1970-01-01T00:00:00.000+00:00'
    """
    return on_calendar(at_ms, zone).isoformat(timespec="milliseconds")


def boundary_json(
    seen: Boundary, partition: int, offset: int, zone: tzinfo, sentence: str
) -> dict[str, object]:
    """The fixed shape of a boundary (design, section 8)."""

    def opened(entry: OpenStep) -> dict[str, object]:
        return {
            "slot": entry.slot,
            "step": entry.step,
            "attempt": entry.attempt,
            "since": iso(entry.since_ms, zone),
            "policy": entry.policy,
            "effect_key": entry.effect_key,
        }

    return {
        "run_id": seen.run_id,
        "run": seen.run,
        "version": seen.version,
        "status": seen.status,
        "reason": seen.reason,
        "needs": seen.needs,
        "position": {"partition": partition, "offset": offset},
        "done": [
            {"slot": one.slot, "step": one.step, "attempt": one.attempt, "at": iso(one.at_ms, zone)}
            for one in seen.done
        ],
        "under_way": [opened(one) for one in seen.under_way],
        "in_doubt": [opened(one) for one in seen.in_doubt],
        "failed": [
            {
                "slot": one.slot,
                "step": one.step,
                "attempt": one.attempt,
                "at": iso(one.at_ms, zone),
                "error": one.error,
            }
            for one in seen.failed
        ],
        "remaining": None if seen.remaining is None else list(seen.remaining),
        "sentence": sentence,
    }
