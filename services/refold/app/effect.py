"""What a step function is told of its own attempt: the key to send, and how long it may act."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from refold_schemas.errors.run import EffectBarred

_TEST_SECONDS = 30.0


class Effect:
    """One attempt, as its step function sees it. Steps take it as their first parameter.

    `key` is the effect key to send to the far system, `attempt` counts from 1. `deadline` is wall
    clock, aware, UTC: after it the call must not begin anything. Usable from any thread.
    """

    __slots__ = ("_barred", "_remaining_s", "attempt", "deadline", "key", "run_id", "slot")

    def __init__(
        self,
        *,
        key: str,
        attempt: int,
        run_id: str,
        slot: str,
        deadline: datetime,
        remaining_s: Callable[[], float],
        barred: Callable[[], bool],
    ) -> None:
        """`remaining_s` counts on a clock that does not stop while the machine sleeps.

        `barred` is True once the worker may not act for this attempt any more.
        """
        self.key, self.attempt, self.run_id, self.slot = key, attempt, run_id, slot
        self.deadline = deadline
        self._remaining_s, self._barred = remaining_s, barred

    def __repr__(self) -> str:
        """Name slot, attempt and key."""
        return f"Effect(slot={self.slot!r}, attempt={self.attempt}, key={self.key!r})"

    def remaining(self) -> timedelta:
        """How long the attempt may still act; never negative."""
        return timedelta(seconds=max(0.0, self._remaining_s()))

    def check(self) -> None:
        """Raise EffectBarred if the attempt may not go on. For loops in sync steps."""
        if self._barred():
            raise EffectBarred(self.slot, "the call was barred: its worker gave up the attempt")
        if self._remaining_s() <= 0:
            raise EffectBarred(self.slot, f"the deadline {self.deadline.isoformat()} has passed")

    @classmethod
    def for_test(
        cls,
        key: str = "test",
        *,
        attempt: int = 1,
        run_id: str = "test",
        slot: str = "test#1",
        timeout: timedelta = timedelta(seconds=_TEST_SECONDS),
    ) -> "Effect":
        """An effect for calling a step directly in a unit test, with a real deadline.

        >>> Effect.for_test(key="k-1").key
        'k-1'
        """
        # Imported here: only a test needs a clock, an owner hands its own in.
        import time

        end_s = time.monotonic() + timeout.total_seconds()
        return cls(
            key=key,
            attempt=attempt,
            run_id=run_id,
            slot=slot,
            deadline=datetime.now(UTC) + timeout,
            remaining_s=lambda: end_s - time.monotonic(),
            barred=lambda: False,
        )
