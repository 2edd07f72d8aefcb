"""The page's actions: a form that was sent becomes a command, and leads back to what it shows."""

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from refold.client.rejected import publish_again
from refold.gateway.asking import check_key, patience, scanning
from refold.gateway.identity import Caller
from refold.gateway.page.asking import Operator, PageRoute, Settler, form_of
from refold.gateway.page.lists import rejections_page
from refold.gateway.page.reading import page_of, page_with_tables
from refold.gateway.page.run_pages import run_page
from refold.gateway.page.site import HEADERS, url
from refold.gateway.sessions import CSRF_FIELD
from refold.gateway.state import gateway_of
from refold_schemas.errors import RefoldError
from refold_schemas.errors.cli import CommandUndecided, InputUnreadable
from refold_schemas.errors.gateway import RequestInvalid
from refold_schemas.values.given import once_each

router = APIRouter(route_class=PageRoute, include_in_schema=False)

ATTEMPT_MAX = PARTITION_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1


@router.post("/run/resolve")
async def resolve(request: Request, caller: Settler) -> Response:
    """A person's word on an effect in doubt."""
    form = await form_of(request)
    run_id, slot = _field(form, "id"), _field(form, "slot")
    happened = _field(form, "happened")
    if happened not in ("yes", "no"):
        raise RequestInvalid("happened: it is yes or no")
    client, attempt = gateway_of(request).client, form.get("attempt", "")
    known = _number(form, "attempt", ATTEMPT_MAX) if attempt else None

    async def send(run_id: str, **how: Any) -> None:
        result = _json(form.get("result", "")) if happened == "yes" else None
        await client.resolve(
            run_id, slot, happened=happened == "yes", result=result, attempt=known, **how
        )

    said = "happened" if happened == "yes" else "absent"
    return await _ordered(request, caller, run_id, form, send, said)


@router.post("/run/retry")
async def retry(request: Request, caller: Operator) -> Response:
    """Let a parked or failed run go on."""
    form = await form_of(request)
    send = partial(gateway_of(request).client.retry, fresh_key=bool(form.get("fresh_key")))
    return await _ordered(request, caller, _field(form, "id"), form, send, "retried")


@router.post("/run/cancel")
async def cancel(request: Request, caller: Operator) -> Response:
    """Ask for a run's end."""
    form = await form_of(request)
    send = gateway_of(request).client.cancel
    return await _ordered(request, caller, _field(form, "id"), form, send, "cancelled")


@router.post("/rejections/republish")
async def republish(request: Request, caller: Operator) -> Response:
    """Publish a rejected command again."""
    form = await form_of(request)
    partition, offset = _number(form, "partition", PARTITION_MAX), _number(form, "offset")
    gateway = gateway_of(request)
    try:
        async with scanning(gateway) as client:
            await publish_again(client, partition, offset, by=caller.who)
    except RefoldError as error:
        try:
            page = await page_with_tables(request, caller)
            return await rejections_page(page, error=error)
        except RefoldError:  # the list cannot be read: that is not what was asked for
            raise error from None
    return _back("/rejections", said="republished")


async def _ordered(
    request: Request,
    caller: Caller,
    run_id: str,
    form: Mapping[str, str],
    send: Callable[..., Awaitable[None]],
    said: str,
) -> Response:
    """Send a command about a run, and lead back to its page, which says what became of it.

    `send` is the client's method, with what no other command has.
    """
    command_id = _command_id(form, caller)
    try:
        within = await patience(request, gateway_of(request), run_id, None)
        await send(
            run_id, by=caller.who, why=form.get("why", ""), command_id=command_id, within=within
        )
    except CommandUndecided:
        return _back("/run", id=run_id, said="waits")
    except RefoldError as error:
        return await _refused(request, caller, run_id, error, form)
    return _back("/run", id=run_id, said=said)


async def _refused(
    request: Request, caller: Caller, run_id: str, error: RefoldError, form: Mapping[str, str]
) -> Response:
    """The run's page with the refusal on top, and what was written in the form."""
    page = await page_of(request, caller)
    try:
        return await run_page(page, run_id, error=error, given=form)
    except RefoldError:
        raise error from None


def _back(place: str, **query: object) -> Response:
    return RedirectResponse(url(place, **query), 303, HEADERS)


def _field(form: Mapping[str, str], name: str) -> str:
    found = form.get(name, "")
    if not found:
        raise RequestInvalid(f"{name}: it is missing")
    return found


def _number(form: Mapping[str, str], name: str, most: int = OFFSET_MAX) -> int:
    text = _field(form, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise RequestInvalid(f"{name}: it is no number from 0 to {most:,}")
    return int(text)


def _command_id(form: Mapping[str, str], caller: Caller) -> str | None:
    """The command's id, from that of the form. Raises RequestInvalid.

    The same for a form that is sent twice; another one for each person and for each word, since
    whoever has the page open has the same form: a second word is refused then, not taken for the
    first.
    """
    given = form.get("command_id") or None
    if given is None:
        return None
    check_key("command_id", given)
    word = sorted((name, said) for name, said in form.items() if name != CSRF_FIELD)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([caller.who, word])))


def _json(text: str) -> object:
    """What a step returned. Raises InputUnreadable."""

    def constant(said: str) -> object:
        raise ValueError(f"{said} is no JSON number")

    if not text.strip():
        return None
    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=once_each)
    except (ValueError, RecursionError) as error:
        raise InputUnreadable("result", f"it is not JSON ({error})") from error
