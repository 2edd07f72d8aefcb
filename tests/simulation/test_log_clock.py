"""Bounds of the log's clock: no jump of a wall clock gets past them."""

import pytest

from refold.engine.log_clock import LogClock
from refold.engine.recovery import Facts, key_lives
from refold_projections.fold import Attempt, Slot

HOUR_MS = 3_600_000


class Clocks:
    def __init__(self) -> None:
        self.wall, self.boot = 1_000_000, 50

    def wall_ms(self) -> int:
        return self.wall

    def boot_ms(self) -> int:
        return self.boot


def log_clock(clocks: Clocks) -> LogClock:
    return LogClock(
        clocks, append_ms=1_000_000, sent_boot_ms=40, told_boot_ms=60, skew_max_ms=5_000
    )


@pytest.mark.parametrize("elapsed_ms", [0, 1_000, HOUR_MS, 240 * HOUR_MS])
@pytest.mark.parametrize("rate", [0.995, 1.0, 1.005])
@pytest.mark.parametrize("appended_boot_ms", [40, 50, 60])
def test_the_logs_clock_lies_between_the_bounds(
    elapsed_ms: int, rate: float, appended_boot_ms: int
) -> None:
    clock = log_clock(Clocks())
    boot_ms = appended_boot_ms + int(elapsed_ms * rate)
    assert clock.earliest_ms(boot_ms) <= 1_000_000 + elapsed_ms <= clock.latest_ms(boot_ms)


@pytest.mark.parametrize("earlier_ms", [1, 1_000, HOUR_MS])
@pytest.mark.parametrize("rate", [0.995, 1.0, 1.005])
def test_the_bounds_hold_for_moments_before_the_append_too(earlier_ms: int, rate: float) -> None:
    clock = log_clock(Clocks())
    for appended_boot_ms in (40, 60):
        boot_ms = appended_boot_ms - int(earlier_ms * rate)
        shown = 1_000_000 - earlier_ms
        assert clock.earliest_ms(boot_ms) <= shown <= clock.latest_ms(boot_ms)


def test_a_jump_of_the_wall_clock_moves_no_event_further_than_a_claim_may_be_off() -> None:
    clocks = Clocks()
    clock = log_clock(clocks)
    clocks.wall = 1_004_000
    assert clock.wall_ms() == 1_004_000
    clocks.wall = 1_000_000 + HOUR_MS
    assert clock.wall_ms() == clock.latest_ms(50) + 5_000
    clocks.wall = 1_000_000 - HOUR_MS
    assert clock.wall_ms() == clock.earliest_ms(50) - 5_000


def test_a_claim_by_a_clock_years_ahead_does_not_take_later_owners_along() -> None:
    clock = log_clock(Clocks())
    assert clock.bounded_ms(1_000_000 + 10_000 * HOUR_MS) == clock.latest_ms(50) + 5_000
    assert clock.bounded_ms(1_000_000 - HOUR_MS) == 1_000_000 - HOUR_MS


def test_the_newest_acknowledgement_narrows_the_bounds() -> None:
    clocks = Clocks()
    clock = log_clock(clocks)
    clocks.boot = 50 + 100 * HOUR_MS
    wide = clock.latest_ms(clocks.boot) - clock.earliest_ms(clocks.boot)
    clock.note(1_000_000 + 100 * HOUR_MS, clocks.boot - 3)
    clock.note(None, clocks.boot)
    assert clock.latest_ms(clocks.boot) - clock.earliest_ms(clocks.boot) < 10 < wide


def test_a_key_lives_only_as_long_as_it_surely_does() -> None:
    def lives(log_ms: int, key_ttl_ms: int | None = 60_000) -> bool:
        attempt = Attempt(1, b"c" * 16, 0, 0, "in_doubt", 2_000, 0)
        slot = Slot("label#1", "label", 0, key_ttl_ms=key_ttl_ms, attempts=(attempt,))
        facts = Facts(
            claim_id=b"c" * 16,
            wall_ms=0,
            believe_in_ms=0,
            since_end_ms=0,
            running=frozenset(),
            timeout_ms=2_000,
            has_lookup=False,
            retries_left=True,
            lookup_for_ms=0,
            expired=False,
            repeats_max=5,
            repeat_first_ms=0,
            repeat_max_ms=0,
            log_ms=log_ms,
            skew_max_ms=5_000,
        )
        return key_lives(slot, (attempt,), facts)

    # 60 s, less 5 s by which the intent's clock may be ahead and 2 s in which the call may act.
    assert lives(52_999)
    assert not lives(53_000)
    assert lives(10**15, None)
    # A clock was set back: the intent is of the future, and nobody knows how old the key is.
    assert lives(-5_000)
    assert not lives(-5_001)


def test_a_log_that_is_asked_for_its_clock_frees_what_was_held_back() -> None:
    clocks = Clocks()
    clock = log_clock(clocks)
    assert clock.held_ms == 0
    clocks.wall = 1_000_000 + HOUR_MS
    assert clock.held_ms == HOUR_MS - 5_000 - (clock.latest_ms(50) - 1_000_000)
    clock.note(clocks.wall, clocks.boot)
    assert (clock.held_ms, clock.wall_ms()) == (0, clocks.wall)
