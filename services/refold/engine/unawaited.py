"""Calls of the run context that run code made and never awaited: steps that never ran."""

import sys
from collections.abc import Coroutine, Iterable
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from refold.app.definitions import StepDef
from refold.engine.branches import Branch
from refold.engine.foreign import file_name
from refold_schemas.errors.run import CallRefused


class Made(NamedTuple):
    """A call that has not begun. `subject` is the step, or the calls that a gather was given.

    `code` and `at` (an offset into it) are the place of the call: the line is looked up only if
    somebody has to be told.
    """

    coroutine: Coroutine[Any, Any, Any]
    branch: Branch
    call: str
    subject: Any
    code: CodeType
    at: int


def unawaited(made: Iterable[Made]) -> CallRefused | None:
    """What to raise for calls that their branch has left behind; None if all were closed."""
    left = [one for one in made if one.coroutine.cr_frame is not None]  # type: ignore[attr-defined]
    # A gather that was forgotten has forgotten its calls too: it is the one to be named.
    inner = {id(call) for one in left if one.call == "ctx.gather" for call in one.subject}
    for one in left:
        if id(one.coroutine) not in inner:
            shown = one.call + _arguments(one)
            return CallRefused(
                shown,
                f"made {_place(one)} and never awaited, so it was not begun",
                f"write await {shown}, or hand it to ctx.gather",
            )
    return None


def drop(made: Iterable[Made]) -> None:
    """Close calls that will not be begun, so that Python does not complain of each."""
    left = [one.coroutine for one in made]
    if not left:
        return
    asyncio = sys.modules.get("asyncio")
    tasks: dict[Any, Any] = {}
    if asyncio is not None:
        try:
            tasks = {task.get_coro(): task for task in asyncio.all_tasks()}
        except RuntimeError:
            tasks = {}  # no event loop runs here, so that no task of it has one
    for coroutine in left:
        task = tasks.get(coroutine)
        if task is not None:
            task.cancel()
        else:
            coroutine.close()


def _arguments(one: Made) -> str:
    definition = getattr(one.subject, "__refold__", None)
    if type(definition) is StepDef:
        return f"({definition.fn.__name__}, …)"
    return "(…)"


def _place(one: Made) -> str:
    position = next(islice(one.code.co_positions(), one.at // 2, None), (None,))
    line = position[0] or one.code.co_firstlineno
    return f"in {file_name(one.code.co_filename)}:{line}, {one.code.co_name},"
