"""Errors of the archive: files that cannot be written, and files that are not what was written."""

from pathlib import Path
from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class ArchiveUnwritable(RefoldError):
    """An archive file could not be made, or did not read back as it was written."""

    code: ClassVar[str] = "R536"
    exit_code: ClassVar[int] = 1

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} cannot be archived to: {reason}",
            kept="everything in the log: nothing is deleted before its file was read back",
            next="make room or another folder (--to), then archive again",
        )


class ArchiveDamaged(RefoldError):
    """An archive file that is not what was written, or no archive file at all."""

    code: ClassVar[str] = "R537"
    exit_code: ClassVar[int] = 2

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} cannot be read as an archive: {reason}",
            kept="the file as it is",
            next="take another copy of it; the log names its SHA-256 (`refold archive --list`)",
        )


class ArchiveRefused(RefoldError):
    """The log begins where no archive ends, so nobody knows what a file of it would begin with."""

    code: ClassVar[str] = "R538"
    exit_code: ClassVar[int] = 3

    def __init__(self, partition: int, start: int) -> None:
        self.partition, self.start = partition, start
        super().__init__(
            f"partition {partition} begins at offset {start}, and no archive ends there: something "
            "else has trimmed it",
            kept="everything that the log still holds",
            next="find out what deletes events (retention.ms has to be -1; `refold doctor`)",
        )


__all__ = ["ArchiveDamaged", "ArchiveRefused", "ArchiveUnwritable"]
