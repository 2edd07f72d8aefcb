"""What a run is told to wait for, where it waits for longer than about a second."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from refold_projections.fold import Attempt, moment_near

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner

TOLD_FROM_MS: Final = 900
"""A shorter wait is nobody's news: a busy worker would only be chatty. The first ones are 1 s."""
REASON_MAX: Final = 200

Then = Callable[[], None] | None


def told(
    owner: "PartitionOwner",
    run_id: str,
    kind: str,
    text: str,
    wait_ms: int,
    *,
    slot: str | None = None,
    attempt: int | None = None,
) -> Then:
    """What to do when the timer of a wait is durable: tell `text`, in which `{at}` is its end.

    None where the wait is too short to be told.
    """
    if wait_ms < TOLD_FROM_MS:
        return None
    now_ms = owner.books.now_ms()
    at = moment_near(now_ms + wait_ms, owner.zone, now_ms)
    text = text.replace("{at}", at)
    return partial(owner.tell, kind, run_id, text, slot=slot, attempt=attempt)


def settling(
    owner: "PartitionOwner",
    run_id: str,
    slot: str,
    attempt: Attempt | None,
    next: str,
    wait_ms: int,
) -> Then:
    """The same of a slot whose latest open attempt is `attempt`; `next` is what comes at `{at}`."""
    if attempt is None:
        return told(owner, run_id, "waiting", f"{slot}: {next}", wait_ms)
    if attempt.reason is None:  # a process ended: said when the run was resumed
        text = f"{slot}: {next}"
        return told(owner, run_id, "waiting", text, wait_ms, slot=slot, attempt=attempt.number)
    doubt = f"{slot} attempt {attempt.number}: {in_a_line(attempt.reason)}; {next}"
    return told(owner, run_id, "in_doubt", doubt, wait_ms, slot=slot, attempt=attempt.number)


def backing_off(
    owner: "PartitionOwner", run_id: str, slot: str, error: str, wait_ms: int | None
) -> Then:
    """The same of a failure that is tried again after `wait_ms` (None: it is not)."""
    text = f"{slot} did not act: {in_a_line(error)}; tried again at {{at}}"
    return told(owner, run_id, "waiting", text, wait_ms or 0)


def sleeping(owner: "PartitionOwner", run_id: str, wait_ms: int) -> Then:
    """The same of run code that sleeps."""
    return told(owner, run_id, "waiting", "until {at}", wait_ms)


def both(first: Then, second: Then) -> Then:
    """One after the other, where there are two."""
    if first is None or second is None:
        return first or second

    def then() -> None:
        first()
        second()

    return then


def in_a_line(text: str) -> str:
    """A text without line ends or braces, cut: it goes into one line of a worker's output."""
    flat = " ".join(text.split()).replace("{at}", "at")
    return flat if len(flat) <= REASON_MAX else flat[: REASON_MAX - 1] + "…"
