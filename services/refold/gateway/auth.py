"""Who may: each route says it with `requires(...)`, or with `anybody` that it asks nobody."""

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import APIKeyCookie, HTTPBearer
from fastapi.staticfiles import StaticFiles

from refold.gateway.counted import CALLERS, FAILURES
from refold.gateway.identity import Caller
from refold.gateway.roles import READ, Role, words
from refold.gateway.sessions import COOKIE, CSRF_HEADER
from refold.gateway.state import Gateway, gateway_of
from refold_schemas.errors.gateway import (
    ForgeryRefused,
    NotAuthenticated,
    RateLimited,
    RoleMissing,
)

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
INSECURE = "insecure"
"""Who asks where nobody is asked who they are."""

_bearer = HTTPBearer(auto_error=False, description="A token of `refold gateway tokens`, or a JWT.")
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, description="The session of the page.")


class Requires:
    """A dependency: the verified caller, who has one of `allowed`."""

    def __init__(self, allowed: frozenset[Role]) -> None:
        self.allowed = allowed

    async def __call__(
        self,
        request: Request,
        _bearer: Annotated[Any, Depends(_bearer)] = None,
        _cookie: Annotated[Any, Depends(_cookie)] = None,
    ) -> Caller:
        """Raises NotAuthenticated, RateLimited, ForgeryRefused, RoleMissing."""
        gateway = gateway_of(request)
        caller = await identify(request, gateway)
        check_rate(gateway, caller)
        check_origin(request, gateway, caller, request.headers.get(CSRF_HEADER, ""))
        check_role(gateway, caller, self.allowed)
        return caller


def check_rate(gateway: Gateway, caller: Caller) -> None:
    """Count a request of the caller. Raises RateLimited."""
    wait_s = gateway.rates.take(caller.key)
    if wait_s:
        gateway.counted.rate_limited[CALLERS] += 1
        raise RateLimited(caller.who, gateway.settings.rate_per_s, wait_s)


def check_role(gateway: Gateway, caller: Caller, allowed: frozenset[Role]) -> None:
    """That the caller has one of those roles. Raises RoleMissing."""
    if not caller.may(allowed):
        gateway.counted.role(caller)
        has = words(caller.roles) if caller.roles else "none"
        raise RoleMissing(caller.who, has, words(allowed))


class Anybody:
    """A dependency that says of a route that it asks nobody who they are."""

    async def __call__(self) -> None:
        """Nothing to check."""


def requires(allowed: frozenset[Role]) -> Any:
    """`Annotated[Caller, requires(OPERATE)]`: the route is for those roles."""
    return Depends(Requires(allowed))


anybody = Depends(Anybody())
Reader = Annotated[Caller, requires(READ)]


def routes_in(app: Any) -> Iterator[APIRoute]:
    """Every route of an app or a router, those of routers that it includes among them.

    Raises LookupError for what is neither a route nor a folder of files: nobody would be asked who
    they are there.
    """
    for one in app.routes:
        if isinstance(one, APIRoute):
            yield one
        elif (included := getattr(one, "original_router", None)) is not None:
            yield from routes_in(included)
        elif not isinstance(getattr(one, "app", None), StaticFiles):
            raise LookupError(f"{one!r} does not say who may ask it")


def roles_of(route: APIRoute) -> frozenset[Role] | None:
    """The roles that a route is for; None where it says that it asks nobody.

    Raises LookupError for a route that says neither, or both.
    """
    calls = [one.call for one in _all(route.dependant)]
    allowed = [call.allowed for call in calls if isinstance(call, Requires)]
    open_to_all = any(isinstance(call, Anybody) for call in calls)
    if open_to_all == bool(allowed):
        raise LookupError(f"{route.path} does not say who may ask it")
    return None if open_to_all else frozenset.intersection(*allowed)


def _all(dependant: Dependant) -> Iterator[Dependant]:
    for one in dependant.dependencies:
        yield one
        yield from _all(one)


async def identify(request: Request, gateway: Gateway) -> Caller:
    """Who sends this request. Raises NotAuthenticated, RateLimited, TokensUnusable,
    ProviderUnavailable."""
    if gateway.settings.insecure:
        return Caller(gateway.settings.insecure_who, frozenset({Role.ADMIN}), INSECURE)
    try:
        return await _identified(request, gateway)
    except NotAuthenticated:
        if "authorization" in request.headers or COOKIE in request.cookies:
            count_refused(request, gateway)  # who brings nothing is not guessing
        gateway.counted.unauthenticated += 1
        raise


def count_refused(request: Request, gateway: Gateway) -> None:
    """Count a refused token of the request's address. Raises RateLimited.

    Not before it is refused: behind one address (a proxy, an office) others have good ones, and
    no wait is needed against guessing at 32 random bytes, only against being asked too much.
    """
    address = request.client.host if request.client is not None else "?"
    wait_s = gateway.failures.take(address)
    if wait_s:
        gateway.counted.rate_limited[FAILURES] += 1
        raise RateLimited(f"{address} with refused tokens", gateway.failures.per_s, wait_s)


async def _identified(request: Request, gateway: Gateway) -> Caller:
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise NotAuthenticated("there is more than one Authorization header")
    if given:
        scheme, _, text = given[0].partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise NotAuthenticated("the Authorization header is no bearer token")
        return await verify(text.strip(), gateway)
    cookie = request.cookies.get(COOKIE)
    if cookie:
        return gateway.sessions.read(cookie)
    raise NotAuthenticated("the request carries no token")


async def verify(text: str, gateway: Gateway) -> Caller:
    """The caller of a token's text: one of our own, or a JWT of the identity provider."""
    if gateway.oidc is not None and text.count(".") == 2:
        return await gateway.oidc.verify(text)
    return gateway.tokens.verify(text, gateway.namespace)


def check_origin(request: Request, gateway: Gateway, caller: Caller, csrf: str) -> None:
    """That a request which changes something comes from our own page. Raises ForgeryRefused.

    A bearer token is proof enough: no browser adds one by itself. Without authentication
    (`--insecure`) there is no session to prove: then what the browser says of the origin counts.
    """
    if request.method in SAFE:
        return
    if caller.session is None and not gateway.settings.insecure:
        return
    check_site(request)
    if caller.session is not None and not gateway.sessions.is_csrf(caller, csrf):
        raise ForgeryRefused(f"it has no valid {CSRF_HEADER}")


def check_site(request: Request) -> None:
    """That a browser does not say it comes from another site. Raises ForgeryRefused."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise ForgeryRefused(f"the browser says that it comes from {site}")
    origin = request.headers.get("origin")
    if origin is not None and _netloc(origin) != request.headers.get("host"):
        raise ForgeryRefused("its Origin is another one than ours")


def _netloc(origin: str) -> str | None:
    """Host and port of an origin; None where it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
