"""A booking desk for recorded conversations: does any named action, under a key, with a lookup.

Looking something up at the desk changes nothing.
"""

from collections.abc import Iterable

from world.messages import Answer, Request, Route
from world.vendors.base import Vendor


class Desk(Vendor):
    """What an action does is in the recording; here it counts once for each key.

    The body is `{"arguments": …, "result": …}`: the desk answers with the result that the
    recording has for this call, so that a played conversation goes on as it was.
    """

    name = "desk"

    def routes(self) -> Iterable[Route]:
        """The desk's addresses."""
        yield Route(self.name, "GET", "/desk/by-key/{key}", self._keys.lookup)
        yield Route(self.name, "POST", "/desk/{action}", self._do, writes=True, keyed=True)
        yield Route(self.name, "POST", "/desk/{action}/look", self._look)

    def _do(self, request: Request) -> Answer:
        kind = f"desk:{request.params['action']}"
        return self._keys.serve(request, kind, lambda: self._act(request, kind))

    def _look(self, request: Request) -> Answer:
        return Answer(200, {"result": request.body.get("result")})

    def _act(self, request: Request, kind: str) -> Answer:
        done = {"number": self._books.number(kind), "result": request.body.get("result")}
        arguments = request.body.get("arguments")
        self._books.record(self.name, kind, {**done, "arguments": arguments}, key=request.key)
        return Answer(201, done)
