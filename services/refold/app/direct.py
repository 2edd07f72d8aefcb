"""A step called directly: a plain call, but refused in run code, where nothing would record it."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from refold_schemas.errors.run import CallRefused

F = TypeVar("F", bound=Callable[..., Any])

IN_RUN_CODE: ContextVar[bool] = ContextVar("refold_in_run_code", default=False)
"""True in the contexts in which a session drives run code, and in no other.

A context variable, not a global: while one thread drives run code, another may be in the body of a
step, which may call steps as helpers.
"""


def callable_directly(fn: F) -> F:
    """The function for direct calls: the same signature and kind; in run code CallRefused.

    What the engine calls is the function itself (`StepDef.fn`), which does not ask.
    """
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def direct_async(*args: Any, **kwargs: Any) -> Any:
            if IN_RUN_CODE.get():
                raise _refused(fn)
            return await fn(*args, **kwargs)

        return cast(F, direct_async)

    @functools.wraps(fn)
    def direct(*args: Any, **kwargs: Any) -> Any:
        if IN_RUN_CODE.get():
            raise _refused(fn)
        return fn(*args, **kwargs)

    return cast(F, direct)


def _refused(fn: Callable[..., Any]) -> CallRefused:
    return CallRefused(
        f"{fn.__name__} is a step",
        "called directly in run code it would run unrecorded, and again on each replay",
        f"write await ctx.step({fn.__name__}, …)",
    )
