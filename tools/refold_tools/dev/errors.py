"""What can keep `refold dev` from coming up."""

from pathlib import Path
from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class DevRunning(RefoldError):
    """Another `refold dev` is at work in this folder."""

    code: ClassVar[str] = "R560"
    exit_code: ClassVar[int] = 2

    def __init__(self, folder: Path, pid: int | None, url: str | None) -> None:
        self.folder, self.pid, self.url = folder, pid, url
        who = "" if pid is None else f", pid {pid}"
        page = "" if url is None else f"; its page is {url}"
        super().__init__(
            f"`refold dev` runs in {folder} already{who}{page}",
            kept="the one that runs, and everything that it has started",
            next="use that one, end it with Ctrl-C, or begin in another folder",
        )


class DevExtraMissing(RefoldError):
    """The projector, the gateway or the database needs a package that is not installed."""

    code: ClassVar[str] = "R561"
    exit_code: ClassVar[int] = 2

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(
            f"the page of `refold dev` needs {missing}, which is not installed",
            kept="nothing was started",
            next="pip install 'refold[gateway,devstack]', or `refold dev --no-page` for the worker "
            "alone",
        )


class DevPortTaken(RefoldError):
    """Another process listens on the port that was asked for."""

    code: ClassVar[str] = "R562"
    exit_code: ClassVar[int] = 2

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(
            f"port {port} of 127.0.0.1 is taken, so the page cannot be served there",
            kept="nothing was started",
            next="name another --port, or leave it out: then a free one is taken",
        )


class DevPageEnded(RefoldError):
    """The gateway of `refold dev` did not come up, or ended."""

    code: ClassVar[str] = "R563"
    exit_code: ClassVar[int] = 4

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the page of `refold dev` is not there: {reason}",
            kept="the log and every run in it; what was started was stopped again",
            next="`refold dev --no-page` starts the worker alone; `refold doctor` looks over the "
            "log, `refold devstack status --folder .refold/dev` over the database",
        )


class DevFolderUnusable(RefoldError):
    """The folder that state is kept in cannot be made or written."""

    code: ClassVar[str] = "R564"
    exit_code: ClassVar[int] = 2

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"`refold dev` keeps its state in {folder}, which cannot be used: {reason}",
            kept="nothing was started",
            next="begin in a folder that this user may write to; what stands in the way of "
            f"{folder.name} may be moved",
        )
