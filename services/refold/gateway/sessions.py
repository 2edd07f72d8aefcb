"""Cookie sessions of the page: signed, HttpOnly, SameSite; and the proof that our page has asked.

A cookie holds who logged in and until when, signed with the key of the tokens' file, so any gateway
of that file can read it. With each request the token is looked up again: a revoked one ends its
sessions; one that was logged out of is refused by the gateway that was told. A browser sends
cookies along with requests that other sites make, so each request that changes something must also
carry the session's CSRF token, which only our own page can read.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from refold.gateway.ended import EndedSessions
from refold.gateway.identity import Caller
from refold.gateway.roles import Role
from refold.gateway.tokens import TokenFile
from refold_schemas.errors.gateway import NotAuthenticated

COOKIE = "refold_session"
CSRF_HEADER = "X-Refold-CSRF"
CSRF_FIELD = "csrf"
COOKIE_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes and reads cookies. `valid_s`: how long one lasts; a token's own end may come before."""

    tokens: TokenFile
    namespace: str
    valid_s: float
    clock: Callable[[], float] = time.time
    ended: EndedSessions = field(default_factory=EndedSessions)

    def begin(self, caller: Caller) -> tuple[str, float]:
        """The cookie's text for a caller that has just been verified, and when it ends."""
        now = self.clock()
        ends_s = now + self.valid_s
        if caller.expires_s is not None:
            ends_s = min(ends_s, caller.expires_s)
        said = {
            "id": secrets.token_urlsafe(12),
            "who": caller.who,
            "roles": [role.value for role in Role if role in caller.roles],
            "key": caller.key,
            "ns": self.namespace,
            "begun": now,
            "ends": int(ends_s),
        }
        body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
        return f"{body}.{self._sign('cookie', body)}", ends_s

    def read(self, cookie: str) -> Caller:
        """The caller of a cookie. Raises NotAuthenticated."""
        body, _, signature = cookie.partition(".")
        given = signature.encode("utf-8", "surrogatepass")
        same = hmac.compare_digest(self._sign("cookie", body).encode(), given)
        if len(cookie) > COOKIE_MAX or not same:
            raise NotAuthenticated("the session is unknown: log in again")
        said = json.loads(base64.urlsafe_b64decode(body))
        if said["ns"] != self.namespace or said["ends"] <= self.clock():
            raise NotAuthenticated("the session has ended: log in again")
        key = str(said["key"])
        # One that an older version made does not say when it began.
        if self.ended.has(key, str(said["id"]), begun=float(said.get("begun", 0.0))):
            raise NotAuthenticated("the session was ended: log in again")
        kind, _, token_id = key.partition(" ")
        if kind == "token":  # revoked meanwhile, or with other roles?
            caller = self.tokens.still(token_id, self.namespace)
        else:
            roles = frozenset(Role(role) for role in said["roles"])
            caller = Caller(str(said["who"]), roles, key, None, float(said["ends"]))
        return replace(caller, session=str(said["id"]))

    def end(self, caller: Caller) -> None:
        """End the session that the caller came with: no copy of its cookie is believed from now on.

        By this process; others, and this one once it is started again, do not know of it.
        """
        if caller.session is not None:
            now = self.clock()
            self.ended.add(caller.key, caller.session, now=now, until=now + self.valid_s)

    def csrf(self, caller: Caller) -> str:
        """What the session's own page sends with each request that changes something."""
        return self._sign("csrf", caller.session or "")

    def is_csrf(self, caller: Caller, given: str) -> bool:
        """Whether `given` is that."""
        wanted = self.csrf(caller).encode()
        return hmac.compare_digest(wanted, given.encode("utf-8", "surrogatepass"))

    def _sign(self, purpose: str, text: str) -> str:
        data = f"{purpose}\n{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self.tokens.session_key, data, hashlib.sha256).hexdigest()
