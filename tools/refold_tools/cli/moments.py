"""Moments and durations as a person types them: `30d`, `2026-11-30T12:00`."""

import re
from datetime import UTC, datetime, timedelta

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


def moment(option: str, given: str, now_ms: int, command: str) -> int:
    """Milliseconds since 1970 of an age (`30d`) or an ISO time, UTC without an offset.

    Raises UsageRefused.

    >>> moment("--before", "2d", 200_000_000, "refold archive")
    27200000
    >>> moment("--before", "1970-01-02", 0, "refold archive")
    86400000
    """
    from refold_schemas.errors.cli import UsageRefused

    age_ms = _duration_ms(given)
    if age_ms is not None:
        return max(0, now_ms - age_ms)
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        told = f"{option} {given}: neither an age like 30d or 12h nor a time like 2026-11-30T12:00"
        raise UsageRefused(told, command) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


def duration_ms(option: str, given: str, command: str) -> int:
    """Milliseconds of a duration (`1h`), which is positive. Raises UsageRefused.

    >>> duration_ms("--every", "1h", "refold reconcile")
    3600000
    """
    from refold_schemas.errors.cli import UsageRefused

    found = _duration_ms(given)
    if not found:
        raise UsageRefused(f"{option} {given}: write a duration like 15m, 1h or 1d", command)
    return found


def is_age(given: str) -> bool:
    """Whether a moment is given from now back, and so another one at each call."""
    return _duration_ms(given) is not None


def _duration_ms(given: str) -> int | None:
    found = re.fullmatch(r"(\d{1,9})([smhdw])", given)
    return None if found is None else int(found[1]) * UNITS[found[2]] * 1_000
