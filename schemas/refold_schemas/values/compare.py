"""Comparing values: does a stored one come back the same, and how does a fresh one differ."""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from refold_schemas.errors import ValueRefused, ValueUnreadable
from refold_schemas.errors.texts import line_of
from refold_schemas.values.canon import canon, canon_of
from refold_schemas.values.kinds import Unbuildable, is_record, take_apart
from refold_schemas.values.reading import decode_value, decode_value_as
from refold_schemas.values.records import Ref, Value
from refold_schemas.values.storing import encode_value, step_into

DIGEST_ENCODING = "c1"
"""`Value.encoding` of a digest: `ref.digest` is the SHA-256 of the canonical form v1."""

SHOWN_MAX = 80
"""Characters of a value in a difference; what is longer ends in `…`."""


def check_comes_back(obj: object, value: Value, path: str) -> None:
    """Raise ValueRefused unless `value` reads back equal to `obj`, of the same kind throughout."""
    try:
        back = decode_value(value)
    except ValueUnreadable as error:
        raise ValueRefused(path, type(obj).__qualname__, error.reason) from error
    try:
        found = difference(obj, back, strict=True)
    except Exception as error:  # what compares them is code of its author's
        reason = f"comparing it with what was stored raises {line_of(error, 200)}"
        raise ValueRefused(path, type(obj).__qualname__, reason) from error
    if found is not None:
        where, was, now = found
        reason = f"it would come back as {type(now).__qualname__}, not the same"
        if type(was) is type(now):
            reason = "it would come back changed (by a validator, or __post_init__)"
        raise ValueRefused(path + where, type(was).__qualname__, reason)


