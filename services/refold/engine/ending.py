"""Why a claim ends: fenced, unknown, the log was cut, or given back."""

from typing import ClassVar

from refold_schemas.errors import RefoldError


class ClaimEnded(RefoldError):
    """The owner's claim is over; its whole state is dropped, so there is nothing to undo."""

    code: ClassVar[str] = "R010"
    again: ClassVar[bool] = True
    """Whether the worker claims again if the partition is still suggested to it."""


class ClaimFenced(ClaimEnded):
    """A newer claim stands in the log; this owner must stop without another effect."""

    code: ClassVar[str] = "R011"

    def __init__(self, partition: int, claim_id: bytes, claim_id_newer: bytes, offset: int) -> None:
        self.partition, self.claim_id, self.claim_id_newer = partition, claim_id, claim_id_newer
        self.offset = offset
        super().__init__(
            f"partition {partition}: claim {claim_id.hex()[:8]} was superseded by claim "
            f"{claim_id_newer.hex()[:8]} at offset {offset}",
            kept="every event before it; the newer owner folds and continues them",
            next="nothing, if it happens now and then; see docs/errors/R011.md if it repeats",
        )


class ClaimUnknown(ClaimEnded):
    """An append may or may not be stored: the claim ends, a new one is the barrier."""

    code: ClassVar[str] = "R012"

    def __init__(self, partition: int, why: str) -> None:
        self.partition, self.why = partition, why
        super().__init__(
            f"partition {partition}: an append ended as unknown ({why})",
            kept="every acknowledged event; what was stored unacknowledged counts if it stands "
            "before the next claim",
            next="nothing: the worker claims again and folds",
        )


class LogWasCut(ClaimEnded):
    """Acknowledged records are gone from the log: this owner stops and does not claim again."""

    code: ClassVar[str] = "R013"
    exit_code: ClassVar[int] = 4
    again: ClassVar[bool] = False

    def __init__(self, partition: int, why: str) -> None:
        self.partition, self.why = partition, why
        super().__init__(
            f"partition {partition}: the log was cut: {why}",
            kept="what the log still holds",
            next="find out how the log lost records (restored from a copy, unclean leader "
            "election) before any worker is started again; see docs/errors/R013.md",
        )


class ClaimReleased(ClaimEnded):
    """The owner gave the partition back on purpose."""

    code: ClassVar[str] = "R014"
    again: ClassVar[bool] = False

    def __init__(self, partition: int, why: str) -> None:
        self.partition = partition
        super().__init__(f"partition {partition}: released ({why})")


class ClaimRefused(RefoldError):
    """The facts of the log are not those of its last claim, or a clock is wrong: not served."""

    code: ClassVar[str] = "R015"
    exit_code: ClassVar[int] = 2


__all__ = [
    "ClaimEnded",
    "ClaimFenced",
    "ClaimRefused",
    "ClaimReleased",
    "ClaimUnknown",
    "LogWasCut",
]
