"""The numbers that describe the vendors: how long keys live, how far replicas lag, which model."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How this world behaves; all times in milliseconds.

    `seed` decides everything that looks random (replica lag, empty searches, ids, which variant a
    model answers with), as a function of how often it was asked: the same calls against an empty
    ledger give the same world again.
    """

    seed: int = 0
    payment_key_ttl_ms: int = 24 * HOUR_MS
    credit_lag_ms: int = 3_000
    portal_lag_max_ms: int = 5_000
    portal_empty_one_in: int = 20
    erp_prefix: str = "PO-2026-"
    erp_number_first: int = 41
    erp_lock_ttl_ms: int = 60_000
    model_snapshot: str = "harbour-2-20260514"

    def but(self, changes: Mapping[str, Any]) -> "Settings":
        """These settings with some of them changed. Raises ValueError naming the one at fault."""
        kinds = {field.name: type(field.default) for field in fields(self)}
        for name, value in changes.items():
            if name not in kinds:
                raise ValueError(f"there is no setting {name!r}: use one of {', '.join(kinds)}")
            if type(value) is not kinds[name]:
                raise ValueError(f"{name} is {value!r}, not of type {kinds[name].__name__}")
            if isinstance(value, int) and name != "seed" and value < 0:
                raise ValueError(f"{name} is {value}: use a whole number from 0 on")
        return replace(self, **changes)