class _Missing:
    """Stands for what one side does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def difference(
    old: object, new: object, *, strict: bool, path: str = ""
) -> tuple[str, object, object] | None:
    """Return the first place where two values differ, `(path, old, new)`, or None.

    `strict` compares kinds and what equality does not see (the sign of zero, a zone's name, private
    attributes, which fields were set); else equal values of one kind are the same.
    """
    if type(old) is not type(new):
        return path, old, new
    if old is new:
        return None
    if isinstance(old, Enum):
        return path, old, new  # members are single: these are two
    if is_record(type(old)):
        return _record_difference(old, new, strict, path)
    if isinstance(old, dict) and isinstance(new, dict):
        return _mapping_difference(old, new, strict, path)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return _sequence_difference(old, new, strict, path)
    if isinstance(old, (set, frozenset)) and isinstance(new, (set, frozenset)):
        return _set_difference(old, new, strict, path)
    if strict and isinstance(old, datetime) and isinstance(new, datetime):
        same = old.isoformat() == new.isoformat()
        return None if same else (path, old, new)
    if strict and isinstance(old, float):
        return None if repr(old) == repr(new) else (path, old, new)
    return None if old == new else (path, old, new)


def _record_difference(
    old: object, new: object, strict: bool, path: str
) -> tuple[str, object, object] | None:
    try:
        one, other = take_apart(old), take_apart(new)
    except Unbuildable:
        return path, old, new
    found = _mapping_difference(one.fields, other.fields, strict, path)
    if found is None and strict:
        found = _mapping_difference(one.private, other.private, strict, path)
    if found is None and strict:
        found = _mapping_difference(one.beside, other.beside, strict, path)
    if found is None and strict and sorted(one.unset) != sorted(other.unset):
        found = path, old, new
    return found


def _mapping_difference(
    old: Mapping[object, object] | Mapping[str, object],
    new: Mapping[object, object] | Mapping[str, object],
    strict: bool,
    path: str,
) -> tuple[str, object, object] | None:
    one: dict[object, object] = dict(old.items())
    other: dict[object, object] = dict(new.items())
    for key, item in one.items():
        step = path + (step_into(key) if type(key) is str else f"[{key!r}]")
        found = difference(item, other.get(key, MISSING), strict=strict, path=step)
        if found is not None:
            return found
    for key, item in other.items():
        if key not in one:
            return path + (step_into(key) if type(key) is str else f"[{key!r}]"), MISSING, item
    return None


def _sequence_difference(
    old: list[object] | tuple[object, ...],
    new: list[object] | tuple[object, ...],
    strict: bool,
    path: str,
) -> tuple[str, object, object] | None:
    for index, (one, other) in enumerate(zip(old, new, strict=False)):
        found = difference(one, other, strict=strict, path=f"{path}[{index}]")
        if found is not None:
            return found
    if len(old) == len(new):
        return None
    index = min(len(old), len(new))
    return (
        f"{path}[{index}]",
        old[index] if index < len(old) else MISSING,
        new[index] if index < len(new) else MISSING,
    )


def _set_difference(
    old: set[object] | frozenset[object],
    new: set[object] | frozenset[object],
    strict: bool,
    path: str,
) -> tuple[str, object, object] | None:
    if old != new:
        return path, old, new
    # equal sets may still hold 1 where the other holds 1.0
    same = not strict or sorted(map(canon, old)) == sorted(map(canon, new))
    return None if same else (path, old, new)


def digest_value(value: Value) -> Value:
    """Return what is kept of a value that is too long: the SHA-256 of its canonical form, its size.

    `size` is that of the stored body in bytes. Equal values have equal digests, whatever the order
    of their keys; the value itself is gone.
    """
    import hashlib

    if value.body is None:
        return value
    digest = hashlib.sha256(canon_of(value)).digest()
    return Value(
        value.type,
        value.type_version,
        DIGEST_ENCODING,
        value.key_id,
        None,
        Ref(digest, len(value.body)),
    )


def values_differ(recorded: Value, fresh: object, annotation: object) -> str | None:
    """Say how a fresh value differs from the recorded one, both read into today's type.

    Returns None where they are equal, else a text with the path inside the value:
    `4160 → 4610`, `.lines[3].price 12 → 13`, so that the argument's name can stand before it.
    A recorded value that today's type does not take is a difference too. Raises ValueRefused if
    the fresh one cannot be stored.

    >>> values_differ(encode_value({"pence": [4160]}), {"pence": [4610]}, None)
    '.pence[0] 4160 → 4610'
    >>> values_differ(encode_value(4160), 4160, int) is None
    True
    """
    stored = encode_value(fresh, path="argument")
    if recorded.body is None:
        return _digests_differ(recorded, stored)
    try:
        old = decode_value_as(recorded, annotation)
    except ValueUnreadable as error:
        return f"recorded as what today's code cannot read: {error.reason}"
    try:
        new = decode_value_as(stored, annotation)
    except ValueUnreadable:
        # annotated as something else than is passed: what is passed decides
        try:
            old, new = decode_value(recorded), fresh
        except ValueUnreadable as error:
            return f"recorded as what today's code cannot read: {error.reason}"
    found = difference(old, new, strict=False)
    if found is None:
        return None
    path, was, now = found
    return f"{path} {shown(was)} → {shown(now)}".strip()


def _digests_differ(recorded: Value, stored: Value) -> str | None:
    fresh = digest_value(stored)
    if recorded.ref is None or fresh.ref is None or recorded.encoding != DIGEST_ENCODING:
        return "recorded elsewhere: it cannot be compared here"
    if recorded.ref.digest == fresh.ref.digest:
        return None
    return (
        f"{recorded.ref.size} bytes with digest {recorded.ref.digest.hex()[:12]}"
        f" → {fresh.ref.size} bytes with digest {fresh.ref.digest.hex()[:12]}"
    )


def shown(obj: object) -> str:
    """Write a value for a person, on one line, cut to SHOWN_MAX characters."""
    try:
        text = repr(obj)
    except Exception:  # a __repr__ is user code, and Python prints no integer over 4,300 digits
        text = f"<{type(obj).__qualname__}>"
    if not text.isprintable():
        text = "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
