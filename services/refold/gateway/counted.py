"""What a gateway counts while it answers, and its labels: routes, classes of status, roles."""

from collections import Counter
from typing import Any

from refold.gateway.identity import Caller
from refold.gateway.roles import Role
from refold.telemetry.spread import Spread

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""A method that nobody has heard of: strangers make no series of their own."""
NOWHERE = "none"
"""The route of a request that no route takes, or that is refused before one is sought."""
NOBODY = "none"
"""The roles of who has none."""
CALLERS, FAILURES = "caller", "failures"
"""What was too often: a caller's requests; refused tokens from one address."""


class Counted:
    """Of one process since its start. The gateway's loop writes it, any thread reads it."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """By route, method and class of status."""
        self.seconds: dict[tuple[str, str], Spread] = {}
        """Until an answer begins, by route and method: a stream has no end that says anything."""
        self.rate_limited: Counter[str] = Counter()
        self.unauthenticated = 0
        self.role_missing: Counter[str] = Counter()
        """By the roles that the caller has."""

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request is answered, or cut off before it was (`status` 0)."""
        method = method if method in METHODS else OTHER
        kind = f"{status // 100}xx" if status else "none"
        self.requests[route, method, kind] += 1
        spread = self.seconds.get((route, method))
        if spread is None:
            spread = self.seconds[route, method] = Spread()
        spread.add(seconds)

    def role(self, caller: Caller) -> None:
        """A caller was refused for what their roles do not allow."""
        has = ",".join(role.value for role in Role if role in caller.roles)
        self.role_missing[has or NOBODY] += 1


def route_of(scope: Any) -> str:
    """The template of the route that took the request: never an id.

    >>> route_of({"path": "/api/v1/runs/order-1/history"})
    'none'
    """
    found = scope.get("route")
    template = getattr(found, "path_format", None) or getattr(found, "path", None)
    if isinstance(template, str) and template:
        return template
    return NOWHERE
