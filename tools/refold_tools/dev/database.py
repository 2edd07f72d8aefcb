"""The database of `refold dev`: the one that the environment names, else one under `.refold/`."""

import socket
from pathlib import Path

from refold_tools.devstack import POSTGRES, Ports, Stack, daemons, postgres
from refold_tools.devstack.errors import PortTaken
from refold_tools.devstack.layout import HOST
from refold_tools.devstack.telling import Tell, quiet

FOLDER = "dev"
"""Below `.refold/`: the data of the database, its log and its state file."""


def start_database(folder: Path, tell: Tell = quiet) -> Stack:
    """Start a Postgres that keeps its data in `folder`, and return once it is ready.

    It ends with this process, however that ends; call this from the main thread. Raises
    PrerequisiteMissing, ServiceNotReady, StackBusy.
    """
    known = Stack(folder, tied=True)
    ports = known.ports if known.folder.exists() and _is_free(known.ports.postgres) else None
    try:
        return _up(folder, ports or Ports.free(), tell)
    except PortTaken:  # somebody was faster
        return _up(folder, Ports.free(), tell)


def lives(stack: Stack) -> bool:
    """Whether the process of the database still runs."""
    one = stack.state.daemons.get(POSTGRES)
    return one is not None and daemons.lives(one)


def start_again(stack: Stack) -> None:
    """Start one that has ended, on its data and its port. Call this from the main thread.

    Raises PortTaken, ServiceNotReady, StackBusy.
    """
    stack.bring_up(None, None, {POSTGRES}, {}, quiet)


def place_of(stack: Stack) -> Path:
    """Where its data are: as root perhaps not in the stack's folder."""
    return postgres.place(stack.folder, postgres.account())


def _up(folder: Path, ports: Ports, tell: Tell) -> Stack:
    return Stack.up(folder, ports=ports, services={POSTGRES}, tied=True, tell=tell)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError:
            return False
    return True
