"""What an agent author declares of a step: its policy and its retry."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Policy(StrEnum):
    """What recovery may do with an attempt in doubt (design, section 6)."""

    RE_EXECUTABLE = "re_executable"
    KEYED = "keyed"
    RESOLVABLE = "resolvable"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast an *observed* failure is tried again.

    The n-th wait is `min(first_wait * factor ** (n - 1), wait_max)`; no jitter, so that it can be
    read from the record. A failure whose type is in `fresh_key_on` starts the next attempt under
    the next generation of the effect key, since providers replay stored failures under an old one.

    >>> Retry(max_attempts=5).wait_ms(1), Retry(max_attempts=5).wait_ms(3)
    (1000, 4000)
    """

    max_attempts: int
    first_wait: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    wait_max: timedelta = timedelta(minutes=1)
    fresh_key_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a retry that never tries or waits backwards."""
        if self.max_attempts < 1:
            raise ValueError(f"Retry(max_attempts={self.max_attempts}): at least 1 is needed")
        if self.first_wait < timedelta(0) or self.wait_max < timedelta(0) or self.factor < 1:
            raise ValueError("Retry: waits must not be negative and factor must be at least 1")

    def wait_ms(self, failures: int) -> int:
        """Milliseconds to wait after the `failures`-th observed failure (the first is 1)."""
        first = self.first_wait // timedelta(milliseconds=1)
        top = self.wait_max // timedelta(milliseconds=1)
        exponent = min(failures - 1, 63)  # beyond that every factor above 1 is at the top anyway
        return int(min(first * self.factor**exponent, top))
