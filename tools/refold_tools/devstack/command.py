"""`refold devstack`: up, down and status of the services on this machine."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from refold_tools.devstack.layout import BROKER_COUNTS, SERVICES, Ports, home
from refold_tools.devstack.stack import Stack, Standing

devstack = typer.Typer(
    help="Start and stop Kafka, a schema registry and Postgres here, without Docker.",
    no_args_is_help=True,
    add_completion=False,
)

PORT_BASE_MIN, PORT_BASE_MAX = 1_024, 65_000

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Where the stack keeps its data. Default: stack in REFOLD_DEVSTACK_HOME, else in "
        ".refold/devstack.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the answer as JSON, on the last line of stdout.")
]


@devstack.command("up")
def up(
    services: Annotated[
        str,
        typer.Option("--services", metavar="NAMES", help="Which of them, with commas."),
    ] = ",".join(SERVICES),
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", help="Kafka brokers, 1 or 3. Default: 1.", show_default=False),
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            metavar="PORT",
            min=PORT_BASE_MIN,
            max=PORT_BASE_MAX,
            help="The first of 8 ports in a row. Default: 9092, 8081 and 5432, as usual.",
            show_default=False,
        ),
    ] = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> int:
    """Start what is not running, wait until it is ready, and print the variables for it.

    `eval "$(refold devstack up)"` sets them in a shell.
    """
    wanted = [name.strip() for name in services.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in SERVICES]:
        raise typer.BadParameter(
            f"no service {', '.join(unknown)}; there are {', '.join(SERVICES)}"
        )
    if brokers is not None and brokers not in BROKER_COUNTS:
        raise typer.BadParameter("one broker or three: two decide nothing when one is gone")
    stack = Stack(_folder(folder))
    ports = None if port_base is None else Ports.at(port_base, brokers or stack.state.brokers)
    progress = _Progress()
    try:
        started = stack.bring_up(brokers, ports, wanted, {}, progress)
    finally:
        progress.end()
    if not started:
        print(f"the stack in {stack.folder} is up already", file=sys.stderr)
    if as_json:
        answer = {"folder": str(stack.folder), "started": started, "variables": stack.variables}
        typer.echo(json.dumps(answer))
        return 0
    for name, value in stack.variables.items():
        typer.echo(f"export {name}={value}")
    return 0


@devstack.command("down")
def down(
    delete: Annotated[bool, typer.Option("--delete", help="Remove its data too.")] = False,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> int:
    """Stop all of it; what does not end in time is killed. Data stay."""
    stack = Stack(_folder(folder))
    names = tuple(stack.state.daemons)
    killed = stack.down(delete=delete) if stack.folder.exists() else ()
    if as_json:
        answer = {"folder": str(stack.folder), "stopped": names, "killed": killed}
        typer.echo(json.dumps(answer))
        return 0
    said = f"stopped {', '.join(names)}" if names else "nothing was running"
    typer.echo(said + (f"; had to kill {', '.join(killed)}" if killed else ""))
    return 0


@devstack.command("status")
def status(folder: FolderOption = None, as_json: JsonOption = False) -> int:
    """Say of each service whether it runs and answers. Exit 1 if one does not that should."""
    stack = Stack(_folder(folder))
    seen = stack.status()
    wrong = any(not one.ready for one in seen)
    if as_json:
        answer = {
            "folder": str(stack.folder),
            "services": [one._asdict() for one in seen],
            "variables": stack.variables,
        }
        typer.echo(json.dumps(answer))
        return int(wrong)
    for one in seen:
        typer.echo(_line(one))
    if not seen:
        typer.echo(f"nothing is up in {stack.folder}")
    return int(wrong)


def _line(one: Standing) -> str:
    if one.ready:
        return f"{one.name:<9}  ready   port {one.port:<5}  pid {one.pid}"
    how = "not ready" if one.lives else "has ended"
    return f"{one.name:<9}  {how}  port {one.port}  pid {one.pid}: {one.said}"


def _folder(given: Path | None) -> Path:
    return (given or home() / "stack").absolute()


class _Progress:
    """What goes on, on stderr: on a terminal one line that changes, else a line each."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __call__(self, line: str, *, passing: bool = False) -> None:
        """What a stack tells of itself."""
        if self._terminal:
            print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)
        elif not passing:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal's line empty."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
