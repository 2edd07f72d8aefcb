"""JWTs of an identity provider: verified against its published keys, mapped to roles.

What is believed is said by the settings alone: issuer, audience, algorithms. A token says which key
it was signed with, and nothing else is taken from it before that signature holds.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import jwt

from refold.gateway.identity import WHO_MAX, Caller
from refold.gateway.roles import Role
from refold.gateway.settings import OidcSettings
from refold_schemas.errors.gateway import GatewayUnsafe, NotAuthenticated, ProviderUnavailable

JWKS_SIZE_MAX = 1 << 20
TOKEN_MAX = 16 << 10
STALE_S = 3600.0
"""How long keys are used while the provider does not answer."""
REQUIRED = ["exp", "iss", "aud"]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Fetch = Callable[[str, float], bytes]


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
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_s: float | None = None
        self._asked_s = float("-inf")
        self._problem = ""
        self._lock = asyncio.Lock()

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
        try:
            claims = jwt.decode(
                text,
                key,
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
        except (jwt.PyJWTError, ValueError, TypeError):
            raise NotAuthenticated("the token's signature does not hold") from None
        return self._caller(claims)

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        settings = self.settings
        who = claims[settings.who_claim]
        if not isinstance(who, str) or not 0 < len(who) <= WHO_MAX or not who.isprintable():
            raise NotAuthenticated(f"the token's {settings.who_claim} cannot be a name")
        roles = roles_in(claims, settings.role_claim, dict(settings.role_map))
        expires_s = float(claims["exp"]) + settings.leeway_s
        return Caller(who, roles, f"oidc {who}", None, expires_s)

    async def _key(self, key_id: str) -> jwt.PyJWK:
        if self._is_fresh() and key_id in self._keys:
            return self._keys[key_id]
        async with self._lock:
            now = self._clock()
            known = key_id in self._keys
            due = not (self._is_fresh() and known)
            # A stranger's tokens with made-up key ids must not make us ask the provider each time.
            if due and now - self._asked_s >= self.settings.jwks_again_s:
                self._asked_s = now
                await self._read()
            if self._read_s is None or self._clock() - self._read_s > STALE_S:
                raise ProviderUnavailable(self._problem or "they were not read yet")
            if key_id not in self._keys:
                raise NotAuthenticated("the token's key is not one of the identity provider's")
            return self._keys[key_id]

    def _is_fresh(self) -> bool:
        read_s = self._read_s
        return read_s is not None and self._clock() - read_s < self.settings.jwks_keep_s

    async def _read(self) -> None:
        settings = self.settings
        try:
            data = await asyncio.to_thread(self._fetch, settings.jwks_url, settings.timeout_s)
            found = {}
            for line in json.loads(data)["keys"]:
                if line.get("use", "sig") != "sig" or "kid" not in line or line["kty"] == "oct":
                    continue
                try:
                    found[str(line["kid"])] = jwt.PyJWK(line)
                except jwt.PyJWTError:
                    continue  # of a kind that we do not know: its tokens name an unknown key
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._problem = f"{type(error).__name__}: {error}"[:200]
            return
        self._keys, self._read_s, self._problem = found, self._clock(), ""


def roles_in(
    claims: Mapping[str, Any], role_claim: str, role_map: Mapping[str, str]
) -> frozenset[Role]:
    """The roles that claims give; an unknown value gives none. Without a map values are roles.

    >>> sorted(roles_in({"realm": {"roles": ["ops", "x"]}}, "realm.roles", {"ops": "operator"}))
    [<Role.OPERATOR: 'operator'>]
    >>> roles_in({"roles": "viewer admin"}, "roles", {}) == {Role.VIEWER, Role.ADMIN}
    True
    """
    found: Any = claims
    for part in [role_claim] if role_claim in claims else role_claim.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    values = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
    names = {role_map.get(one) if role_map else one for one in values if isinstance(one, str)}
    return frozenset(role for role in Role if role.value in names)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """A key set is where the settings say, or nowhere."""


def _fetch(url: str, timeout_s: float) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(url, timeout=timeout_s) as answer:
        data: bytes = answer.read(JWKS_SIZE_MAX + 1)
    if len(data) > JWKS_SIZE_MAX:
        raise ValueError(f"it is larger than {JWKS_SIZE_MAX:,} bytes")
    return data
