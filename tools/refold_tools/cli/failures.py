"""Errors at the edge: one sentence for people, one object for programs, and the exit code."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.harmless import harmless
from refold_tools.cli.output import print_json

if TYPE_CHECKING:
    from refold.worker import Worker


def report(error: Exception, *, as_json: bool, debug: bool) -> int:
    """Say what went wrong and return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    known = as_refold_error(error)
    if known is None:  # the help text, asked for by giving no arguments
        print(_usage_message(error))
        return 2
    try:
        if as_json:
            print_json({"error": error_object(known)})
        sys.stdout.flush()
        said = as_json
    except OSError:  # nobody reads it, or there is no room for it
        said = False
    if not said:
        with suppress(OSError):
            print(f"refold: {harmless(str(known))}", file=sys.stderr)
    return known.exit_code


def wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether `--debug` or `REFOLD_DEBUG` asks for tracebacks."""
    return "--debug" in arguments or os.environ.get("REFOLD_DEBUG", "") not in ("", "0")


def hard_exit(worker: "Callable[[], Worker]", *, as_json: bool) -> Callable[[int], None]:
    """How the process ends when a call can be ended in no other way: with its last word said."""

    def end(code: int) -> None:
        failure = worker().failure
        if isinstance(failure, Exception):
            report(failure, as_json=as_json, debug=False)
        with suppress(OSError):  # it ends, whether or not there is room for its words
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    return end


def error_object(error: RefoldError) -> dict[str, str]:
    """The fixed shape of an error in JSON."""
    return {
        "code": error.code,
        "message": error.message,
        "kept": error.kept,
        "next": error.next,
    }


def as_refold_error(error: Exception) -> RefoldError | None:
    """The error as a RefoldError; None for typer's "no arguments, so here is the help"."""
    from refold_schemas.errors.cli import FolderGone, OutputRefused, Unexpected, UsageRefused

    if isinstance(error, RefoldError):
        return error
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's usage errors
        if type(error).__name__ == "NoArgsIsHelpError":
            return None
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "refold")
        return UsageRefused(_usage_message(error).rstrip("."), command)
    if isinstance(error, OSError):
        if _is_of_output(error):
            return OutputRefused(error.strerror or str(error))
        if isinstance(error, FileNotFoundError) and _is_folder_gone():
            return FolderGone()
    return Unexpected(error, innermost(error))


def _is_of_output(error: OSError) -> bool:
    return any(getattr(one, "refused", None) is error for one in (sys.stdout, sys.stderr))


def _is_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _usage_message(error: Any) -> str:
    message: str = error.format_message()
    return message


def innermost(error: BaseException) -> str:
    """`file:line` of the innermost frame of an exception, relative to here where it lies below."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f"{shown_path(frames[-1].filename)}:{frames[-1].lineno}"


def shown_path(filename: str) -> str:
    """The path, relative to the working directory where it lies below it."""
    try:
        return str(Path(filename).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename
