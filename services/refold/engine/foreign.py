"""Names what run code awaited that is not refold's, where it did, and what to write instead."""

import sys
from collections.abc import Coroutine
from typing import Any, Final

from refold_schemas.errors.run import ForeignAwait

FOREIGN_MAX: Final = 10
"""Run code that catches ForeignAwait and awaits the like this often in a row is given up."""


def foreign_await(coroutine: Coroutine[Any, Any, Any], request: object) -> ForeignAwait:
    """The error to throw into a branch that yielded `request`."""
    names: list[str] = []
    where = ""
    inner: Any = coroutine
    while inner is not None:
        code, frame = getattr(inner, "cr_code", None), getattr(inner, "cr_frame", None)
        if code is None or frame is None:
            break
        module = str(frame.f_globals.get("__name__", ""))
        if is_library(module, code.co_filename):
            names.append(_public(module, code.co_qualname))
        elif not module.startswith("refold."):
            where = f"in {code.co_qualname} (line {frame.f_lineno})"
            names.clear()
        inner = inner.cr_await
    awaited = names[0] if names else _object_name(request)
    repair = (
        "use `await ctx.sleep(timedelta(…))`, a timer that survives"
        if awaited == "asyncio.sleep"
        else "make the call a step (@app.step) and await ctx.step(…); "
        "for steps at the same time use ctx.gather or ctx.map"
    )
    return ForeignAwait(awaited, where, repair)


def file_name(path: str) -> str:
    """The last part of a path of any system.

    >>> file_name("/srv/shop/orders.py"), file_name("orders.py")
    ('orders.py', 'orders.py')
    """
    return path.replace("\\", "/").rpartition("/")[2]


def keep_quiet(request: object) -> None:
    """See to it that an awaited future of asyncio does not complain later that nobody heard it.

    Run code has been told what to write instead; how the future ends is of no interest.
    """
    if getattr(type(request), "_asyncio_future_blocking", None) is not None:
        future: Any = request
        future.add_done_callback(_retrieve)


def _retrieve(future: Any) -> None:
    if not future.cancelled():
        future.exception()


def is_library(module: str, path: str) -> bool:
    """Whether a module is Python's own or installed, and not the author's."""
    return module.partition(".")[0] in sys.stdlib_module_names or "site-packages" in path


def _public(module: str, qualname: str) -> str:
    return f"{'asyncio' if module.startswith('asyncio.') else module}.{qualname}"


def _object_name(request: object) -> str:
    if request is None:
        return "a bare yield"
    kind = type(request)
    if kind.__qualname__ == "_GatheringFuture":
        return "asyncio.gather"
    module = {"_asyncio": "asyncio", "builtins": ""}.get(kind.__module__, kind.__module__)
    name = f"{module}.{kind.__qualname__}" if module else kind.__qualname__
    get_coro = getattr(request, "get_coro", None)
    inner = None if get_coro is None else getattr(get_coro(), "__qualname__", None)
    # A call of the context is shown as run code wrote it.
    return f"{name} of {inner.replace('RunCalls._', 'ctx.')}" if inner else name
