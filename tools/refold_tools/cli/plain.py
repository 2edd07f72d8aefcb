"""Stored values and boundaries as plain JSON: what a program reads that knows no Python class."""

import json
from datetime import UTC, datetime, tzinfo
from typing import Any

from refold_projections.fold import Boundary
from refold_projections.fold.boundary import OpenStep
from refold_schemas.values import Value


def iso(at_ms: int, zone: tzinfo) -> str:
    """A time as ISO 8601 with its offset, to the millisecond.

    >>> iso(0, UTC)
    '1970-01-01T00:00:00.000+00:00'
    """
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)
    return at.isoformat(timespec="milliseconds")


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


def plain_value(value: Value | None) -> object:
    """A stored value as JSON-able data, read without its classes.

    Records are objects of their fields, enums the names of their members, durations seconds;
    decimals, dates and UUIDs are text, bytes base64. A value whose digest alone was kept shows it.
    """
    if value is None:
        return None
    if value.body is None:
        if value.ref is None:
            return None
        return {"sha256": value.ref.digest.hex(), "size": value.ref.size}
    if value.encoding != "j1" or value.key_id is not None:
        return {"encoding": value.encoding, "key_id": value.key_id, "size": len(value.body)}
    return untagged(json.loads(value.body))


def untagged(tree: Any) -> object:
    """The JSON of a stored body without its tags (docs/values.md).

    >>> untagged({"total": {"$decimal": "41.60"}, "lines": {"$tuple": [1, {"$int": "ff"}]}})
    {'total': '41.60', 'lines': [1, 255]}
    """
    if isinstance(tree, list):
        return [untagged(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        tag, parts = next(iter(tree.items()))
        if tag[:1] == "$":
            return _of_tag(tag, parts)
    return {key: untagged(item) for key, item in tree.items()}


def _of_tag(tag: str, parts: Any) -> object:
    match tag:
        case "$":  # an object whose one key looks like a tag
            return {key: untagged(item) for key, item in parts.items()}
        case "$int":
            return int(parts, 16)
        case "$timedelta":
            days, seconds, microseconds = parts
            whole = days * 86_400 + seconds
            return whole + microseconds / 1_000_000 if microseconds else whole
        case "$datetime":
            return parts.partition("[")[0]
        case "$enum" | "$flag" | "$record":
            return untagged(parts[1])
        case "$map":
            return {_key(key): untagged(item) for key, item in parts}
        case _:
            return untagged(parts)


def _key(tree: Any) -> str:
    key = untagged(tree)
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False)
