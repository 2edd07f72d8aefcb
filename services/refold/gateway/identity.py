"""Who asks, once that is verified."""

from dataclasses import dataclass

from refold.gateway.roles import Role

WHO_MAX = 200
"""Characters of a caller's name as commands record it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A verified caller. `who` goes into every command as `by`; whatever a client says of itself
    is not asked.

    `key` is what its rate is counted by. `session` is the cookie session it came with, None for a
    bearer token. `expires_s` is when it ends (seconds since 1970), None: never.
    """

    who: str
    roles: frozenset[Role]
    key: str
    session: str | None = None
    expires_s: float | None = None

    def may(self, allowed: frozenset[Role]) -> bool:
        """Whether one of its roles is among those; of `KNOWN`: it is known."""
        return not allowed or bool(self.roles & allowed)
