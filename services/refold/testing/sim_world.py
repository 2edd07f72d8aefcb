"""A far system with a ledger, and a network to it: calls outlive the process that sent them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from refold.app.effect import Effect
from refold.testing.sim_loop import SimProcess, Universe
from refold.testing.sim_report import Journal
from refold_schemas.values import Absent, Found, NotDone, Pending, Rejected

TO_VENDOR_MS_MAX = 300
AT_VENDOR_MS_MAX = 300
LOOKUP_LAG_MS_MAX = 200
"""A deed is found by a lookup this long after it was done. All three are below `settle`."""


CURSED_P = 1 / 6


class VendorError(Exception):
    """The far system or the network says that something went wrong, and not whether it acted."""


class Declined(Exception):
    """The far system certainly did not act, and will say so again under this key."""


@dataclass(frozen=True)
class Service:
    """What the far system promises of one kind of call.

    `dedupes`: a repeat under a known key is answered from memory. `key_ttl_us`: how long it
    remembers (None: for ever). `declines`: amounts for which the slot's first key is refused.
    """

    kind: str
    dedupes: bool
    key_ttl_us: int | None = None
    declines: Callable[[int], bool] = lambda amount: False


@dataclass(frozen=True)
class Deed:
    """One effect in the far system. `late`: it was sent after its attempt's deadline."""

    at_us: int
    service: str
    key: str
    run_id: str
    slot: str
    attempt: int
    amount: int
    process: str
    late: bool


@dataclass
class Call:
    """One call of a step function, from entry to end."""

    process: SimProcess
    service: str
    run_id: str
    slot: str
    attempt: int
    key: str
    amount: int
    entered_us: int
    late: bool = False
    sent: bool = False
    landed: bool = False
    ended_us: int | None = None


@dataclass
class _Memory:
    value: Any
    error: type[Exception] | None
    at_us: int


@dataclass
class VendorRates:
    """Chances of the vendor's faults now; set to 0 when faults stop."""

    call_p: float = 0.0
    lookup_p: float = 0.0
    hook_p: float = 0.0


def receipt(service: str, amount: int) -> dict[str, Any]:
    """What a call returns: a function of its arguments, so that results can be compared."""
    return {"service": service, "amount": amount, "ref": f"{service}-{amount}"}


@dataclass
class SimVendor:
    """The far system. `on_call`, `on_deed` and `on_end` tell the checkers."""

    universe: Universe
    rng: Random
    journal: Journal
    services: dict[str, Service]
    rates: VendorRates
    on_call: Callable[[Call], None] = lambda call: None
    on_deed: Callable[[Deed], None] = lambda deed: None
    ledger: list[Deed] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    by_slot: dict[tuple[str, str], list[Deed]] = field(default_factory=dict)
    in_flight: Counter[tuple[str, str]] = field(default_factory=Counter)
    _memory: dict[tuple[str, str], _Memory] = field(default_factory=dict)
    _found: dict[tuple[str, str], _Memory] = field(default_factory=dict)
    _keys: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _cursed: dict[tuple[str, str], bool] = field(default_factory=dict)

    def arrive(
        self, call: Call, mode: str, answer: Callable[[Any, Exception | None], None]
    ) -> None:
        """A call reaches the far system: act on it, and answer as `mode` says."""
        self.in_flight[call.run_id, call.slot] -= 1
        call.landed = True
        if mode == "fails before acting":
            answer(None, NotDone(f"{call.service}: no capacity"))
            return
        if mode == "error before acting":
            answer(None, VendorError(f"{call.service}: 503"))
            return
        value, error = self._act(call)
        if mode in ("acts, answer lost", "never answers"):
            return
        if mode == "acts, then error":
            answer(None, VendorError(f"{call.service}: 504"))
            return
        answer(value, error)

    def _act(self, call: Call) -> tuple[Any, Exception | None]:
        service, now_us = self.services[call.service], self.universe.now_us
        name = (call.service, call.key)
        known = self._memory.get(name)
        ttl_us = service.key_ttl_us
        if known is not None and ttl_us is not None and now_us - known.at_us >= ttl_us:
            self.journal.counts["keys forgotten"] += 1
            self.journal.note("vendor", f"has forgotten the key of {call.slot} of {call.run_id}")
            known = None
        if known is not None and service.dedupes:
            self.journal.note("vendor", f"replays {call.service} {call.key[:8]}")
            return known.value, known.error(f"{call.service}: stored") if known.error else None
        keys = self._keys.setdefault((call.run_id, call.slot), [])
        if call.key not in keys:
            keys.append(call.key)
        if service.declines(call.amount) and call.key == keys[0]:
            self.journal.fault("declined under the key", "vendor", f"{call.slot} of {call.run_id}")
            self._memory[name] = self._found[name] = _Memory(None, Declined, now_us)
            return None, Declined(f"{call.service}: declined")
        deed = Deed(
            now_us,
            call.service,
            call.key,
            call.run_id,
            call.slot,
            call.attempt,
            call.amount,
            call.process.name,
            call.late,
        )
        self.ledger.append(deed)
        self.by_slot.setdefault((call.run_id, call.slot), []).append(deed)
        value = receipt(call.service, call.amount)
        self._memory[name] = _Memory(value, None, now_us)
        self._found.setdefault(name, _Memory(value, None, now_us))
        self.journal.note(
            "vendor", f"{call.service} for {call.run_id} {call.slot} attempt {call.attempt}"
        )
        self.on_deed(deed)
        return value, None

    def look_up(self, service: str, key: str, lag_us: int) -> Any:
        """What a lookup by key answers, from an index that is `lag_us` behind."""
        found = self._found.get((service, key))
        if found is None or found.at_us + lag_us > self.universe.now_us:
            if found is not None:
                self.journal.fault("lookup lags", "vendor", key[:8])
            return Absent()
        return Rejected(found.error(f"{service}: declined")) if found.error else Found(found.value)

    def fault_p(self, call: Call) -> float:
        """The chance of a fault; for one slot in six nearly every call is bad."""
        name = (call.run_id, call.slot)
        if name not in self._cursed:
            self._cursed[name] = self.rng.random() < CURSED_P
        return min(0.9, 4 * self.rates.call_p) if self._cursed[name] else self.rates.call_p

    def done(self, run_id: str, slot: str) -> list[Deed]:
        """What the far system did for a slot."""
        return self.by_slot.get((run_id, slot), [])


