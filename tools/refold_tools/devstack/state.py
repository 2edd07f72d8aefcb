"""The state file of a stack: what it consists of, and which processes are its own."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from refold_tools.devstack.daemons import Daemon, marked_in
from refold_tools.devstack.errors import StackBusy, StateUnreadable
from refold_tools.devstack.layout import Ports

FORMAT = 1
FILE, LOCK = "state.json", "lock"
MARK = ".started"
"""How the file ends into which a process writes itself before the state file names it."""


class State(NamedTuple):
    """`daemons`: what was started and not stopped since, by name; some may have ended."""

    ports: Ports
    cluster_id: str
    daemons: dict[str, Daemon]

    @property
    def brokers(self) -> int:
        """How many Kafka brokers the stack has, running or not."""
        return len(self.ports.kafka)

    def with_daemon(self, name: str, daemon: Daemon) -> "State":
        """The state after `name` has been started."""
        return self._replace(daemons={**self.daemons, name: daemon})

    def without(self, names: frozenset[str]) -> "State":
        """The state after they have been stopped."""
        left = {name: one for name, one in self.daemons.items() if name not in names}
        return self._replace(daemons=left)


def read_state(folder: Path) -> State | None:
    """The state of the stack in a folder; None where there is none."""
    path = folder / FILE
    try:
        stored = json.loads(path.read_bytes())
        if stored["format"] != FORMAT:
            raise StateUnreadable(path, f"its format is {stored['format']}, this is {FORMAT}")
        daemons = {name: Daemon(*one) for name, one in stored["daemons"].items()}
        # Whoever started these was killed before it could write them down.
        for mark in sorted(folder.glob(f"*{MARK}")):
            if (one := marked_in(mark)) is not None:
                daemons[mark.name.removesuffix(MARK)] = one
        return State(Ports.of(stored["ports"]), stored["cluster_id"], daemons)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateUnreadable(path, f"{type(error).__name__}: {error}") from error


def mark_of(folder: Path, name: str) -> Path:
    """Where a process writes itself; away again once the state file names it."""
    return folder / f"{name}{MARK}"


def write_state(folder: Path, state: State) -> None:
    """Replace the state file in one move, so that it is never half of one."""
    stored = {"format": FORMAT, **state._asdict()}
    fresh = folder / f"{FILE}.new"
    with fresh.open("w") as file:
        json.dump(stored, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(folder / FILE)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for one command at a time; the kernel lets go of it when that one ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackBusy(folder) from None
        yield
