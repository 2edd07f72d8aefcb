"""Reads usage, snapshot, stop reason and price from a model's answer, where it has them."""

from collections.abc import Mapping
from typing import Final

from refold_schemas.values import ModelUse

TEXT_MAX: Final = 1_000


def read_model_use(answer: object) -> ModelUse | None:
    """What an assistant message says of itself, in the shapes that providers use.

    >>> use = read_model_use({"model": "m-1", "stop_reason": "end", "usage": {"input_tokens": 3}})
    >>> use.snapshot, use.stop_reason, use.input_tokens, use.output_tokens
    ('m-1', 'end', 3, None)
    >>> read_model_use("just words") is None
    True
    """
    try:
        return _read(answer)
    except Exception:  # an answer's own code; that it says nothing readable changes nothing else
        return None


def _read(answer: object) -> ModelUse | None:
    usage = _get(answer, "usage")
    use = ModelUse(
        _text(answer, "model", "model_snapshot", "snapshot"),
        _text(answer, "stop_reason", "finish_reason"),
        _number(usage, "input_tokens", "prompt_tokens"),
        _number(usage, "output_tokens", "completion_tokens"),
        _number(usage, "price_usd_micros", "cost_usd_micros"),
    )
    return None if use == ModelUse(None, None, None, None, None) else use


def _get(source: object, name: str) -> object:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _text(source: object, *names: str) -> str | None:
    for name in names:
        value = _get(source, name)
        if type(value) is str and value.isprintable():
            return value[:TEXT_MAX]
    return None


def _number(source: object, *names: str) -> int | None:
    for name in names:
        value = _get(source, name)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
    return None
