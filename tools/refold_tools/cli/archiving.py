"""The command that makes room in a log: events of finished runs to files, old commands away."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.moments import moment
from refold_tools.cli.options import JsonOption, LogOption

if TYPE_CHECKING:
    from refold.log import Log
    from refold_schemas.codec import Codec
    from refold_schemas.snapshots import Archived
    from refold_tools.archive import Plan, Report

FOLDER = ".refold/archive"


def archive(
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="AGE|TIME",
            help="Events of runs that ended longer ago (30d, 12h) or before a time (2026-11-30).",
        ),
    ] = "30d",
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Where the files go; keep them.")
    ] = FOLDER,
    commands_before: Annotated[
        str,
        typer.Option(
            "--commands-before",
            metavar="AGE|TIME",
            help="Delete commands that were decided and appended before that.",
        ),
    ] = "7d",
    past_live: Annotated[
        bool,
        typer.Option(
            "--past-live",
            help="Do not stop at a run that goes on: what its snapshot covers is archived too. "
            "Its state is in ns.snapshots and in the file then, and nowhere else.",
        ),
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this partition (may be repeated)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List the files that the log knows of, and end.")
    ] = False,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Copy the events of finished runs to files, read them back, and trim the log behind them.

    Workers may go on meanwhile. Nothing is deleted that a run or a reader needs: the log keeps
    everything from the first run that goes on, and from the last checkpoint. Decided commands are
    deleted without a copy: the events say what became of them.
    """
    from refold_tools.archive import Plan

    now_ms = time.time_ns() // 1_000_000
    plan = Plan(
        Path(to),
        moment("--before", before, now_ms, "refold archive"),
        moment("--commands-before", commands_before, now_ms, "refold archive"),
        past_live,
        dry_run,
    )
    return asyncio.run(_archive(log, plan, partition, listed=listed, as_json=as_json))


async def _archive(
    given: str | None, plan: "Plan", only: list[int] | None, *, listed: bool, as_json: bool
) -> int:
    from refold.log import open_log
    from refold.settings import log_url
    from refold.settings.registry import open_registry
    from refold_schemas.codec import Codec
    from refold_schemas.errors.cli import UsageRefused

    log = open_log(log_url(given))
    await log.open(create=False)
    try:
        count = log.facts.partition_count
        wanted = sorted(set(range(count) if only is None else only))
        if wanted[-1] >= count:
            told = f"--partition {wanted[-1]}: the namespace has partitions 0 to {count - 1}"
            raise UsageRefused(told, "refold archive")
        codec = Codec(open_registry(log.url))
        if listed:
            return await _list(log, codec, wanted, as_json=as_json)
        return await _each(log, codec, plan, wanted, as_json=as_json)
    finally:
        await log.close()


async def _each(
    log: "Log", codec: "Codec", plan: "Plan", partitions: list[int], *, as_json: bool
) -> int:
    from refold_tools.archive import Archiving
    from refold_tools.cli.output import print_json, say

    archiving = Archiving(log, codec, plan)
    reports: list[Report] = []
    for partition in partitions:
        report = await archiving.partition(partition)
        reports.append(report)
        if not as_json:
            for line in _lines(report, plan):
                say(line)
    if as_json:
        print_json({"dry_run": plan.dry, "partitions": [_shape(one) for one in reports]})
    elif not any(one.record_count or one.commands_next > one.commands_from for one in reports):
        say("nothing to archive yet")
    return 0


def _lines(report: "Report", plan: "Plan") -> list[str]:
    would = "would be " if plan.dry else ""
    name = f"p{report.partition}"
    found: list[str] = []
    if report.record_count:
        found.append(
            f"{name}: {report.record_count:,} events of {report.run_count:,} runs {would}archived, "
            f"offsets {report.events_from:,} to {report.events_next - 1:,}"
        )
    found += [f"{name}:   {one.path} ({one.size:,} bytes)" for one in report.files]
    if report.held_by is not None:
        found.append(
            f"{name}: the log is kept from offset {report.events_next:,} on: run {report.held_by} "
            "goes on, or ended too short a time ago"
        )
    if report.commands_next > report.commands_from:
        last = report.commands_next - 1
        found.append(f"{name}: commands {report.commands_from:,} to {last:,} {would}deleted")
    return found


def _shape(report: "Report") -> dict[str, Any]:
    return {
        "partition": report.partition,
        "events": {
            "from": report.events_from,
            "next": report.events_next,
            "records": report.record_count,
            "runs": report.run_count,
            "held_by": report.held_by,
        },
        "files": [
            {"path": str(one.path), "bytes": one.size, "sha256": one.sha256.hex()}
            for one in report.files
        ],
        "commands": {"from": report.commands_from, "next": report.commands_next},
    }


async def _list(log: "Log", codec: "Codec", partitions: list[int], *, as_json: bool) -> int:
    from refold.engine.checkpoints import archives_of
    from refold.log import Topic
    from refold_tools.cli.output import print_json, say

    found: list[Archived] = []
    for partition in partitions:
        start, _ = await log.bounds(Topic.EVENTS, partition)
        found += (await archives_of(log, partition, codec)).before(start)
    if as_json:
        print_json({"files": [_file_shape(one) for one in found]})
        return 0
    for one in found:
        say(
            f"{one.file}  offsets {one.offset_from:,} to {one.offset_next - 1:,}, "
            f"{one.record_count:,} records of {len(one.runs):,} runs, sha256 {one.sha256.hex()}"
        )
    if not found:
        say("nothing of this log was archived")
    return 0


def _file_shape(archived: "Archived") -> dict[str, Any]:
    return {
        "partition": archived.partition,
        "file": archived.file,
        "from": archived.offset_from,
        "next": archived.offset_next,
        "records": archived.record_count,
        "runs": len(archived.runs),
        "sha256": archived.sha256.hex(),
    }
