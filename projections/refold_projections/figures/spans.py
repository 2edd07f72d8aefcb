"""Spans of a run, as its events make them: one trace a run, whoever owned it, however often.

Ids follow from the record alone, so every process that reads the same log makes the same spans:
one that is exported twice is the same span twice, not another one.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

RUN, STEP, SETTLED = "run", "step", "settled"


class SpanId(NamedTuple):
    """A span as others name it: 32 and 16 hex digits."""

    trace: str
    span: str


class Span(NamedTuple):
    """One span, over. Times are milliseconds since 1970 UTC on the owners' clocks.

    `parent` is None for a run's first span. `outcome`: ok, error, or unset where it is not known
    whether anything happened (an attempt in doubt, a cancelled run).
    """

    id: SpanId
    parent: str | None
    name: str
    start_ms: int
    end_ms: int
    outcome: str
    attributes: Mapping[str, str | int | bool]
    links: tuple[SpanId, ...] = ()


def trace_of(run_id: str, nonce: bytes) -> str:
    """The trace of a run: from its id and the nonce of its start, so that no two runs share one.

    >>> len(trace_of("order-1", bytes(32)))
    32
    """
    return sha256(b"refold trace\0" + nonce + run_id.encode()).hexdigest()[:32]


def run_span(trace: str, life: int) -> SpanId:
    """The span of a run; one that goes on after it had failed has another for each life."""
    return _named(trace, RUN, str(life))


def attempt_span(trace: str, slot: str, attempt: int) -> SpanId:
    """The span of an attempt."""
    return _named(trace, STEP, slot, str(attempt))


def settled_span(trace: str, slot: str, attempt: int) -> SpanId:
    """The span from the moment an attempt was in doubt until it was settled."""
    return _named(trace, SETTLED, slot, str(attempt))


def _named(trace: str, *names: str) -> SpanId:
    # A length before each name: no two lists of names share an encoding.
    text = "".join(f"{len(name)}:{name}" for name in (trace, *names))
    return SpanId(trace, sha256(text.encode()).hexdigest()[:16])
