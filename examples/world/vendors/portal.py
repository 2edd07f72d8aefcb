"""The supplier's portal: takes every order it is sent, and its search reads an old replica."""

from collections.abc import Iterable

from world.messages import Answer, Json, Request, Route
from world.vendors.base import Vendor
from world.vendors.fields import amount, text


class Portal(Vendor):
    """It knows no keys: the same reference sent twice is two orders with stock set aside for both.

    The search shows a replica up to `portal_lag_max_ms` old, and one time in
    `portal_empty_one_in` it comes back empty. An empty list proves nothing.
    """

    name = "portal"

    def routes(self) -> Iterable[Route]:
        """The portal's addresses."""
        yield Route(self.name, "POST", "/portal/orders", self._submit, writes=True)
        yield Route(self.name, "GET", "/portal/orders", self._search)

    def _submit(self, request: Request) -> Answer:
        sent: Json = {
            "reference": text(request, "reference"),
            "lines": amount(request, "lines"),
            "cents": amount(request, "cents"),
        }
        portal_id = f"P-{self._books.number('portal_order'):06}"
        order = {"portal_id": portal_id, **sent, "accepted_at_ms": self._books.now_ms()}
        self._books.ledger.put("portal.orders", portal_id, order)
        self._books.record(self.name, "portal_order", order, key=request.key)
        return Answer(202, order)

    def _search(self, request: Request) -> Answer:
        settings, dice = self._books.settings, self._books.draw("portal search")
        replica_ms = self._books.now_ms() - dice.randint(0, settings.portal_lag_max_ms)
        if settings.portal_empty_one_in and dice.randrange(settings.portal_empty_one_in) == 0:
            return Answer(200, {"orders": []})
        wanted = request.query.get("ref")
        found = [
            order
            for _, order in self._books.ledger.items("portal.orders")
            if order["accepted_at_ms"] <= replica_ms and wanted in (None, order["reference"])
        ]
        return Answer(200, {"orders": found})
