"""What can go wrong between a caller and a vendor, told in advance and counted down."""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from world.messages import Json, Route


class FaultMode(StrEnum):
    """Each mode says whether the vendor acts, and what the caller gets to see of it."""

    RESET_AFTER = "reset_after"
    """Act, then drop the connection."""
    TIMEOUT_AFTER = "504_after"
    """Act, then a gateway in between answers 504."""
    SILENT_AFTER = "silent_after"
    """Act, then say nothing."""
    SLOW_AFTER = "slow_after"
    """Act at once, answer after `delay_ms`."""
    SLOW = "slow"
    """Wait `delay_ms`, then act and answer, whether or not the caller is still there."""
    LATE = "late"
    """Say nothing, and act `delay_ms` later out of a queue: what `settle` is for."""
    FAIL_BEFORE = "503_before"
    """Answer 503 with `"acted": false`; nothing was done."""
    SILENT_BEFORE = "silent_before"
    """Say nothing and do nothing; the key is in progress while the caller waits."""
    RESET_BEFORE = "reset_before"
    """Drop the connection before anything was done."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault for `times` calls (None: all of them) after the first `after` matching ones.

    It matches a `route` (`POST /payments/refunds`, or the path alone) or a whole `vendor`.
    """

    mode: FaultMode
    route: str | None = None
    vendor: str | None = None
    times: int | None = 1
    after: int = 0
    delay_ms: int = 0

    @classmethod
    def from_json(cls, body: Json) -> "Fault":
        """Read a fault as `/admin/faults` takes it. Raises ValueError saying what is wrong."""
        unknown = set(body) - {"mode", "route", "vendor", "times", "after", "delay_ms"}
        if unknown:
            raise ValueError(f"a fault has no field {', '.join(sorted(unknown))}")
        if ("route" in body) == ("vendor" in body):
            raise ValueError("a fault names either a route or a vendor")
        modes = ", ".join(FaultMode)
        if body.get("mode") not in list(FaultMode):
            raise ValueError(f"mode is {body.get('mode')!r}: use one of {modes}")
        times = body.get("times", 1)
        if times is not None and (type(times) is not int or times < 1):
            raise ValueError(f"times is {times!r}: use a whole number from 1 on, or null for ever")
        counts = {"after": body.get("after", 0), "delay_ms": body.get("delay_ms", 0)}
        for name, value in counts.items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}: use a whole number from 0 on")
        return cls(
            mode=FaultMode(body["mode"]),
            route=body.get("route"),
            vendor=body.get("vendor"),
            times=times,
            after=counts["after"],
            delay_ms=counts["delay_ms"],
        )

    def as_json(self) -> Json:
        """The fault as `/admin/faults` lists it."""
        return asdict(self)

    def matches(self, route: Route) -> bool:
        """Whether a call of this route is meant."""
        if self.vendor is not None:
            return route.vendor == self.vendor
        return self.route in (route.name, route.pattern)


class FaultPlan:
    """The faults still to come. They live with the process: a restarted service has none."""

    def __init__(self) -> None:
        """Nothing planned."""
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Plan a fault; the first one planned that matches a call is the one it gets."""
        self._faults.append(fault)

    def clear(self) -> None:
        """Forget all planned faults."""
        self._faults.clear()

    def pending(self) -> tuple[Fault, ...]:
        """The faults still to come, with what is left of their counts."""
        return tuple(self._faults)

    def take(self, route: Route) -> Fault | None:
        """The fault for this call, counted down; None if it goes well."""
        for index, fault in enumerate(self._faults):
            if not fault.matches(route):
                continue
            if fault.after > 0:
                self._faults[index] = replace(fault, after=fault.after - 1)
                continue
            if fault.times == 1:
                del self._faults[index]
            elif fault.times is not None:
                self._faults[index] = replace(fault, times=fault.times - 1)
            return fault
        return None
