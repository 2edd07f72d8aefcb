"""`refold export`: events, runs and effects of a window as Parquet files or JSON lines."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.inputs import check_one_of
from refold_tools.cli.moments import is_age, moment
from refold_tools.cli.options import JsonOption, LogOption, UntilOption

if TYPE_CHECKING:
    from refold_tools.export import Plan, Report
    from refold_tools.export.manifest import FileMade

COMMAND = "refold export"
FOLDER = ".refold/export"
TABLES = ("events", "runs", "effects")
FORMATS = ("parquet", "jsonl")


def export(
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="AGE|TIME", help="From then on (7d, 2026-11-30). Default: all."
        ),
    ] = None,
    until: UntilOption = None,
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="An empty folder, or that of one begun.")
    ] = FOLDER,
    file_format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="parquet or jsonl. Default: parquet."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="events, runs or effects (may be repeated). Default: all."),
    ] = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Copy a window of the log to files for analytics; the log stays as it is.

    Every record is there, those that do not count marked. A manifest names the files, with counts
    and digests. One that was stopped goes on if it is called again.
    """
    from refold_schemas.errors.cli import UsageRefused
    from refold_tools.export import Plan

    if file_format is not None:
        check_one_of("--format", file_format, FORMATS, COMMAND)
    for one in table or ():
        check_one_of("--table", one, TABLES, COMMAND)
    now_ms = time.time_ns() // 1_000_000
    since_ms = None if since is None else moment("--since", since, now_ms, COMMAND)
    until_ms = None if until is None else moment("--until", until, now_ms, COMMAND)
    if until_ms is not None and until_ms > now_ms:
        # What is still to come would be missing, and nobody would see that.
        raise UsageRefused(f"--until {until} lies in the future", COMMAND)
    if (since_ms or 0) >= (now_ms if until_ms is None else until_ms):
        raise UsageRefused("the window is empty: --since lies at or behind its end", COMMAND)
    tables = None if not table else tuple(dict.fromkeys(table))
    plan = Plan(Path(to), now_ms, since_ms, until_ms, file_format, tables)
    ages = (since is not None and is_age(since), until is not None and is_age(until))
    return asyncio.run(_export(log, plan, ages, as_json=as_json))


async def _export(
    given: str | None, plan: "Plan", ages: tuple[bool, bool], *, as_json: bool
) -> int:
    from refold.log import open_log
    from refold.settings import log_url
    from refold.settings.registry import open_registry
    from refold_schemas.codec import Codec
    from refold_tools.cli.output import print_json, say, size_words
    from refold_tools.export import Exporting, read_manifest

    begun = read_manifest(plan.folder)
    if begun is not None:  # an age is another moment at each call: the one of the first stands
        since_ms = None if ages[0] else plan.since_ms
        until_ms = None if ages[1] else plan.until_ms
        plan = plan._replace(since_ms=since_ms, until_ms=until_ms)

    def told(made: "FileMade") -> None:
        if not as_json:
            say(f"{plan.folder / made.path}: {made.rows:,} rows, {size_words(made.size)}")

    log = open_log(log_url(given))
    await log.open(create=False)
    try:
        report = await Exporting(log, Codec(open_registry(log.url)), plan, told).run()
    finally:
        await log.close()
    if as_json:
        print_json(_shape(report, plan.folder))
    else:
        _say(report, plan.folder)
    return 0


def _say(report: "Report", folder: Path) -> None:
    from refold_tools.cli.output import say

    manifest = report.manifest
    counts = ", ".join(f"{report.rows(one):,} {one}" for one in manifest.tables)
    done = "stood there already" if report.already else "exported"
    more = ", gone on with what was begun before" if report.resumed and not report.already else ""
    say(f"{counts} {done} in {folder}{more}", "bold")
    for part in manifest.parts:
        if part.archived:
            say(
                f"p{part.partition}: events before offset {part.offset_from:,} are archived in "
                f"{', '.join(part.archived)}, and not in it",
                "yellow",
            )


def _shape(report: "Report", folder: Path) -> dict[str, Any]:
    from datetime import UTC

    from refold_projections.fold.plain import iso

    manifest = report.manifest
    return {
        "folder": str(folder),
        "complete": manifest.complete,
        "resumed": report.resumed,
        "already": report.already,
        "format": manifest.file_format,
        "since": iso(manifest.since_ms, UTC),
        "until": iso(manifest.until_ms, UTC),
        "rows": {one: report.rows(one) for one in manifest.tables},
        "files": [
            {"path": one.path, "table": one.table, "rows": one.rows, "bytes": one.size}
            for one in manifest.files
        ],
        "archived": {
            str(part.partition): part.archived for part in manifest.parts if part.archived
        },
    }
