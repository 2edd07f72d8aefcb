"""Keyset cursors: where a list goes on, as a text of that list and those filters alone. Pure.

A cursor holds the sort values of the last row that was shown. So a page costs the same however deep
it is, and rows that come or go meanwhile shift nothing.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime

CURSOR_MAX = 4_000
"""Characters of a cursor."""

Key = datetime | str | int


class BadCursor(ValueError):
    """What was given as a cursor is none of this list."""


def cursor_of(list_name: str, filters: Mapping[str, object], values: Sequence[Key]) -> str:
    """The text of a cursor behind the row with these sort values."""
    said = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    body = json.dumps([_mark(list_name, filters), said], separators=(",", ":"))
    return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")


def values_of(
    text: str, list_name: str, filters: Mapping[str, object], kinds: Sequence[type]
) -> list[Key]:
    """The sort values in a cursor. Raises BadCursor.

    >>> text = cursor_of("runs", {"status": None}, ["order-1", 7])
    >>> values_of(text, "runs", {"status": None}, [str, int])
    ['order-1', 7]
    >>> values_of(text, "runs", {"status": "failed"}, [str, int])
    Traceback (most recent call last):
    refold_projections.tables.cursors.BadCursor: it is of another list, or of other filters
    """
    if len(text) > CURSOR_MAX:
        raise BadCursor("it is too long")
    try:
        body = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        mark, said = json.loads(body)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise BadCursor("it is no cursor") from None
    if mark != _mark(list_name, filters):
        raise BadCursor("it is of another list, or of other filters")
    if not isinstance(said, list) or len(said) != len(kinds):
        raise BadCursor("it is no cursor")
    return [_value(one, kind) for one, kind in zip(said, kinds, strict=True)]


def _value(said: object, kind: type) -> Key:
    if kind is datetime and isinstance(said, str):
        try:
            at = datetime.fromisoformat(said)
        except ValueError:
            raise BadCursor("it is no cursor") from None
        if at.tzinfo is not None:
            return at
    is_text = kind is str and isinstance(said, str) and "\0" not in said
    is_number = kind is int and type(said) is int and abs(said) < 2**63
    if isinstance(said, str | int) and (is_text or is_number):
        return said
    raise BadCursor("it is no cursor")


def _mark(list_name: str, filters: Mapping[str, object]) -> str:
    """A short digest of what the cursor belongs to."""
    kept = {name: value for name, value in filters.items() if value is not None}
    body = json.dumps([list_name, kept], sort_keys=True, default=str)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]
