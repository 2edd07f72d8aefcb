"""What stands in the log as Postgres can hold it: no U+0000, no half of a surrogate pair, no NaN.

The log keeps everything exactly; a table shows an escaped form and never stops for a value.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

from refold_schemas.values import Argument, Value
from refold_schemas.values.plain import plain_value

KEY_BYTES_MAX = 1_000
"""Of a text in an index: Postgres has room for some 2,700 bytes of all its columns."""
DEPTH_MAX = 200
DIGITS_MAX = 1_000
NOT_SHOWN = "$not_shown"
_UNUSUAL = re.compile(r"[$\\]|[0-9]{200}|[eE][+-]?[0-9]{3}")
"""Tags, escapes, and numbers that Postgres may read differently: looked at one by one.

What is left is checked by pydantic's parser, which also refuses what is nested 200 deep.
"""
_WITH_DIGEST = re.compile(r"…[0-9a-f]{32}\Z")


def text(value: str) -> str:
    r"""The text, what Postgres has no room for escaped.

    >>> text("a\x00b"), text("a\\u0000b")
    ('a\\u0000b', 'a\\u0000b')
    """
    if "\x00" in value:
        value = value.replace("\x00", "\\u0000")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            value = value.encode("utf-8", "backslashreplace").decode()
    return value


def optional(value: str | None) -> str | None:
    """The same, of a text that may be missing."""
    return None if value is None else text(value)


def name(value: str) -> str:
    r"""A text that rows are found by: no two are shown alike.

    One that is cut or escaped, or that looks as if it were, has a digest at its end.

    >>> name("a\\u0000b"), name("a\x00b")
    ('a\\u0000b', 'a\\u0000b…59b271ae1bbcb1d31d41929817f4b16f')
    """
    told = text(value)
    is_short = len(told) * 4 <= KEY_BYTES_MAX or len(told.encode()) <= KEY_BYTES_MAX
    if is_short and told == value and (value.isascii() or not _WITH_DIGEST.search(value)):
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{told[:200]}…{digest}"


def value_json(value: Value | None) -> str | None:
    """A stored value as JSON text, None where there is none. Never raises for what is in it."""
    if value is None:
        return None
    body = value.body
    if body is not None and value.encoding == "j1" and value.key_id is None:
        try:
            said = body.decode()
            if not _UNUSUAL.search(said):
                from_json(body, allow_inf_nan=False)
                return said
        except ValueError:
            pass  # the slow way says why
    return _dumped(lambda: plain_value(value), value)


def arguments_json(arguments: Iterable[Argument]) -> str | None:
    """Arguments as an object, by name; None where there are none."""
    parts = [
        f"{json.dumps(text(one.name), ensure_ascii=False)}: {value_json(one.value)}"
        for one in arguments
    ]
    return f"{{{', '.join(parts)}}}" if parts else None


def tree_json(tree: object) -> str:
    """Any JSON-able data of ours."""
    return _dumped(lambda: tree, None)


def _dumped(make: Any, value: Value | None) -> str:
    try:
        return json.dumps(_clean(make(), DEPTH_MAX), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError, AttributeError, OverflowError) as error:
        size = len(value.body or b"") if value is not None else 0
        why = " ".join(text(f"{type(error).__name__}: {error}").split())[:200]
        return json.dumps({NOT_SHOWN: why, "size": size}, ensure_ascii=False)


def _clean(tree: Any, depth_left: int) -> Any:
    if depth_left < 0:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    if isinstance(tree, str):
        return text(tree)
    if isinstance(tree, dict):
        return {text(str(key)): _clean(item, depth_left - 1) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [_clean(item, depth_left - 1) for item in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return str(tree)
    if isinstance(tree, int) and not isinstance(tree, bool) and tree.bit_length() > DIGITS_MAX * 3:
        return hex(tree)
    return tree


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
