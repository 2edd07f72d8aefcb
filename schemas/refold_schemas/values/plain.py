"""Stored values as plain JSON: what a program reads that knows no Python class."""

import json
from typing import Any

from refold_schemas.values.records import Value


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
