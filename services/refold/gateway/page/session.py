"""Signing in to the page and out of it, and where one is led then."""

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from refold.gateway.auth import anybody
from refold.gateway.page.asking import Anyone, PageRoute, Text, form_of
from refold.gateway.page.site import HEADERS, Page
from refold.gateway.problems import status_of
from refold.gateway.routes.sessions import begin, end
from refold.gateway.state import gateway_of
from refold_schemas.errors import RefoldError

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login", dependencies=[anybody])
async def login_page(request: Request, to: Text = None) -> Response:
    """Where a token is given."""
    page = Page(request, gateway_of(request), None)
    return page.answer("login.html", follow=False, error=None, to=_place(to))


@router.post("/login", dependencies=[anybody])
async def login(request: Request) -> Response:
    """Begin a session and go on to where one wanted to go."""
    form = await form_of(request)
    to = _place(form.get("to"))
    answer = RedirectResponse(to, 303, HEADERS)
    try:
        await begin(request, answer, form.get("token", ""))
    except RefoldError as error:
        page = Page(request, gateway_of(request), None)
        return page.answer("login.html", status=status_of(error), error=error, to=to)
    return answer


@router.post("/logout")
async def logout(request: Request, caller: Anyone) -> Response:
    """End the session: its cookie is taken away, and copies of it are refused."""
    answer = RedirectResponse("/login", 303, HEADERS)
    end(request, answer, caller)
    return answer


def _place(to: str | None) -> str:
    """A place of ours: a path, not the address of somebody else's."""
    if not to or not to.startswith("/") or to.startswith(("//", "/\\")) or "\\" in to:
        return "/"
    return to if to.isprintable() and to.isascii() else "/"
