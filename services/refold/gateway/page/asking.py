"""Who asks for a page and in which fields, and how one is told that one may not: by a page."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute

from refold.gateway.auth import Requires, check_origin, check_rate, check_role, identify
from refold.gateway.identity import Caller
from refold.gateway.page.site import HEADERS, Page, url
from refold.gateway.problems import problem
from refold.gateway.roles import KNOWN, OPERATE, READ, SETTLE
from refold.gateway.sessions import CSRF_FIELD
from refold.gateway.state import gateway_of
from refold_schemas.errors import RefoldError
from refold_schemas.errors.gateway import (
    NoSuchPlace,
    NotAuthenticated,
    RequestInvalid,
)

FIELDS_MAX = 20
FIELD_MAX = 200
CURSOR_MAX = 4_000
RUN_ID_MAX = 1_000
FORM = "application/x-www-form-urlencoded"
TITLES = {
    HTTPStatus.FORBIDDEN: "You may not do this",
    HTTPStatus.NOT_FOUND: "There is no such run",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not there at the moment",
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route whose errors are pages; who is not signed in is sent to where one does that."""

    def get_route_handler(self) -> Handler:
        """The handler with errors told."""
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handle(request)
            except RefoldError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in first["loc"])
                return error_page(request, RequestInvalid(f"{place}: {first['msg']}"))

        return told


def error_page(request: Request, error: RefoldError) -> Response:
    """What went wrong, as a page."""
    if isinstance(error, NotAuthenticated) and request.url.path != "/login":
        to = request.url.path
        if request.method == "GET" and request.url.query:
            to = f"{to}?{request.url.query}"
        if request.method != "GET":
            to = "/"
        answer = RedirectResponse(url("/login", to=to), 303, HEADERS)
        return answer
    status, _, headers = problem(error, str(request.scope.get("refold.request_id", "")))
    page = Page(request, gateway_of(request), getattr(request.state, "caller", None))
    title = TITLES.get(HTTPStatus(status), "This did not work")
    if isinstance(error, NoSuchPlace):
        title = "There is nothing here"
    answer_page = page.answer("problem.html", status=status, error=error, title=title)
    if "Retry-After" in headers:
        answer_page.headers["Retry-After"] = headers["Retry-After"]
    return answer_page


def no_such_page(app: FastAPI) -> None:
    """Answer a browser with a page where nothing is served; programs, and the API, as before."""
    for_programs = app.exception_handlers[HTTPStatus.NOT_FOUND]

    async def missing(request: Request, error: Exception) -> Response:
        reads = "text/html" in request.headers.get("accept", "")
        if reads and not request.url.path.startswith("/api/"):
            told = NoSuchPlace("no page has this address", next="look from the overview on")
            return error_page(request, told)
        answer = for_programs(request, error)
        return answer if isinstance(answer, Response) else await answer

    app.add_exception_handler(HTTPStatus.NOT_FOUND, missing)


class Looks(Requires):
    """Who reads a page."""

    async def __call__(  # type: ignore[override]  # without what is for the API's document
        self, request: Request
    ) -> Caller:
        """As the API's, and remembered for the page that tells of an error."""
        gateway = gateway_of(request)
        caller = await identify(request, gateway)
        request.state.caller = caller
        check_rate(gateway, caller)
        await self.check(request, caller)
        check_role(gateway, caller, self.allowed)
        return caller

    async def check(self, request: Request, caller: Caller) -> None:
        """Reading needs no proof of where the request is from."""


class Acts(Looks):
    """Who sends a form: its field `csrf` proves that our own page has made it."""

    async def check(self, request: Request, caller: Caller) -> None:
        """Raises ForgeryRefused, RequestInvalid."""
        form = await form_of(request)
        check_origin(request, gateway_of(request), caller, form.get(CSRF_FIELD, ""))


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, each once. Raises RequestInvalid."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise RequestInvalid("the body is no form")
    try:
        text = (await request.body()).decode("ascii")
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except (UnicodeDecodeError, ValueError):
        raise RequestInvalid("the form cannot be read") from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise RequestInvalid("a field of the form is given twice")
    return form


Reader = Annotated[Caller, Depends(Looks(READ))]
Operator = Annotated[Caller, Depends(Acts(OPERATE))]
Settler = Annotated[Caller, Depends(Acts(SETTLE))]
Anyone = Annotated[Caller, Depends(Acts(KNOWN))]

Text = Annotated[str | None, Query(max_length=FIELD_MAX)]
Cursor = Annotated[str | None, Query(max_length=CURSOR_MAX)]
Id = Annotated[str, Query(alias="id", max_length=RUN_ID_MAX)]
