"""The e-mail sender: no key, no lookup, no message id; every accepted call is a sent message."""

from collections.abc import Iterable

from world.messages import Answer, Request, Route
from world.vendors.base import Vendor
from world.vendors.fields import text


class Mail(Vendor):
    """Nobody can ask it what it has done: a step that sends needs `escalate`."""

    name = "email"

    def routes(self) -> Iterable[Route]:
        """The sender's one address."""
        yield Route(self.name, "POST", "/email/messages", self._send, writes=True)

    def _send(self, request: Request) -> Answer:
        message = {name: text(request, name) for name in ("to", "subject", "body")}
        # The key, if one came, is written down for the reader of the ledger; it changes nothing.
        self._books.record(self.name, "email", message, key=request.key)
        return Answer(202, {"accepted": True})
