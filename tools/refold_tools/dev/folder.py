"""The lock that a `refold dev` holds on its folder, and what a second one is told of the first."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from refold_tools.dev.errors import DevFolderUnusable, DevRunning

FILE = "dev.lock"


class Hold:
    """The folder, held until this process ends, however it ends: the kernel lets go of it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def tell(self, url: str | None) -> None:
        """Leave the pid and the page's URL for a second one to read."""
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), "url": url}, self._file)
        self._file.flush()


@contextmanager
def held(folder: Path) -> Iterator[Hold]:
    """Hold `folder`. Raises DevRunning where another one does, DevFolderUnusable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / FILE).open("a+")
    except OSError as error:
        raise DevFolderUnusable(folder, error.strerror or str(error)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevRunning(folder.parent, *_said(file)) from None
        hold = Hold(file)
        hold.tell(None)
        yield hold


def _said(file: IO[str]) -> tuple[int | None, str | None]:
    file.seek(0)
    try:
        told = json.load(file)
        return told["pid"], told["url"]
    except (ValueError, KeyError, TypeError):  # it is just being written
        return None, None
