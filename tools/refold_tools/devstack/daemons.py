"""Processes that outlive the command that started them, known by pid, start time and boot."""

import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from refold_tools.processes import ends_with_parent

POLL_S = 0.05
GONE_WITHIN_S = 10.0
"""After SIGKILL. Only a process in a call that cannot be interrupted stays longer."""
ZOMBIE = "Z"

_children: dict[int, "subprocess.Popen[bytes]"] = {}
"""Those that this process started. It is their parent, so only it can take note of their end."""


class Daemon(NamedTuple):
    """A process that is no other one: a pid alone is given again once it is free.

    `started` is in clock ticks since the boot. Source: proc(5), /proc/PID/stat, field 22.
    """

    pid: int
    started: int
    boot: str


class Identity(NamedTuple):
    """The account that a process runs under, where it is another one than ours."""

    user: int
    group: int


class Launch(NamedTuple):
    """How a process is started: its command, its working directory, and whose it is."""

    command: Sequence[str]
    folder: Path
    identity: Identity | None = None


class Part(Protocol):
    """One process of a stack, with all that its start takes."""

    def make(self, log: Path) -> None:
        """Make what it needs before its first start; what is there already stays."""

    def launch(self) -> Launch:
        """How it is started."""
        ...


@cache
def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _Seen(NamedTuple):
    """What /proc says of a process. Source: proc(5), /proc/PID/stat, fields 3, 20 and 22."""

    state: str
    threads: int
    started: int


def _look(pid: int) -> _Seen | None:
    """A process as the kernel shows it; None where there is none of this pid."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line[line.rindex(")") + 2 :].split()  # the name before may hold blanks and brackets
    return _Seen(fields[0], int(fields[17]), int(fields[19]))


def start(launch: Launch, *, log: Path, mark: Path, tied: bool) -> Daemon:
    """Start a process in a session of its own; what it writes is added to `log`.

    It writes itself into `mark` before it becomes the service: whoever started it may be killed
    before it notes whom. `tied`: it is killed when this process ends, however that happens.
    """
    tie = ends_with_parent(signal.SIGKILL) if tied else None
    boot = boot_id()

    def first() -> None:
        if tie is not None:
            tie()
        pid = os.getpid()
        seen = _look(pid)
        os.write(marked.fileno(), f"{pid} {seen.started if seen else 0} {boot}".encode())

    with log.open("ab") as output, mark.open("wb") as marked, warnings.catch_warnings():
        # Python 3.12 and newer warn of a fork beside threads; what runs in the child takes no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = subprocess.Popen(
            list(launch.command),
            cwd=launch.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=first,
            **credentials(launch.identity),  # type: ignore[call-overload]
        )
    _children[process.pid] = process
    seen = _look(process.pid)
    return Daemon(process.pid, seen.started if seen else 0, boot)


def marked_in(mark: Path) -> Daemon | None:
    """The process that wrote itself there, if it still runs."""
    try:
        pid, started, boot = mark.read_text().split()
        one = Daemon(int(pid), int(started), boot)
    except (FileNotFoundError, ValueError):
        return None
    return one if lives(one) else None


def credentials(identity: Identity | None) -> dict[str, object]:
    """The arguments of `subprocess` that change the account."""
    if identity is None:
        return {}
    return {"user": identity.user, "group": identity.group, "extra_groups": ()}


def lives(one: Daemon) -> bool:
    """Whether it still runs: not ended, not a zombie, and its pid not given to another process.

    A process of many threads is a zombie while the last of them still close its files.
    """
    seen = _seen(one)
    return seen is not None and not (seen.state == ZOMBIE and seen.threads <= 1)


def wait_reaped(one: Daemon) -> None:
    """Wait until nothing is left of a process that has ended, not even its zombie.

    Others take a zombie for a living process: Postgres does, when it finds its pid in a lock file.
    """
    wait_until(lambda: _seen(one) is None, GONE_WITHIN_S)


def _seen(one: Daemon) -> _Seen | None:
    """What the kernel shows of it, unless that is another process."""
    child = _children.get(one.pid)
    if child is not None and child.poll() is not None:
        del _children[one.pid]
    seen = _look(one.pid)
    if seen is None or seen.started != one.started or one.boot != boot_id():
        return None
    return seen


def send(one: Daemon, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended meanwhile."""
    if lives(one):
        try:
            os.kill(one.pid, number)
        except ProcessLookupError:  # it ended between the two calls: there is nobody to tell
            return


def stop(many: Mapping[Daemon, signal.Signals], *, within_s: float) -> tuple[Daemon, ...]:
    """Ask them to end, wait for all, and SIGKILL those that do not. Returns the killed ones."""
    for one, number in many.items():
        send(one, number)
        send(one, signal.SIGCONT)  # one that somebody has halted takes note of nothing else
    late = _wait_gone(many, within_s)
    kill(late)
    return late


def kill(many: Iterable[Daemon]) -> None:
    """SIGKILL them and wait until the kernel has taken them away."""
    named = tuple(many)
    for one in named:
        send(one, signal.SIGKILL)
    _wait_gone(named, GONE_WITHIN_S)


def _wait_gone(many: Iterable[Daemon], within_s: float) -> tuple[Daemon, ...]:
    """Wait until all have ended; those that have not after `within_s` are returned."""
    until = time.monotonic() + within_s
    left = tuple(many)
    while left := tuple(one for one in left if lives(one)):
        if time.monotonic() > until:
            break
        time.sleep(POLL_S)
    return left


def wait_until(ready: Callable[[], bool], within_s: float) -> bool:
    """Ask until the answer is yes; False after `within_s`."""
    until = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


OUR_OWN_PROBES = "the database system is starting up"
"""What Postgres answers, as FATAL, to whoever asks whether it is ready before it is."""


def last_words(log: Path) -> str:
    """The last line in a log that says something, cut: for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-200:]
    except OSError:
        return "it said nothing"
    telling = [
        one.strip()
        for one in lines
        if one.strip() and not one.startswith(("\t", " ")) and OUR_OWN_PROBES not in one
    ]
    wrong = [one for one in telling if any(word in one for word in ("ERROR", "FATAL", "Exception"))]
    return (wrong or telling or ["it said nothing"])[-1][:300]
