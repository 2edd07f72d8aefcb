"""The buyer's ERP: a sequence generator, a lock with a handle that expires, orders by reference."""

from collections.abc import Iterable

from world.messages import Answer, Request, Route, refusal
from world.vendors.base import Vendor
from world.vendors.fields import amount, text


class Erp(Vendor):
    """The system of record for orders.

    References and locks take a key and can be looked up by it. A repeat under a lock's key gets
    the old handle, even an expired one: a new lock needs a new key. An order's own key is its
    reference.
    """

    name = "erp"

    def routes(self) -> Iterable[Route]:
        """The ERP's addresses."""
        yield Route(self.name, "POST", "/erp/references", self._mint, writes=True, keyed=True)
        yield Route(self.name, "POST", "/erp/locks", self._acquire, writes=True, keyed=True)
        yield Route(self.name, "GET", "/erp/locks/{handle}", self._show_lock)
        yield Route(self.name, "DELETE", "/erp/locks/{handle}", self._release, writes=True)
        yield Route(self.name, "POST", "/erp/orders", self._order, writes=True)
        yield Route(self.name, "GET", "/erp/orders/{reference}", self._show_order)
        yield Route(self.name, "GET", "/erp/by-key/{key}", self._keys.lookup)

    def _mint(self, request: Request) -> Answer:
        return self._keys.serve(request, "erp_reference", lambda: self._next_reference(request))

    def _next_reference(self, request: Request) -> Answer:
        settings = self._books.settings
        number = settings.erp_number_first + self._books.number("erp_reference") - 1
        minted = {"reference": f"{settings.erp_prefix}{number:04}"}
        self._books.record(self.name, "erp_reference", minted, key=request.key)
        return Answer(201, minted)

    def _acquire(self, request: Request) -> Answer:
        resource = text(request, "resource")
        ttl_ms = self._books.settings.erp_lock_ttl_ms
        if "ttl_ms" in request.body:
            ttl_ms = amount(request, "ttl_ms")
        return self._keys.serve(request, "erp_lock", lambda: self._lock(request, resource, ttl_ms))

    def _lock(self, request: Request, resource: str, ttl_ms: int) -> Answer:
        now_ms = self._books.now_ms()
        handle = self._books.ledger.get("erp.holders", resource)
        if handle is not None and self._valid(handle):
            lock = self._books.ledger.get("erp.locks", handle)
            return refusal(
                423,
                "locked",
                f"{resource} is locked until {lock['expires_at_ms']}",
                expires_at_ms=lock["expires_at_ms"],
            )
        lock = {
            "handle": f"lock-{self._books.number('erp_lock'):06}",
            "resource": resource,
            "expires_at_ms": now_ms + ttl_ms,
            "released": False,
        }
        self._books.ledger.put("erp.locks", lock["handle"], lock)
        self._books.ledger.put("erp.holders", resource, lock["handle"])
        self._books.record(self.name, "erp_lock", lock, key=request.key)
        return Answer(201, lock)

    def _show_lock(self, request: Request) -> Answer:
        handle = request.params["handle"]
        lock = self._books.ledger.get("erp.locks", handle)
        if lock is None:
            return refusal(404, "no_such_lock", f"no lock has the handle {handle}")
        return Answer(200, {**lock, "valid": self._valid(handle)})

    def _release(self, request: Request) -> Answer:
        handle = request.params["handle"]
        lock = self._books.ledger.get("erp.locks", handle)
        if lock is None:
            return refusal(404, "no_such_lock", f"no lock has the handle {handle}")
        if lock["released"]:
            self._books.count("duplicates", "erp_release")
            return Answer(200, lock)
        lock = {**lock, "released": True}
        self._books.ledger.put("erp.locks", handle, lock)
        self._books.record(self.name, "erp_release", lock, key=request.key)
        return Answer(200, lock)

    def _order(self, request: Request) -> Answer:
        reference, cents = text(request, "reference"), amount(request, "cents")
        order = {"reference": reference, "cents": cents, "lines": amount(request, "lines")}
        known = self._books.ledger.get("erp.orders", reference)
        if known is not None:
            if known != order:
                return refusal(409, "order_differs", f"order {reference} exists with other content")
            self._books.count("duplicates", "erp_order")
            return Answer(200, known)
        handle = request.body.get("lock")
        if handle is not None and not self._valid(handle):
            return refusal(
                409, "lock_not_held", f"lock {handle} has expired or was released; nothing was done"
            )
        self._books.ledger.put("erp.orders", reference, order)
        self._books.record(self.name, "erp_order", order, key=request.key)
        return Answer(201, order)

    def _show_order(self, request: Request) -> Answer:
        reference = request.params["reference"]
        order = self._books.ledger.get("erp.orders", reference)
        if order is None:
            return refusal(404, "no_such_order", f"there is no order {reference}")
        return Answer(200, order)

    def _valid(self, handle: object) -> bool:
        lock = self._books.ledger.get("erp.locks", str(handle))
        if lock is None or lock["released"]:
            return False
        return bool(self._books.now_ms() < lock["expires_at_ms"])
