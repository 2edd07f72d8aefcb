"""The ticket system: tickets under the client's own key, for ever, with a lookup by it."""

from collections.abc import Iterable

from world.messages import Answer, Request, Route
from world.vendors.base import Vendor
from world.vendors.fields import text


class Tickets(Vendor):
    """One ticket a key."""

    name = "tickets"

    def routes(self) -> Iterable[Route]:
        """The ticket system's addresses."""
        yield Route(self.name, "POST", "/tickets", self._create, writes=True, keyed=True)
        yield Route(self.name, "GET", "/tickets/by-key/{key}", self._keys.lookup)

    def _create(self, request: Request) -> Answer:
        subject = text(request, "subject")
        return self._keys.serve(request, "ticket", lambda: self._open(request, subject))

    def _open(self, request: Request, subject: str) -> Answer:
        ticket = {
            "ticket": f"T-{self._books.number('ticket'):05}",
            "subject": subject,
            "order_id": request.body.get("order_id"),
        }
        self._books.record(self.name, "ticket", ticket, key=request.key)
        return Answer(201, ticket)
