"""Errors of the export: folders that cannot be used, files that cannot be written."""

from pathlib import Path
from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class ExportFolderTaken(RefoldError):
    """The folder holds another export, or files that are none."""

    code: ClassVar[str] = "R822"
    exit_code: ClassVar[int] = 2

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"{folder} cannot be exported to: {reason}",
            kept="everything in the folder as it was",
            next="name another folder (--to), or repeat the call that began the export there",
        )


class ExportUnwritable(RefoldError):
    """A file of the export could not be written."""

    code: ClassVar[str] = "R823"
    exit_code: ClassVar[int] = 1

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} cannot be written: {reason}",
            kept="every file that the manifest names",
            next="make room, or repair the folder, and repeat the call: it goes on behind them",
        )


class ExportDamaged(RefoldError):
    """A manifest that nobody can read, or a file of the export that is not what was written."""

    code: ClassVar[str] = "R824"
    exit_code: ClassVar[int] = 2

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} is not what was exported: {reason}",
            kept="the file as it is; the log has everything still",
            next="export anew to another folder (--to)",
        )


class ExportExtraMissing(RefoldError):
    """Parquet files need a package that is not installed."""

    code: ClassVar[str] = "R825"
    exit_code: ClassVar[int] = 2

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(
            f"Parquet files need the package {missing}, which is not installed",
            kept="nothing was read or written",
            next="pip install 'refold[export]', or export with --format jsonl",
        )


__all__ = ["ExportDamaged", "ExportExtraMissing", "ExportFolderTaken", "ExportUnwritable"]
