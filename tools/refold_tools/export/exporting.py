"""Exports partition by partition, file by file; whoever is stopped goes on behind the last file."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from refold.engine import checkpoints
from refold.log import Log, Topic
from refold_projections.fold import Position
from refold_schemas.codec import Codec
from refold_tools.export.columns import TABLES
from refold_tools.export.errors import ExportDamaged, ExportFolderTaken
from refold_tools.export.files import FORMATS, RowFile, alone_in, iso, sha256_of, sweep
from refold_tools.export.manifest import NAME, FileMade, Manifest, Part, read_manifest
from refold_tools.export.reading import event_rows, run_rows

FILE_ROWS_MAX = 500_000
"""Rows of one file; what a stopped export has to read again at most."""
YIELD_ROWS = 2_000


class Plan(NamedTuple):
    """What to export. Times in milliseconds since 1970 UTC.

    None in `since_ms`, `until_ms`, `file_format`, `tables`: as the export in the folder began, else
    all, up to `now_ms`, parquet, every table.
    """

    folder: Path
    now_ms: int
    since_ms: int | None = None
    until_ms: int | None = None
    file_format: str | None = None
    tables: tuple[str, ...] | None = None
    file_rows_max: int = FILE_ROWS_MAX


class Report(NamedTuple):
    """What the folder holds now. `resumed`: an export that was begun before was gone on with."""

    manifest: Manifest
    resumed: bool
    already: bool

    def rows(self, table: str) -> int:
        """How many rows of a table were written."""
        return sum(one.rows for one in self.manifest.files if one.table == table)


class Exporting:
    """One export. `on_file` is told of each file that is whole."""

    def __init__(
        self,
        log: Log,
        codec: Codec,
        plan: Plan,
        on_file: Callable[[FileMade], None] = lambda made: None,
    ) -> None:
        self._log, self._codec, self._plan, self._on_file = log, codec, plan, on_file
        self._folder = plan.folder

    async def run(self) -> Report:
        """Export what is not yet exported.

        Raises ExportFolderTaken, ExportDamaged, ExportUnwritable, ExportExtraMissing, and what
        reading the log raises; the files that the manifest names stand, and a repeat goes on.
        """
        with alone_in(self._folder):
            return await self._run()

    async def _run(self) -> Report:
        manifest = read_manifest(self._folder)
        resumed = manifest is not None
        if manifest is None:
            manifest = await self._begin()
        else:
            self._check_same(manifest)
        sweep(self._folder)
        if manifest.complete:
            if self._plan.until_ms is None:
                # Whoever asks up to now would take what is old for what there is.
                until = iso(manifest.until_ms)
                reason = (
                    f"the export in it is complete, up to {until}; a new one wants a new folder"
                )
                raise ExportFolderTaken(self._folder, reason)
            return Report(manifest, resumed, True)
        for part in manifest.parts:
            if "events" in manifest.tables and not part.events_done:
                await self._events(manifest, part)
            if not part.runs_done:
                await self._runs(manifest, part)
        manifest.complete = True
        manifest.save(self._folder)
        return Report(manifest, resumed, False)

    async def _begin(self) -> Manifest:
        plan, facts = self._plan, self._log.facts
        if self._folder.exists():
            found = [one.name for one in self._folder.iterdir() if not one.name.endswith(".part")]
            if found:
                reason = f"it is not empty ({found[0]}), and has no {NAME}"
                raise ExportFolderTaken(self._folder, reason)
        parts = []
        for partition in range(facts.partition_count):
            start, end = await self._log.bounds(Topic.EVENTS, partition)
            archived = []
            if start > 0:
                archives = await checkpoints.archives_of(self._log, partition, self._codec)
                archived = [one.file for one in archives.before(start)]
            parts.append(Part(partition, start, end, archived=archived))
        tables = tuple(TABLES) if plan.tables is None else plan.tables
        manifest = Manifest(
            facts.namespace,
            list(facts.topic_ids),
            0 if plan.since_ms is None else plan.since_ms,
            plan.now_ms if plan.until_ms is None else plan.until_ms,
            plan.file_format or "parquet",
            [one for one in TABLES if one in tables],
            parts,
        )
        # A file of each kind, so that what is missing is said before anything is read.
        probe = RowFile(self._folder / ".probe", TABLES["events"], manifest.file_format)
        probe.drop()
        manifest.save(self._folder)
        return manifest

    def _check_same(self, manifest: Manifest) -> None:
        """What is asked for now is what was begun, as far as it is asked for."""
        plan, facts = self._plan, self._log.facts
        asked: list[tuple[str, object, object]] = [
            ("namespace", facts.namespace, manifest.namespace),
            ("topics", list(facts.topic_ids), manifest.topic_ids),
            ("--since", plan.since_ms, manifest.since_ms),
            ("--until", plan.until_ms, manifest.until_ms),
            ("--format", plan.file_format, manifest.file_format),
            ("--table", plan.tables and sorted(plan.tables), sorted(manifest.tables)),
        ]
        for what, wanted, begun in asked:
            if wanted is not None and wanted != begun:
                reason = f"the export in it has {what} {_said(begun)}, not {_said(wanted)}"
                raise ExportFolderTaken(self._folder, reason)
        for made in manifest.files:
            path = self._folder / made.path
            try:
                whole = path.stat().st_size == made.size and sha256_of(path) == made.sha256
            except OSError as error:
                raise ExportDamaged(path, error.strerror or str(error)) from error
            if not whole:
                raise ExportDamaged(path, "its bytes are not those that the manifest names")

    async def _events(self, manifest: Manifest, part: Part) -> None:
        """The partition's events from where it stands, a file after the other."""
        window = (manifest.since_ms, manifest.until_ms)
        rows = event_rows(self._log, self._codec, part.partition, part.at, window, part.offset_end)
        file: RowFile | None = None
        position: Position | None = part.at
        try:
            async with aclosing(rows):
                async for position, row in rows:
                    if row is None:
                        continue
                    if file is None:
                        file = self._file(manifest, "events", part.partition, row["offset"])
                    file.put(row)
                    if file.count >= self._plan.file_rows_max:
                        part.stands_at(position)
                        self._made(manifest, "events", part.partition, file)
                        file = None
                    elif file.count % YIELD_ROWS == 0:
                        await asyncio.sleep(0)
            if position is not None:
                part.stands_at(position)
            part.events_done = True
            self._made(manifest, "events", part.partition, file)
        except BaseException:
            if file is not None:
                file.drop()
            raise

    async def _runs(self, manifest: Manifest, part: Part) -> None:
        wanted = frozenset(manifest.tables) - {"events"}
        part.runs_done = True
        if not wanted:
            return
        window = (manifest.since_ms, manifest.until_ms)
        part.runs_at, rows = await run_rows(self._log, self._codec, part.partition, window, wanted)
        files: dict[str, RowFile] = {}
        made: dict[str, FileMade] = {}
        try:
            for number, (table, row) in enumerate(rows):
                if table not in files:
                    files[table] = self._file(manifest, table, part.partition, 0)
                files[table].put(row)
                if number % YIELD_ROWS == 0:
                    await asyncio.sleep(0)
            for table, file in files.items():
                made[table] = self._finished(table, part.partition, file)
        except BaseException:
            for file in files.values():
                file.drop()
            raise
        manifest.files += made.values()
        manifest.save(self._folder)
        for one in made.values():
            self._on_file(one)

    def _file(self, manifest: Manifest, table: str, partition: int, first: int) -> RowFile:
        name = f"p{partition:05}" + (f"-{first:020}" if table == "events" else "")
        path = self._folder / table / f"{name}{FORMATS[manifest.file_format]}"
        return RowFile(path, TABLES[table], manifest.file_format)

    def _made(self, manifest: Manifest, table: str, partition: int, file: RowFile | None) -> None:
        """Name the file and save how far it has come, in this order."""
        made = None if file is None else self._finished(table, partition, file)
        if made is not None:
            manifest.files.append(made)
        manifest.save(self._folder)
        if made is not None:
            self._on_file(made)

    def _finished(self, table: str, partition: int, file: RowFile) -> FileMade:
        written = file.finish()
        place = written.path.relative_to(self._folder).as_posix()
        return FileMade(place, table, partition, written.rows, written.size, written.sha256)


def _said(what: object) -> str:
    return ", ".join(map(str, what)) if isinstance(what, (list, tuple)) else str(what)


__all__ = ["Exporting", "Plan", "Report"]
