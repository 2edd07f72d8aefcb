"""The payment provider: refunds and charges under keys that live a day, with a lookup by key."""

from collections.abc import Iterable

from world.messages import Answer, Json, Request, Route, refusal
from world.vendors.base import Vendor
from world.vendors.fields import amount, text

CARD_ALWAYS_DECLINED = "card-declined"


class Payments(Vendor):
    """Money out (refunds) and money in (charges).

    Without an `Idempotency-Key` every call moves money. Under a key the first answer is replayed
    while the key lives, a decline included: a card that would be accepted by now needs a new key.
    """

    name = "payments"

    def routes(self) -> Iterable[Route]:
        """The provider's addresses."""
        yield Route(self.name, "POST", "/payments/refunds", self._refund, writes=True, keyed=True)
        yield Route(self.name, "POST", "/payments/charges", self._charge, writes=True, keyed=True)
        yield Route(self.name, "GET", "/payments/by-key/{key}", self._keys.lookup)
        yield Route(self.name, "PUT", "/payments/cards/{card}", self._set_card, writes=True)

    def _key_ttl_ms(self) -> int | None:
        return self._books.settings.payment_key_ttl_ms

    def _refund(self, request: Request) -> Answer:
        paid = {
            "order_id": text(request, "order_id"),
            "pence": amount(request, "pence"),
            "currency": request.body.get("currency", "GBP"),
        }
        return self._keys.serve(request, "refund", lambda: self._move(request, "refund", paid))

    def _charge(self, request: Request) -> Answer:
        paid = {
            "reference": text(request, "reference"),
            "cents": amount(request, "cents"),
            "currency": request.body.get("currency", "EUR"),
        }
        return self._keys.serve(request, "charge", lambda: self._move(request, "charge", paid))

    def _move(self, request: Request, kind: str, paid: Json) -> Answer:
        card = request.body.get("card")
        if isinstance(card, str) and self._declines(card):
            self._books.count("declines", kind)
            return refusal(402, "card_declined", f"card {card} was declined", decline_code="issuer")
        made = {"id": f"{kind}-{self._books.number(kind):06}", "status": "succeeded", **paid}
        self._books.record(self.name, kind, made, key=request.key)
        return Answer(201, made)

    def _declines(self, card: str) -> bool:
        if card == CARD_ALWAYS_DECLINED:
            return True
        left = self._books.ledger.get("payments.declines_left", card) or 0
        if left > 0:
            self._books.ledger.put("payments.declines_left", card, left - 1)
        return bool(left > 0)

    def _set_card(self, request: Request) -> Answer:
        """How often this card will be declined from now on; a stand-in for its holder's bank."""
        declines = amount(request, "declines")
        self._books.ledger.put("payments.declines_left", request.params["card"], declines)
        return Answer(200, {"card": request.params["card"], "declines": declines})
