"""The claim rule as a pure function: which records of a partition count, the same for every reader.

Source: design, section 3.1, rules 1, 2 and 7; explored by `tests/model`.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from refold_schemas.codec import KIND_CLAIM, KIND_REPORT, RecordHeader

NO_CLAIM: Final = bytes(16)


class Verdict(IntEnum):
    """What a record is to a reader."""

    COUNTS = 0
    """An event of the latest claim with the next n."""
    CLAIM = 1
    """A claim that counts: its writer owns the partition from here on."""
    REPORT = 2
    """An AttemptReported: evidence, outside the claim rule."""
    DUPLICATE = 3
    """A stored copy: skipped, whatever its bytes."""
    FENCED = 4
    """An event of a claim that is not the latest, or a claim that does not count: skipped."""
    BROKEN = 5
    """Behind a missing n: nothing of this claim counts any more."""
    FOREIGN = 6
    """No readable refold header: somebody else's record, reported and skipped."""


class Position(NamedTuple):
    """How far a reader is, with all that the claim rule needs. Stored and restored whole."""

    offset_next: int = 0
    claim_epoch: int = 0
    claim_id: bytes = NO_CLAIM
    n_next: int = 0
    claim_broken: bool = False
    command_next: int = 0
    time_last_ms: int = 0
    last_offset: int = -1
    last_claim_id: bytes = NO_CLAIM
    last_n: int = -1


def judge(position: Position, offset: int, header: RecordHeader | None) -> tuple[Position, Verdict]:
    """Read one record: the position after it and what it is.

    `header` is None where the record has none that can be read.
    """
    if header is None:
        after = position._replace(
            offset_next=offset + 1, last_offset=offset, last_claim_id=NO_CLAIM, last_n=-1
        )
        return after, Verdict.FOREIGN
    kind, claim_id, epoch, n, at_ms, command_next = header
    (_, claim_epoch, claim_now, n_next, broken, commands, time_last, _, _, _) = position
    if kind == KIND_CLAIM:
        if epoch <= claim_epoch:  # a stored copy, or one whose writer had not read the latest
            verdict = Verdict.FENCED
        else:
            verdict = Verdict.CLAIM
            claim_epoch, claim_now, n_next, broken = epoch, claim_id, 0, False
            time_last = max(time_last, at_ms)
    elif kind == KIND_REPORT:
        verdict = Verdict.REPORT
    elif claim_id != claim_now:
        verdict = Verdict.FENCED
    elif broken:
        verdict = Verdict.BROKEN
    elif n < n_next:
        verdict = Verdict.DUPLICATE
    elif n > n_next:
        verdict, broken = Verdict.BROKEN, True
    else:
        verdict, n_next, commands = Verdict.COUNTS, n + 1, command_next
        time_last = max(time_last, at_ms)
    after = Position(
        offset + 1, claim_epoch, claim_now, n_next, broken, commands, time_last, offset, claim_id, n
    )
    return after, verdict
