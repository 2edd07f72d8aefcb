"""The carrier: books shipments under keys that never expire, and counts pallets."""

from collections.abc import Iterable

from world.messages import Answer, Request, Route
from world.vendors.base import Vendor
from world.vendors.fields import amount, text


class Carrier(Vendor):
    """A booking sends a lorry for the pallets named in it; two bookings send two."""

    name = "carrier"

    def routes(self) -> Iterable[Route]:
        """The carrier's addresses."""
        yield Route(self.name, "POST", "/carrier/shipments", self._book, writes=True, keyed=True)
        yield Route(self.name, "GET", "/carrier/by-key/{key}", self._keys.lookup)

    def _book(self, request: Request) -> Answer:
        reference, pallets = text(request, "reference"), amount(request, "pallets")
        return self._keys.serve(
            request, "shipment", lambda: self._send(request, reference, pallets)
        )

    def _send(self, request: Request, reference: str, pallets: int) -> Answer:
        shipment = {
            "tracking": f"TRK-{self._books.number('shipment'):07}",
            "reference": reference,
            "pallets": pallets,
        }
        self._books.record(self.name, "shipment", shipment, key=request.key)
        self._books.record(self.name, "pallet", shipment, key=request.key, quantity=pallets)
        return Answer(201, shipment)