CALL_MODES = (
    "acts, answer lost",
    "acts, then error",
    "slow",
    "fails before acting",
    "error before acting",
    "never answers",
)


@dataclass
class Link:
    """What one process has of the far system. `lease_ms`: for freezes that outlive it."""

    vendor: SimVendor
    process: SimProcess
    lease_ms: int
    dead: bool = False

    async def call(self, service: str, fx: Effect, amount: int) -> Any:
        """Send a call and wait for its answer. Raises NotDone, Declined, VendorError."""
        vendor, process, rng = self.vendor, self.process, self.vendor.rng
        now_us = vendor.universe.now_us
        call = Call(process, service, fx.run_id, fx.slot, fx.attempt, fx.key, amount, now_us)
        vendor.calls.append(call)
        vendor.on_call(call)
        try:
            if rng.random() < 0.5:
                fx.check()  # half of the authors look themselves, the others leave it to the engine
            await self._hook("before send")
            call.late = fx.remaining().total_seconds() <= 0
            call.sent = True
            value = await self._send(call)
            await self._hook("after answer")
            return value
        finally:
            if not self.dead:
                call.ended_us = vendor.universe.now_us

    async def _send(self, call: Call) -> Any:
        vendor, rng = self.vendor, self.vendor.rng
        mode = "ok"
        if rng.random() < vendor.fault_p(call):
            mode = rng.choice(CALL_MODES)
            vendor.journal.fault(mode, "vendor", f"{call.slot} of {call.run_id}")
        loop = self.process.loop
        future: asyncio.Future[Any] = loop.create_future()
        slow = mode == "slow"
        there_ms = rng.randint(1, TO_VENDOR_MS_MAX if slow else 12)
        there_ms += rng.randint(0, AT_VENDOR_MS_MAX if slow else 20)
        back_ms = rng.randint(1, 3_000 if slow else 12)

        def tell(value: Any, error: Exception | None) -> None:
            def deliver() -> None:
                if not future.done():
                    future.set_result(value) if error is None else future.set_exception(error)

            # Into the loop of the process that asked: it may be frozen, or dead, by then.
            vendor.universe.later(back_ms * 1000, lambda: _post(loop.call_soon, deliver))

        vendor.in_flight[call.run_id, call.slot] += 1
        if mode == "never answers" and rng.random() < 0.5:
            vendor.universe.later(there_ms * 1000, lambda: self._lost(call))
        else:
            vendor.universe.later(there_ms * 1000, lambda: vendor.arrive(call, mode, tell))
        return await future

    def _lost(self, call: Call) -> None:
        self.vendor.in_flight[call.run_id, call.slot] -= 1

    async def look_up(self, service: str, key: str) -> Any:
        """Ask the far system about `key`: one message there and back."""
        vendor, rng = self.vendor, self.vendor.rng
        await asyncio.sleep(rng.randint(1, 15) / 1000)
        if rng.random() < vendor.rates.lookup_p:
            match rng.randrange(3):
                case 0:
                    vendor.journal.fault("lookup raises", self.process.name, key[:8])
                    raise VendorError("lookup: connection reset")
                case 1:
                    vendor.journal.fault("lookup pending", self.process.name, key[:8])
                    return Pending()
                case _:
                    pass
        answer = vendor.look_up(service, key, rng.randint(0, LOOKUP_LAG_MS_MAX) * 1000)
        await asyncio.sleep(rng.randint(1, 15) / 1000)
        return answer

    async def read(self, what: str, amount: int) -> int:
        """A call that changes nothing; it may fail."""
        vendor, rng = self.vendor, self.vendor.rng
        await asyncio.sleep(rng.randint(1, 30) / 1000)
        if rng.random() < vendor.rates.call_p:
            vendor.journal.note(self.process.name, f"{what} {amount} fails")
            raise VendorError(f"{what}: 503")
        return amount * 3 + 1

    async def _hook(self, point: str) -> None:
        """Now and then the process dies or stops at this very point."""
        vendor, rng = self.vendor, self.vendor.rng
        if rng.random() >= vendor.rates.hook_p:
            return
        if rng.random() < 0.5:
            vendor.journal.fault(f"crash {point}", self.process.name)
            await self.process.kill_here()
        if point == "before send":
            duration_us = rng.randint(100, self.lease_ms * 3) * 1000
            vendor.journal.fault("freeze before send", self.process.name, f"{duration_us / 1e6} s")
            await self.process.freeze_here(duration_us, machine=rng.random() < 0.5)


def _post(call_soon: Callable[..., object], callback: Callable[[], None]) -> None:
    call_soon(callback)
