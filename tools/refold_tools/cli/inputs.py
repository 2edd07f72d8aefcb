"""What a person hands in: JSON or a file of it, an app by its name, a time zone."""

import importlib
import json
import os
import sys
import sysconfig
import traceback
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.cli import AppUnusable, InputUnreadable, SettingInvalid, UsageRefused
from refold_schemas.errors.texts import text_of
from refold_schemas.values.given import once_each
from refold_tools.cli.failures import shown_path

if TYPE_CHECKING:
    from refold.app import App

OWN = frozenset({"refold", "refold_schemas", "refold_projections", "refold_tools"})
"""Folders of refold's own code: where somebody's registration was refused is more telling."""

LIBRARIES = frozenset(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
"""Where Python and what was installed are: an error that is raised there has its cause outside."""


def read_json(option: str, given: str | None) -> object:
    """The data of `--input JSON` or `--input @FILE` (`@-` is stdin); None if it was not given.

    Raises InputUnreadable, which names line and column.
    """
    if given is None:
        return None
    if given.startswith("@"):
        place = given[1:]
        try:
            text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputUnreadable(option, f"{place} is not UTF-8") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputUnreadable(option, f"{place}: {reason}") from error
    else:
        text = given
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=once_each)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputUnreadable(option, f"it is not JSON ({error.msg}, {where})") from error
    except (RecursionError, ValueError) as error:
        raise InputUnreadable(option, f"it is not JSON ({error})") from error


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON number")


def zone_of(given: str | None = None, *, app: "App | None" = None) -> tzinfo:
    """The zone of an option, else of `REFOLD_TIME_ZONE`, else the app's where there is one, or UTC.

    Raises UsageRefused for the option, SettingInvalid for the variable.
    """
    from refold.settings import TIME_ZONE_DEFAULT, time_zone

    name = time_zone(given, default=TIME_ZONE_DEFAULT if app is None else app.time_zone)
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        problem = f"there is no time zone {name!r} on this machine"
        if given:
            raise UsageRefused(f"--time-zone: {problem}", "refold") from error
        raise SettingInvalid("REFOLD_TIME_ZONE", problem) from error


def load_app(target: str) -> "App":
    """The App at `MODULE:APP`, from the working directory or PYTHONPATH.

    Raises AppUnusable with the innermost cause and its file and line; an error of refold's own (a
    registration that was refused) comes as it is, with its place.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name:
        raise AppUnusable(target, "it is not written MODULE:APP")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise AppUnusable(target, f"{module_name} is a file; write the module, {dotted}:{name}")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    found = _resolve(_import(target, module_name), target, module_name, name)
    from refold.app import App

    if not isinstance(found, App):
        raise AppUnusable(
            target, f"{name} in {module_name} is a {type(found).__name__}, not a refold.App"
        )
    return found


def _import(target: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise AppUnusable(
                target, f"there is no module {error.name!r} here or on PYTHONPATH"
            ) from error
        raise AppUnusable(target, _cause(module_name, error)) from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit among them: importing runs anything
        next = error.next if isinstance(error, RefoldError) else ""
        raise AppUnusable(target, _cause(module_name, error), next=next) from error


def _resolve(module: Any, target: str, module_name: str, name: str) -> Any:
    found = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            apps = [key for key, one in vars(module).items() if type(one).__name__ == "App"]
            hint = f"; it has {', '.join(sorted(apps))}" if apps else ""
            raise AppUnusable(target, f"module {module_name} has no {name!r}{hint}") from error
    return found


def _cause(module_name: str, error: BaseException) -> str:
    """`importing M failed at file:line: TypeError: …`, the innermost line of the user's code."""
    if isinstance(error, SyntaxError):
        said, place = error.msg, f"{shown_path(error.filename or '?')}:{error.lineno}"
    else:
        said = error.message if isinstance(error, RefoldError) else text_of(error)
        place = _place(error) or module_name
    first = said.strip().partition("\n")[0]
    kind = type(error).__name__
    return f"importing {module_name} failed at {place}: {kind}{': ' + first if first else ''}"


def _place(error: BaseException) -> str:
    """The innermost frame that is not Python's, a library's or refold's, if there is one."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and "importlib" not in frame.filename
    ]
    frames = frames[1:]  # the first is this module's own call
    outside = [
        frame
        for frame in frames
        if not OWN.intersection(Path(frame.filename).parts)
        and not any(Path(frame.filename).is_relative_to(one) for one in LIBRARIES)
    ]
    chosen = (outside or frames)[-1:]
    return f"{shown_path(chosen[0].filename)}:{chosen[0].lineno}" if chosen else ""


def check_one_of(option: str, given: str, known: tuple[str, ...], command: str) -> None:
    """Raise UsageRefused for a word that would only ever find nothing."""
    from refold_schemas.errors.cli import UsageRefused

    if given not in known:
        raise UsageRefused(
            f"{option} {given}: there is no such one; it is one of {', '.join(known)}", command
        )
