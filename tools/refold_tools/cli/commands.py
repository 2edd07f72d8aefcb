"""The root of the command line: commands that resolve themselves when they are called."""

import importlib
import inspect
from typing import Any

import typer
import typer.core

from refold_tools.cli.table import Entry, available

EPILOG = "Each command takes --json (the last line of stdout is JSON), --log URL, --debug "
"and --progress."


class LazyCommand(typer.core.TyperCommand):
    """A command known by name and help line; the module behind it is imported at its call."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.help, short_help=entry.help)
        self.entry = entry

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Parse for the command itself: the context that comes back is its own."""
        return load(self.entry).make_context(info_name, args, parent=parent, **extra)


class Commands(typer.core.TyperGroup):
    """The commands of the table, in its order."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for entry in available():
            self.add_command(LazyCommand(entry))

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the table's order."""
        return list(self.commands)


def load(entry: Entry) -> Any:
    """The command behind a line of the table: a function with typer's annotations, or a Typer."""
    module, _, name = entry.place.partition(":")
    found = getattr(importlib.import_module(module), name)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    holder = typer.Typer(add_completion=False)
    holder.command(entry.name, help=flowing(found.__doc__ or entry.help))(found)
    return _spare_pydantic(typer.main.get_command(holder))


def flowing(text: str) -> str:
    r"""A docstring with each paragraph on one line: whoever shows it breaks lines to its width.

    >>> flowing("One\n    two.\n\n    Three.")
    'One two.\n\nThree.'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


class _AsItIs:
    """What typer asks to convert a parameter, for a text or a flag, which need no conversion."""

    @staticmethod
    def coerce(value: object, **_: object) -> object:
        """The value, or None where it was not given."""
        return value


def _spare_pydantic(command: Any) -> Any:
    """Let typer take texts and flags as they are: its own way loads pydantic, a third of a start.

    Where another version of typer works differently this does nothing.
    """
    for parameter in command.get_params(typer.Context(command)):  # --help among them
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        single = not getattr(parameter, "multiple", False)
        if annotation in (str, bool) and single and hasattr(parameter, "get_runtime_param"):
            parameter.get_runtime_param = lambda: _AsItIs
    return command


def root() -> Any:
    """The `refold` command with its completion options."""
    app = typer.Typer(
        cls=Commands,
        help="Durable execution for agent runs: every step is done, in doubt or not started, and "
        "refold says which.",
        epilog=EPILOG,
        no_args_is_help=True,
    )
    app.callback()(_root)
    return _spare_pydantic(typer.main.get_command(app))


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        from refold_tools.compiled import is_compiled

        try:
            number = version("refold")
        except PackageNotFoundError:
            number = "(not installed as a package)"
        typer.echo(f"refold {number}" + (" (compiled)" if is_compiled() else ""))
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and end.", callback=_version, is_eager=True
    ),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
    progress: bool = typer.Option(
        False, "--progress", help="Say on stderr how far a long read of the log has come."
    ),
) -> None:
    """Nothing happens before the command."""
