"""Notes on an order, put under a name: a write that may be repeated, because it sets a state."""

from collections.abc import Iterable

from world.messages import Answer, Request, Route, refusal
from world.vendors.base import Vendor
from world.vendors.fields import text


class Notes(Vendor):
    """Putting the same note again leaves the world as it was; only a changed text is an effect."""

    name = "notes"

    def routes(self) -> Iterable[Route]:
        """The notes' addresses."""
        yield Route(self.name, "PUT", "/notes/{order_id}/{note}", self._put, writes=True)
        yield Route(self.name, "GET", "/notes/{order_id}/{note}", self._show)

    def _put(self, request: Request) -> Answer:
        note = {**request.params, "text": text(request, "text")}
        if self._books.ledger.get("notes", self._place(request)) == note:
            self._books.count("duplicates", "note")
            return Answer(200, note)
        self._books.ledger.put("notes", self._place(request), note)
        self._books.record(self.name, "note", note, key=request.key)
        return Answer(200, note)

    def _show(self, request: Request) -> Answer:
        note = self._books.ledger.get("notes", self._place(request))
        if note is None:
            return refusal(404, "no_such_note", f"there is no note {self._place(request)}")
        return Answer(200, note)

    def _place(self, request: Request) -> str:
        return f"{request.params['order_id']}/{request.params['note']}"
