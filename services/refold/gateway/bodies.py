"""How the bodies of commands are read: an object that names a key twice is refused."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from refold_schemas.errors.gateway import RequestInvalid
from refold_schemas.values.given import once_each


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body. Raises JSONDecodeError, RequestInvalid."""
        body = await self.body()
        try:
            return json.loads(body, object_pairs_hook=once_each)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise
        except ValueError as error:
            raise RequestInvalid(f"body: {error}") from error


class StrictRoute(APIRoute):
    """A route whose JSON is taken as it stands, or not at all."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """That of the framework, handed a request that reads its body so."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict
