"""Where in the author's own code an exception was raised: file, line and function, no path."""

from dataclasses import replace
from traceback import format_exception, walk_tb
from typing import Final

from refold.engine.foreign import file_name, is_library
from refold_schemas.values import ErrorInfo, encode_error

OURS: Final = frozenset({"refold", "refold_schemas", "refold_projections", "refold_tools"})
TRACEBACK_CHARS_MAX: Final = 20_000


def raised_at(error: BaseException) -> str:
    """` (in orders.py:88, order)`: the innermost frame of user code; empty if there is none.

    Frames of refold, of Python's library and of installed packages are passed over. The file's
    name only: a path says how a machine is set up, which is nothing for the log.
    """
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        module, code = str(frame.f_globals.get("__name__", "")), frame.f_code
        if module.partition(".")[0] not in OURS and not is_library(module, code.co_filename):
            place = f" (in {file_name(code.co_filename)}:{line}, {code.co_name})"
    return place


def encode_raised(error: BaseException) -> ErrorInfo:
    """The exception as the log keeps it, its message ending in where it was raised."""
    info = encode_error(error)
    place = raised_at(error)
    return replace(info, message=f"{info.message}{place}") if place else info


def console_traceback(error: BaseException) -> str:
    """The whole traceback, for the console of the process only; empty if it was never raised."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(format_exception(error))
    except Exception as broken:  # a __str__ that raises must not hide the end of the run
        return f"{type(error).__name__} (its traceback cannot be shown: {type(broken).__name__})"
    return text.rstrip()[-TRACEBACK_CHARS_MAX:]
