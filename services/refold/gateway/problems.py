"""Every error as problem details (RFC 9457): our code, what was kept, what to do next, its page."""

import math
import sys
import traceback
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from refold_schemas.errors import (
    BadCommandText,
    BadRunId,
    BatchTooLarge,
    LogUnavailable,
    OffsetOutOfRange,
    RefoldError,
    SchemaUnavailable,
    ValueRefused,
    ValueTooLarge,
)
from refold_schemas.errors.cli import (
    CommandGone,
    CommandHopeless,
    CommandIdReused,
    CommandNotRejected,
    CommandRefused,
    CommandUndecided,
    CommandUnknown,
    FunctionUnknown,
    InputInvalid,
    InputUnreadable,
    RunUnknown,
    SettingInvalid,
    SignatureRefused,
    TooEarly,
    UsageRefused,
)
from refold_schemas.errors.gateway import (
    GatewayDefect,
    GatewayError,
    MethodNotThere,
    NoSuchPlace,
    RequestInvalid,
)

MEDIA_TYPE = "application/problem+json"

STATUS: tuple[tuple[type[RefoldError], int], ...] = (
    (RunUnknown, 404),
    (CommandNotRejected, 404),
    (CommandGone, 410),
    (CommandHopeless, 409),
    (FunctionUnknown, 422),
    (InputInvalid, 422),
    (SignatureRefused, 403),
    (CommandIdReused, 422),
    (CommandRefused, 409),
    (CommandUndecided, 202),
    (CommandUnknown, 504),
    (BadRunId, 422),
    (BadCommandText, 422),
    (ValueTooLarge, 413),
    (BatchTooLarge, 413),
    (ValueRefused, 422),
    (InputUnreadable, 422),
    (UsageRefused, 422),
    (SettingInvalid, 500),
    (OffsetOutOfRange, 409),
    (LogUnavailable, 503),
    (SchemaUnavailable, 503),
)
"""HTTP's word for an error of the rooms below; the first that fits. Others: by exit code."""
OF_THE_FRAMEWORK = (400, 404, 405, 406, 413, 415, 422)
"""What routing and the reading of bodies raise by themselves."""
BY_EXIT_CODE = {2: 422, 3: 409, 4: 503}
RETRY_S = 2.0
"""When to ask again of what is not there at the moment."""


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(description="Where its page is, relative to the gateway.")
    title: str = Field(description="The error's class.")
    status: int
    detail: str = Field(description="What happened.")
    instance: str = Field(description="The request's id, as in the header X-Request-Id.")
    code: str = Field(pattern=r"^R\d{3}$")
    kept: str = Field(description="What is there as it was.")
    next: str = Field(description="What to do next.")
    command_id: str | None = Field(
        default=None, description="Of a command that was sent: the id that a repeat must carry."
    )


def status_of(error: RefoldError) -> int:
    """HTTP's status for an error of refold's."""
    if isinstance(error, GatewayError):
        return error.status
    if getattr(error, "reason", "") == "too_large":
        return 413
    for kind, status in STATUS:
        if isinstance(error, kind):
            return status
    return BY_EXIT_CODE.get(error.exit_code, 500)


def problem(error: RefoldError, request_id: str) -> tuple[int, dict[str, object], dict[str, str]]:
    """Status, body and headers of the answer that tells `error`."""
    status = status_of(error)
    body = Problem(
        type=f"/errors/{error.code}",
        title=type(error).__name__,
        status=status,
        detail=error.message,
        instance=f"urn:request:{request_id}",
        code=error.code,
        kept=error.kept,
        next=error.next,
        command_id=getattr(error, "command_id", None),
    )
    headers = {"Cache-Control": "no-store"}
    after = getattr(error, "retry_after_s", None)
    if after is None and (status in (202, 503, 504) or isinstance(error, TooEarly)):
        after = RETRY_S
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="refold"'
    return status, body.model_dump(exclude_none=True), headers


def answer(
    error: RefoldError, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The whole response."""
    status, body, own = problem(error, request_id)
    return JSONResponse(body, status, {**own, **(headers or {})}, MEDIA_TYPE)


def request_id_of(request: Request) -> str:
    """The id that the outermost layer has given to the request."""
    return str(request.scope.get("refold.request_id", ""))


def tell_defect(error: BaseException, request_id: str) -> None:
    """An exception that nobody foresaw goes to the gateway's own output, with the request's id."""
    sys.stderr.write(f"request {request_id} failed:\n")
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()


def install(app: FastAPI) -> None:
    """Make every error of the app an answer of this shape."""

    async def of_refold(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefoldError)
        return answer(error, request_id_of(request))

    async def of_http(request: Request, error: Exception) -> Response:
        if isinstance(error.__cause__, RefoldError):  # a limit that was met while reading the body
            return answer(error.__cause__, request_id_of(request))
        status = getattr(error, "status_code", 0)
        told: GatewayError
        if status == HTTPStatus.NOT_FOUND:
            told = NoSuchPlace()
        elif status == HTTPStatus.METHOD_NOT_ALLOWED:
            told = MethodNotThere()
        else:
            told = RequestInvalid(str(getattr(error, "detail", error)))
        return answer(told, request_id_of(request), getattr(error, "headers", None))

    async def of_request(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return answer(RequestInvalid(f"{place}: {first['msg']}"), request_id_of(request))

    async def of_anything(request: Request, error: Exception) -> Response:
        request_id = request_id_of(request)
        tell_defect(error, request_id)
        request.scope["refold.told"] = True  # the framework raises it on
        return answer(GatewayDefect(request_id), request_id)

    app.add_exception_handler(RefoldError, of_refold)
    for status in OF_THE_FRAMEWORK:
        app.add_exception_handler(status, of_http)
    app.add_exception_handler(RequestValidationError, of_request)
    app.add_exception_handler(Exception, of_anything)
