"""From when on "absent" may be believed is a moment, also once it has passed."""

import pytest

from refold.engine.recovery import believe_in_ms
from refold_projections.fold import Attempt, Slot

OURS, EARLIER = b"o" * 16, b"e" * 16


def believe(claim_id: bytes, boot_ms: int, ended: dict[int, int]) -> int:
    attempt = Attempt(1, claim_id, 0, 0, "in_doubt", 2_000, 1_000)
    slot = Slot("mail#1", "mail", 0, attempts=(attempt,))
    return believe_in_ms(
        slot,
        OURS,
        boot_ms=boot_ms,
        claimed_boot_ms=10_000,
        ended_boot_ms=ended,
        running=frozenset(),
    )


@pytest.mark.parametrize("boot_ms", [10_000, 13_000, 500_000])
def test_an_earlier_claims_attempt_counts_from_our_claim(boot_ms: int) -> None:
    assert believe(EARLIER, boot_ms, {}) == 10_000 + 3_031 - boot_ms


@pytest.mark.parametrize("boot_ms", [20_000, 500_000])
def test_our_own_attempt_counts_from_its_end(boot_ms: int) -> None:
    assert believe(OURS, boot_ms, {1: 20_500}) == 21_500 - boot_ms


def test_our_own_attempt_that_has_not_ended_is_not_believed() -> None:
    assert believe(OURS, 500_000, {}) == 1_000
