"""Documents: the OpenAPI one, and the page of each error code."""

import re
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

import refold
from refold.gateway.auth import Reader, anybody
from refold_schemas.errors.gateway import NoSuchPlace

router = APIRouter(tags=["documents"])


def pages_folder() -> FilePath | None:
    """Where the pages of the codes are: in a wheel beside this package, else in the project."""
    package = FilePath(refold.__file__).parent
    for folder in (package / "gateway" / "errors", package.parents[1] / "docs" / "errors"):
        if folder.is_dir():
            return folder
    return None


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, caller: Reader) -> Response:
    """What every route takes and answers."""
    return JSONResponse(request.app.openapi())


@router.get(
    "/errors/{code}",
    dependencies=[anybody],
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}},
)
async def error_page(
    code: Annotated[str, Path(pattern=r"^R\d{3}$", description="The code, such as R712.")],
) -> Response:
    """What happened, what was kept and what to do next, for a code."""
    folder = pages_folder()
    page = None if folder is None or not re.fullmatch(r"R\d{3}", code) else folder / f"{code}.md"
    if page is None or not page.is_file():
        raise NoSuchPlace(f"there is no page for {code}")
    return PlainTextResponse(page.read_text(), media_type="text/markdown; charset=utf-8")
