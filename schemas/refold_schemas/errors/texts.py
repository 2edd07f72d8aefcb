"""What an exception says, as text that can be kept: `str` may raise, be huge, quote a secret."""

from collections.abc import Callable
from typing import Any

MESSAGE_LENGTH_MAX = 10_000
"""Characters of an exception's message that are kept; what is longer ends in `…`."""


def text_of(error: BaseException, length_max: int = MESSAGE_LENGTH_MAX) -> str:
    """Return `str(error)` as UTF-8 can hold it, cut to `length_max` characters; never raises.

    Of a validation error of pydantic's only places and messages are kept: its own text quotes the
    input, which may be a secret.

    >>> text_of(ValueError("no such order"))
    'no such order'
    """
    try:
        found = findings(error)
        text = str(error) if found is None else _said(error, found)
        if len(text) > length_max:
            text = text[: length_max - 1] + "…"
        return str.encode(text, errors="backslashreplace").decode()[:length_max]
    except KeyboardInterrupt:
        raise  # not of its making: somebody wants the process to end
    except BaseException as unreadable:  # a __str__ that raises must not hide what it belongs to
        return f"(its message cannot be read: {type(unreadable).__name__})"[:length_max]


def line_of(error: BaseException, length_max: int = 500) -> str:
    """Return the exception's class with what it says, as reasons and warnings name it.

    >>> line_of(KeyError("a")), line_of(TimeoutError())
    ("KeyError: 'a'", 'TimeoutError')
    """
    text = text_of(error, length_max)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def findings(error: BaseException) -> list[str] | None:
    """Return what a validation error of pydantic's found, `place: message` each, without the input.

    None for any other exception.
    """
    errors: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if errors is None or not type(error).__module__.startswith("pydantic"):
        return None
    found = errors(include_input=False, include_url=False, include_context=False)
    lines: list[str] = []
    for each in found:
        where = ".".join(str(part) for part in each["loc"])
        lines.append(f"{where}: {each['msg']}" if where else str(each["msg"]))
    return lines


def _said(error: BaseException, found: list[str]) -> str:
    count = f"{len(found)} validation error{'' if len(found) == 1 else 's'}"
    return f"{count} for {getattr(error, 'title', 'the value')}: {'; '.join(found)}"
