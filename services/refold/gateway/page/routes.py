"""All routes of the page in one router, and the files that its pages need."""

from fastapi import APIRouter
from fastapi.responses import Response

from refold.gateway.auth import anybody
from refold.gateway.page import actions, lists, run_pages, session
from refold.gateway.page.asking import PageRoute
from refold.gateway.page.site import static
from refold_schemas.errors.gateway import NoSuchPlace

router = APIRouter(route_class=PageRoute, include_in_schema=False)
for part in (session, lists, run_pages, actions):
    router.include_router(part.router)


@router.get("/page/{name}", dependencies=[anybody])
async def file(name: str) -> Response:
    """Style, script and icon."""
    found = static(name)
    if found is None:
        raise NoSuchPlace
    data, media_type = found
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(data, media_type=media_type, headers=headers)
