"""What can keep the stack from coming up."""

from pathlib import Path
from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class PrerequisiteMissing(RefoldError):
    """A program that a service needs is not on this machine, or is too old."""

    code: ClassVar[str] = "R540"
    exit_code: ClassVar[int] = 2

    def __init__(self, missing: str, next: str) -> None:
        self.missing = missing
        super().__init__(missing, kept="nothing was started", next=next)


class JarsUnresolved(RefoldError):
    """Maven could not bring the jars of a service."""

    code: ClassVar[str] = "R541"

    def __init__(self, what: str, said: str) -> None:
        self.what, self.said = what, said
        super().__init__(
            f"Maven could not bring {what}: {said}",
            kept="nothing was started; what Maven has already fetched stays in its repository",
            next="see whether `mvn` reaches its repository from here (its settings name a mirror "
            "or a proxy), then repeat `refold devstack up`",
        )


class PortTaken(RefoldError):
    """Another process listens where a service was to listen."""

    code: ClassVar[str] = "R542"
    exit_code: ClassVar[int] = 2

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port = name, port
        super().__init__(
            f"port {port} of 127.0.0.1 is taken, so {name} cannot listen there",
            kept="nothing was started",
            next="end the process that listens there, or move the stack: "
            "`refold devstack up --port-base 20000`",
        )


class ServiceNotReady(RefoldError):
    """A service ended while it started, or took too long to answer."""

    code: ClassVar[str] = "R543"
    exit_code: ClassVar[int] = 4

    def __init__(self, name: str, happened: str, said: str, log: Path) -> None:
        self.name, self.happened, self.said, self.log = name, happened, said, log
        super().__init__(
            f"{name} {happened}: {said}",
            kept="its data folder; what this call had started was stopped again",
            next=f"read {log}; `refold devstack down --delete` makes room for a fresh start",
        )


class StackDiffers(RefoldError):
    """The folder holds a stack with other brokers, ports or versions than were asked for."""

    code: ClassVar[str] = "R544"
    exit_code: ClassVar[int] = 2

    def __init__(self, folder: Path, has: str, asked: str) -> None:
        self.folder, self.has, self.asked = folder, has, asked
        super().__init__(
            f"the stack in {folder} has {has}, not {asked}",
            kept="the stack as it is",
            next="leave the option out, name another --folder, or end this one for good: "
            "`refold devstack down --delete`",
        )


class StackBusy(RefoldError):
    """Another command is at work on the same folder."""

    code: ClassVar[str] = "R545"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"another `refold devstack` is at work in {folder}",
            kept="the stack as it is",
            next="wait until it has ended, then repeat the command",
        )


class StateUnreadable(RefoldError):
    """The state file of a stack is not one that this version writes."""

    code: ClassVar[str] = "R546"

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{path} cannot be read: {why}",
            kept="the folder, and whatever of its stack still runs",
            next="end what still runs with the version that started it, or by hand; then remove "
            "the folder",
        )
