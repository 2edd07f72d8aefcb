"""One lookup of a far system by our own key: what it answered, or that it gave no answer."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from refold.app.definitions import StepDef
from refold.engine.attempts import describe
from refold_schemas.values import Absent, Found, Pending, Rejected

Answered = tuple[object, BaseException | None]
InThread = Callable[[Callable[[], Answered]], Awaitable[Answered]]
"""Runs a function in a thread. What it raised comes as a value: a future loses some of it."""


async def ask_far_system(
    definition: StepDef, key: str, *, timeout_s: float, in_thread: InThread
) -> tuple[str, Any]:
    """One lookup by our own key: found, absent, rejected, or none with what was seen.

    Whatever a lookup raises or returns says nothing about the effect unless it is an answer.
    """
    limit = asyncio.timeout(timeout_s)
    task = asyncio.current_task()
    try:
        async with limit:
            return meaning(await _call(definition, key, in_thread))
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the caller's: it does not want the answer any more
        if limit.expired():
            return "none", f"no answer within {timeout_s:g} s"
        return "none", describe(error)


async def _call(definition: StepDef, key: str, in_thread: InThread) -> object:
    lookup = definition.lookup
    assert lookup is not None
    if inspect.iscoroutinefunction(lookup):
        return await lookup(key)

    def call() -> Answered:
        try:
            return lookup(key), None
        except BaseException as error:
            return None, error

    answer, error = await in_thread(call)
    if error is not None:
        raise error
    return await answer if inspect.isawaitable(answer) else answer


def meaning(answer: object) -> tuple[str, Any]:
    """What an answer says; anything that is none is no answer."""
    if isinstance(answer, Found):
        return "found", answer.value
    if isinstance(answer, Absent) or answer is Absent:
        return "absent", None
    if isinstance(answer, Rejected):
        return "rejected", answer.error
    if isinstance(answer, Pending) or answer is Pending:
        return "none", "the far system is still at work on it"
    return "none", f"it returned {type(answer).__name__}, which is no lookup answer"
