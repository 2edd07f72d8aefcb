"""The manifest of an export: what was asked for, how far it has come, which files it is made of."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from refold_projections.fold import Position
from refold_tools.export.errors import ExportDamaged, ExportUnwritable
from refold_tools.export.files import sync_folder

NAME = "manifest.json"
FORMAT = 1


@dataclass
class Part:
    """One partition. `position` is where its reader stands, whole; None before the first record.

    `offset_from`: where the log began when the export did; what is before that is in `archived`
    files. `offset_end`: where it ended then: nothing behind it is exported. `runs_at`: the offset
    that runs and effects are as of.
    """

    partition: int
    offset_from: int
    offset_end: int
    position: list[Any] | None = None
    archived: list[str] = field(default_factory=list)
    events_done: bool = False
    runs_done: bool = False
    runs_at: int | None = None

    @property
    def at(self) -> Position | None:
        """The position of its reader."""
        if self.position is None:
            return None
        kept: list[Any] = [
            bytes.fromhex(one) if isinstance(one, str) else one for one in self.position
        ]
        return Position(*kept)

    def stands_at(self, position: Position) -> None:
        """Keep the position of its reader."""
        self.position = [one.hex() if isinstance(one, bytes) else one for one in position]


@dataclass
class FileMade:
    """A file of the export, named relative to the folder."""

    path: str
    table: str
    partition: int
    rows: int
    size: int
    sha256: str


@dataclass
class Manifest:
    """Everything that was decided when the export began, and what has been written since.

    `since_ms` inclusive, `until_ms` exclusive, milliseconds since 1970 UTC.
    """

    namespace: str
    topic_ids: list[str]
    since_ms: int
    until_ms: int
    file_format: str
    tables: list[str]
    parts: list[Part]
    files: list[FileMade] = field(default_factory=list)
    complete: bool = False
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        """Replace the manifest in one step. Raises ExportUnwritable."""
        path = folder / NAME
        part = folder / f".{NAME}.{os.getpid()}.part"
        text = json.dumps(asdict(self), indent=1) + "\n"
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(folder)
        except OSError as error:
            raise ExportUnwritable(path, error.strerror or str(error)) from error


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in a folder, None where there is none. Raises ExportDamaged."""
    path = folder / NAME
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ExportDamaged(path, f"it cannot be read ({error})") from error
    try:
        if tree["format"] != FORMAT:
            raise ExportDamaged(path, f"it is of format {tree['format']}, this reads {FORMAT}")
        parts = [Part(**one) for one in tree.pop("parts")]
        files = [FileMade(**one) for one in tree.pop("files")]
        made = Manifest(**tree, parts=parts, files=files)
        for one in made.parts:
            assert one.at is None or len(one.at) == len(Position())
        return made
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ExportDamaged(path, f"it is no manifest ({type(error).__name__})") from error


__all__ = ["NAME", "FileMade", "Manifest", "Part", "read_manifest"]
