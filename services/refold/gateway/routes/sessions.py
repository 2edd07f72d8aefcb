"""The page's session: a token is given once, a cookie and a CSRF token come back."""

import time
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from refold.gateway.auth import Reader, anybody, check_site, count_refused, requires, verify
from refold.gateway.identity import Caller
from refold.gateway.roles import KNOWN, Role
from refold.gateway.sessions import COOKIE
from refold.gateway.shapes import Strict
from refold.gateway.state import Gateway, gateway_of
from refold_schemas.errors.gateway import NotAuthenticated

router = APIRouter(prefix="/api/v1/session", tags=["session"])


class LoginShape(Strict):
    """A token, as a bearer would send it."""

    token: str = Field(min_length=1, max_length=16_384)


class SessionShape(BaseModel):
    """Who is logged in. `csrf` goes into the header X-Refold-CSRF of requests that change
    something; it is None for a bearer token, which needs none."""

    who: str
    roles: list[Role]
    namespace: str
    csrf: str | None


async def begin(request: Request, response: Response, token: str) -> Caller:
    """Verify a token and set the session's cookie. Raises NotAuthenticated, RateLimited,
    ForgeryRefused: another site must not log somebody in either."""
    gateway = gateway_of(request)
    check_site(request)
    try:
        caller = await verify(token.strip(), gateway)
    except NotAuthenticated:
        count_refused(request, gateway)
        raise
    cookie, ends_s = gateway.sessions.begin(caller)
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=max(1, int(ends_s - time.time())),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return gateway.sessions.read(cookie)


def end(request: Request, response: Response, caller: Caller) -> None:
    """End the caller's session, and take the cookie away."""
    gateway_of(request).sessions.end(caller)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


def session_shape(gateway: Gateway, caller: Caller) -> SessionShape:
    """What the page is told of its session."""
    csrf = None if caller.session is None else gateway.sessions.csrf(caller)
    roles = [role for role in Role if role in caller.roles]
    return SessionShape(who=caller.who, roles=roles, namespace=gateway.namespace, csrf=csrf)


@router.post("", dependencies=[anybody])
async def login(request: Request, response: Response, given: LoginShape) -> SessionShape:
    """Begin a session: the answer sets an HttpOnly, SameSite=Strict cookie."""
    caller = await begin(request, response, given.token)
    return session_shape(gateway_of(request), caller)


@router.get("")
async def session(request: Request, caller: Reader) -> SessionShape:
    """Who is asking, with which roles."""
    return session_shape(gateway_of(request), caller)


@router.delete("", status_code=204)
async def logout(
    request: Request, response: Response, caller: Annotated[Caller, requires(KNOWN)]
) -> None:
    """End the session: its cookie is taken away, and copies of it are refused."""
    end(request, response, caller)
