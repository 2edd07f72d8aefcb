"""Times as a calendar has them: those in a log may lie beyond it. Pure."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: what Python and Postgres both have."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def cut(at_ms: int) -> int:
    """The time, beyond the years 1 to 9999 the nearest one that is in them."""
    return max(TIME_MS_MIN, min(at_ms, TIME_MS_MAX))


def on_calendar(at_ms: int, zone: tzinfo = UTC) -> datetime:
    """A time in milliseconds since 1970 UTC, in a zone. Never raises: it is cut.

    >>> on_calendar(1_785_585_600_123).isoformat(), on_calendar(2**62).year
    ('2026-08-01T12:00:00.123000+00:00', 9999)
    """
    at = _EPOCH + timedelta(milliseconds=cut(at_ms))
    try:
        return at.astimezone(zone)
    except (OverflowError, ValueError):  # a day at either end, beyond it in that zone
        return at.replace(tzinfo=zone)
