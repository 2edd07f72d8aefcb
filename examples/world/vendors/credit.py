"""The credit bureau: the caller's request id is the key, and the lookup by it lags behind."""

from collections.abc import Iterable

from world.messages import Answer, Request, Route, refusal
from world.vendors.base import Vendor
from world.vendors.fields import amount, text

LIMIT_CENTS = 5_000_000


class CreditBureau(Vendor):
    """A check costs money, and each one is visible to every other lender.

    Repeats of a request id get the same decision. The lookup reads a copy that is
    `credit_lag_ms` old: absent there means absent, or late.
    """

    name = "credit"

    def routes(self) -> Iterable[Route]:
        """The bureau's addresses."""
        yield Route(self.name, "POST", "/credit/checks", self._check, writes=True)
        yield Route(self.name, "GET", "/credit/checks/{request_id}", self._lookup)

    def _check(self, request: Request) -> Answer:
        request_id, buyer = text(request, "request_id"), text(request, "buyer")
        cents = amount(request, "cents")
        known = self._books.ledger.get("credit.checks", request_id)
        if known is not None:
            if (known["buyer"], known["cents"]) != (buyer, cents):
                return refusal(
                    422, "request_id_reused", f"request {request_id} asked something else before"
                )
            self._books.count("duplicates", "credit_check")
            return Answer(201, known)
        check = {
            "request_id": request_id,
            "buyer": buyer,
            "cents": cents,
            "approved": cents <= LIMIT_CENTS,
            "checked_at_ms": self._books.now_ms(),
        }
        self._books.ledger.put("credit.checks", request_id, check)
        self._books.record(self.name, "credit_check", check, key=request_id)
        return Answer(201, check)

    def _lookup(self, request: Request) -> Answer:
        request_id = request.params["request_id"]
        check = self._books.ledger.get("credit.checks", request_id)
        seen_until_ms = self._books.now_ms() - self._books.settings.credit_lag_ms
        if check is None or check["checked_at_ms"] > seen_until_ms:
            return refusal(
                404,
                "no_such_request",
                f"no check {request_id} up to {seen_until_ms}",
                seen_until_ms=seen_until_ms,
            )
        return Answer(
            200, {"key": request_id, "state": "succeeded", "status": 201, "answer": check}
        )
