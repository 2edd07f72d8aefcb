"""JWTs of an identity provider: verified against its published keys, mapped to roles.

What is believed is said by the settings alone: issuer, audience, algorithms. A token says which key
it was signed with, and nothing else is taken from it before that signature holds.
"""

import asyncio
import http.client
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt

from refold.gateway.identity import WHO_MAX, Caller
from refold.gateway.roles import Role
from refold.gateway.settings import OidcSettings
from refold_schemas.errors.gateway import GatewayUnsafe, NotAuthenticated, ProviderUnavailable

JWKS_SIZE_MAX = 1 << 20
READ_SIZE = 64 << 10
TOKEN_MAX = 16 << 10
STALE_S = 3600.0
"""How long keys are used while the provider does not answer."""
PATIENCE_S = 1.0
"""How long whoever has a known key waits for the set to be read again, from when that began."""
REQUIRED = ["exp", "iss", "aud"]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

UNREADABLE = (
    *(OSError, http.client.HTTPException),  # the second: it broke off, or speaks no HTTP
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
"""What says that a provider gave no key set; those that were read before are used then."""

OF_NO_KEY = (
    *(jwt.PyJWTError, NotImplementedError, ValueError, TypeError),
    *(KeyError, AttributeError),
)
"""What says of one line of a set that it is no key of ours."""

Fetch = Callable[[str, float], bytes]


class _Key(NamedTuple):
    """A key of the provider; `algorithm` is the only one that it is for, None: as the token says.

    A set need not say that, and an RSA key fits RS256 and PS256.
    """

    public: Any
    algorithm: str | None


def check_oidc(settings: OidcSettings) -> None:
    """Raise GatewayUnsafe for settings by which a stranger could be believed."""
    forbidden = [one for one in settings.algorithms if one == "none" or one.startswith("HS")]
    if forbidden or not settings.algorithms:
        raise GatewayUnsafe(
            f"REFOLD_GATEWAY_OIDC_ALGORITHMS allows {', '.join(forbidden) or 'nothing'}",
            "name algorithms with a public key, such as RS256 or ES256",
        )
    parts = urlsplit(settings.jwks_url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise GatewayUnsafe(
            "REFOLD_GATEWAY_OIDC_JWKS_URL is no https URL: whoever is on the way could put in keys",
            "use https, or a provider on this machine",
        )
    known = {role.value for role in Role}
    unknown = sorted({role for _, role in settings.role_map} - known)
    if unknown or not settings.issuer or not settings.audience:
        names = ", ".join(unknown)
        what = f"maps to unknown roles {names}" if unknown else "lacks an issuer or an audience"
        raise GatewayUnsafe(
            f"the identity provider's settings cannot be used: it {what}",
            "see docs/gateway.md, An identity provider",
        )


class Oidc:
    """Verifies JWTs. `fetch` reads the key set: bytes of a URL within seconds."""

    def __init__(
        self,
        settings: OidcSettings,
        *,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_oidc(settings)
        self.settings, self._fetch, self._clock = settings, fetch or _fetch, clock
        self._keys: dict[str, _Key] = {}
        self._read_s: float | None = None
        self._asked_s = float("-inf")
        self._problem = ""
        self._reading: asyncio.Task[None] | None = None
        """The one fetch that is under way, or was the last."""
        self._reading_s = 0.0
        """When that began, on the loop's clock."""

    async def verify(self, text: str) -> Caller:
        """The caller of a JWT. Raises NotAuthenticated, ProviderUnavailable."""
        settings = self.settings
        if len(text) > TOKEN_MAX:
            raise NotAuthenticated("the token is too long")
        try:
            header = jwt.get_unverified_header(text)
        except jwt.PyJWTError:
            raise NotAuthenticated("the token is no JWT") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in settings.algorithms:
            raise NotAuthenticated("the token is signed by an algorithm that is not allowed")
        if not isinstance(key_id, str):
            raise NotAuthenticated("the token does not name its key")
        key = await self._key(key_id)
        if key.algorithm not in (None, algorithm):
            raise NotAuthenticated("the token's key is for another algorithm")
        try:
            claims = jwt.decode(
                text,
                key.public,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": [*REQUIRED, settings.who_claim]},
            )
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("the token has expired") from None
        except jwt.InvalidAudienceError:
            raise NotAuthenticated("the token is for another audience") from None
        except jwt.InvalidIssuerError:
            raise NotAuthenticated("the token is of another issuer") from None
        except jwt.ImmatureSignatureError:
            raise NotAuthenticated("the token is not valid yet") from None
        except jwt.MissingRequiredClaimError as error:
            raise NotAuthenticated(f"the token lacks the claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise NotAuthenticated("the token's signature does not hold") from None
        return self._caller(claims)

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        settings = self.settings
        who = claims[settings.who_claim]
        if not isinstance(who, str) or not 0 < len(who) <= WHO_MAX or not who.isprintable():
            raise NotAuthenticated(f"the token's {settings.who_claim} cannot be a name")
        roles = roles_in(claims, settings.role_claim, settings.role_map)
        expires_s = float(claims["exp"]) + settings.leeway_s
        return Caller(who, roles, f"oidc {who}", None, expires_s)

    async def _key(self, key_id: str) -> _Key:
        if not (self._is_fresh() and key_id in self._keys):
            # Callers whose key is known wait for the provider no longer than it usually takes:
            # one that hangs must not hold up everybody.
            known = key_id in self._keys and self._is_usable()
            await self._read_again(PATIENCE_S if known else self.settings.timeout_s)
        if not self._is_usable():
            raise ProviderUnavailable(self._problem or "they were not read yet")
        if key_id in self._keys:
            return self._keys[key_id]
        if self._problem:  # it may be a new one: that it is unknown nobody can say
            raise ProviderUnavailable(self._problem)
        raise NotAuthenticated("the token's key is not one of the identity provider's")

    async def _read_again(self, patience_s: float) -> None:
        """Have the set read if that is due, and wait for it so long from when that began."""
        loop, reading = asyncio.get_running_loop(), self._reading
        if reading is None or reading.done():
            # A stranger's tokens with made-up key ids must not make us ask the provider each time.
            if self._clock() - self._asked_s < self.settings.jwks_again_s:
                return
            self._asked_s, self._reading_s = self._clock(), loop.time()
            reading = self._reading = asyncio.create_task(self._read(), name="jwks")
        left_s = self._reading_s + patience_s - loop.time()
        if left_s > 0:
            await asyncio.wait({reading}, timeout=left_s)
        if reading.done():
            reading.result()
        elif patience_s >= self.settings.timeout_s:
            self._problem = f"it has not answered within {self.settings.timeout_s:g} s"

    def _is_usable(self) -> bool:
        return self._read_s is not None and self._clock() - self._read_s <= STALE_S

    def _is_fresh(self) -> bool:
        read_s = self._read_s
        return read_s is not None and self._clock() - read_s < self.settings.jwks_keep_s

    async def _read(self) -> None:
        settings = self.settings
        try:
            data = await asyncio.to_thread(self._fetch, settings.jwks_url, settings.timeout_s)
            found: dict[str, _Key] = {}
            lines = json.loads(data)["keys"]
            if not isinstance(lines, list):
                raise TypeError("its keys are no list")
            for line in lines:
                # One of a kind that we do not know is passed over: its tokens name an unknown key.
                with suppress(*OF_NO_KEY):
                    if line.get("use", "sig") == "sig" and line["kty"] != "oct":
                        found[str(line["kid"])] = _Key(jwt.PyJWK(line).key, line.get("alg"))
        except UNREADABLE as error:
            self._problem = f"{type(error).__name__}: {error}"[:200]
            return
        self._keys, self._read_s, self._problem = found, self._clock(), ""


def roles_in(
    claims: Mapping[str, Any], role_claim: str, role_map: Sequence[tuple[str, str]]
) -> frozenset[Role]:
    """The roles that claims give; an unknown value gives none. Without a map values are roles; with
    one a value gives every role that stands beside it.

    >>> both = (("ops", "operator"), ("ops", "approver"))
    >>> sorted(roles_in({"realm": {"roles": ["ops", "x"]}}, "realm.roles", both))
    [<Role.APPROVER: 'approver'>, <Role.OPERATOR: 'operator'>]
    >>> roles_in({"roles": "viewer admin"}, "roles", ()) == {Role.VIEWER, Role.ADMIN}
    True
    """
    found: Any = claims
    for part in [role_claim] if role_claim in claims else role_claim.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    values = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
    given = {one for one in values if isinstance(one, str)}
    names = {role for group, role in role_map if group in given} if role_map else given
    return frozenset(role for role in Role if role.value in names)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """A key set is where the settings say, or nowhere."""


class _Until(io.RawIOBase):
    """What comes over a socket, up to a time.

    A socket's own limit is one for each read: a byte now and then would keep us for ever, in the
    lines before the body too.
    """

    def __init__(self, raw: io.RawIOBase, timeout_s: float, ends_s: float) -> None:
        self._raw, self._timeout_s, self._ends_s = raw, timeout_s, ends_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._ends_s:
            raise TimeoutError(f"it has not ended within {self._timeout_s:g} s")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _opener(timeout_s: float) -> urllib.request.OpenerDirector:
    """Opens URLs whose answers end in time."""
    ends_s = time.monotonic() + timeout_s

    class Answer(http.client.HTTPResponse):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.fp = io.BufferedReader(_Until(self.fp.detach(), timeout_s, ends_s))

    class Plain(http.client.HTTPConnection):
        response_class = Answer

    class Secured(http.client.HTTPSConnection):
        response_class = Answer

    class OfPlain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class OfSecured(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secured, req)

    return urllib.request.build_opener(_NoRedirects, OfPlain, OfSecured)


def _fetch(url: str, timeout_s: float) -> bytes:
    data = b""
    with _opener(timeout_s).open(url, timeout=timeout_s) as answer:
        while part := answer.read1(READ_SIZE):
            data += part
            if len(data) > JWKS_SIZE_MAX:
                raise ValueError(f"it is larger than {JWKS_SIZE_MAX:,} bytes")
        if answer.length:
            raise http.client.IncompleteRead(data, answer.length)
    return data
