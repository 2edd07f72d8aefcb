"""What a lookup may answer, and how run code is told that the far system did not act."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The far system has the effect; `value` is what the step would have returned."""

    value: T


@dataclass(frozen=True, slots=True)
class Absent:
    """The far system does not have it. Believed only after deadline and settle have passed."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The far system is still at work on it: asked again with back-off."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The far system refused it for good; `error` says why."""

    error: BaseException


LookupAnswer = Found[T] | Absent | Pending | Rejected


class NotDone(Exception):
    """Raised by a step: the far system certainly did *not* act. A failure that may be retried."""
