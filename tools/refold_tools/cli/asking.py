"""The commands that read: runs, boundary, history and why. They need no worker."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.inputs import check_one_of, zone_of
from refold_tools.cli.options import (
    LIMIT,
    JsonOption,
    LimitOption,
    LogOption,
    RunIdArgument,
    TimeZoneOption,
)

if TYPE_CHECKING:
    from refold.client import Client, HistoryRecord
    from refold.client.questions import BoundaryAt


def ask(log: str | None, work: "Callable[[Client], Coroutine[Any, Any, int]]") -> int:
    """Open the log, do `work` with a client, and return its exit code."""
    from refold.client.client import Client
    from refold.settings import log_url
    from refold_tools.cli.output import ReadingProgress

    progress = ReadingProgress()

    async def main() -> int:
        try:
            async with Client(log_url(log), on_progress=progress) as client:
                code = await work(client)
                progress.end()
                return code
        finally:
            progress.end()

    return asyncio.run(main())


def now() -> int:
    """The wall clock, in milliseconds."""
    return time.time_ns() // 1_000_000


STATUSES = (
    *("running", "waiting", "in_doubt", "diverged", "blocked", "cancelling"),
    *("completed", "failed", "cancelled"),
)
NEEDS = ("time", "person", "code")


async def seen_and_said(client: "Client", run_id: str, zone: tzinfo) -> "tuple[BoundaryAt, str]":
    """The run's boundary now, and its sentence. Raises RunUnknown."""
    from refold_projections.fold import sentence

    seen = await client.boundary_at(run_id)
    return seen, sentence(seen.boundary, zone, datetime.now(zone).date())


def runs(
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="Only runs of this status (may be repeated)."),
    ] = None,
    needs: Annotated[
        str | None, typer.Option("--needs", help="Only runs that wait for time, person or code.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--run", help="Only runs of this run function.")
    ] = None,
    limit: LimitOption = LIMIT,
    time_zone: TimeZoneOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """List runs and what they wait for, the most recently changed first."""
    zone = zone_of(time_zone)
    for one in status or ():
        check_one_of("--status", one, STATUSES, "refold runs")
    if needs is not None:
        check_one_of("--needs", needs, NEEDS, "refold runs")

    async def work(client: "Client") -> int:
        from refold_projections.fold import moment_near
        from refold_projections.fold.plain import iso
        from refold_tools.cli.output import STATUS_STYLES, print_json, say, table

        found = await client.runs(status=status or None, run=name, needs=needs)
        shown = found[:limit]
        if as_json:
            print_json(
                {
                    "runs": [
                        {
                            "run_id": one.run_id,
                            "run": one.run,
                            "version": one.version,
                            "status": one.status,
                            "reason": one.reason,
                            "needs": one.needs,
                            "started": iso(one.started_ms, zone),
                            "changed": iso(one.changed_ms, zone),
                            "partition": one.partition,
                            "events": one.event_count,
                        }
                        for one in shown
                    ],
                    "total": len(found),
                }
            )
            return 0
        if not found:
            say("no runs" if not (status or needs or name) else "no such runs")
            return 0
        now_ms = now()
        table(
            ["RUN_ID", "RUN", "STATUS", "NEEDS", f"CHANGED ({zone})", "REASON"],
            (
                [
                    one.run_id,
                    f"{one.run} {one.version}",
                    one.status,
                    one.needs or "",
                    moment_near(one.changed_ms, zone, now_ms),
                    one.reason or "",
                ]
                for one in shown
            ),
            {2: STATUS_STYLES},
            prose=True,
        )
        if len(found) > limit:
            say(f"{len(found) - limit} more: --limit {len(found)} shows them", "dim")
        return 0

    return ask(log, work)


def boundary(
    run_id: RunIdArgument,
    time_zone: TimeZoneOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what is done, under way, in doubt, failed and remaining of a run. Needs no worker."""
    zone = zone_of(time_zone)

    async def work(client: "Client") -> int:
        from refold_projections.fold import moment_near
        from refold_projections.fold.plain import boundary_json
        from refold_tools.cli.output import STATUS_STYLES, print_json, say

        seen, said = await seen_and_said(client, run_id, zone)
        if as_json:
            shape = boundary_json(seen.boundary, seen.partition, seen.offset, zone, said)
            print_json({**shape, "archived": list(seen.archived)} if seen.archived else shape)
            return 0
        bound, now_ms = seen.boundary, now()
        say(said[:1].upper() + said[1:] + ".", STATUS_STYLES.get(bound.status, ""))
        needs = f", needs {bound.needs}" if bound.needs else ""
        say(
            f"{bound.run_id}: {bound.run} version {bound.version}, {bound.status}{needs}, "
            f"partition {seen.partition} up to offset {seen.offset}, times in {zone}",
            "dim",
        )
        _say_archived(seen.archived)
        for one in bound.done:
            say(f"  done       {moment_near(one.at_ms, zone, now_ms)}  {one.slot}", "green")
        for kind, style, entries in (
            ("under way", "cyan", bound.under_way),
            ("in doubt", "yellow", bound.in_doubt),
        ):
            for entry in entries:
                say(
                    f"  {kind:<9}  {moment_near(entry.since_ms, zone, now_ms)}  {entry.slot}  "
                    f"attempt {entry.attempt}, {entry.policy}, key {entry.effect_key}",
                    style,
                )
        for failure in bound.failed:
            say(
                f"  failed     {moment_near(failure.at_ms, zone, now_ms)}  {failure.slot}  "
                f"{failure.error}",
                "bold red",
            )
        for step in bound.remaining or ():
            say(f"  remaining         {step}", "dim")
        return 0

    return ask(log, work)


def history(
    run_id: RunIdArgument,
    claims: Annotated[
        bool, typer.Option("--claims/--no-claims", help="Show where the owner changed.")
    ] = True,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere/--no-elsewhere",
            help="Also commands for it that were found on other partitions; reads all of them.",
        ),
    ] = True,
    time_zone: TimeZoneOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show every record of a run, one a line; those that do not count are marked with the reason.

    The columns: offset (behind its partition where that is not the run's), time, claim, event,
    slot, what it says. Of an archived run the files that hold its records are named.
    """
    zone = zone_of(time_zone)

    async def work(client: "Client") -> int:
        from refold_schemas.errors.cli import RunUnknown

        records = [one async for one in client.history(run_id, claims=claims)]
        files = await client.archived(run_id)
        if elsewhere:
            records += [one async for one in client.history_elsewhere(run_id)]
            records = _in_order(records)
        if not records and not files:
            raise RunUnknown(run_id, client.log.facts.namespace)
        if as_json:
            _history_json(run_id, records, zone, files)
            return 0
        _say_archived(files)
        if records:
            _history_lines(records, zone, client.partition_of(run_id))
        return 0

    return ask(log, work)


def _say_archived(files: Sequence[str]) -> None:
    from refold_tools.cli.output import say

    for file in files:
        say(f"archived in {file}: its records there are in the log no more", "dim")


def _in_order(records: "list[HistoryRecord]") -> "list[HistoryRecord]":
    """Records of several partitions by the log's clock, those of each as they stand in the log.

    A clock may have been set back meanwhile: no record is older than one that stands before it.
    """
    latest_ms: dict[int, int] = {}

    def at_least_ms(one: "HistoryRecord") -> int:
        latest_ms[one.partition] = max(latest_ms.get(one.partition, 0), one.append_ms)
        return latest_ms[one.partition]

    return sorted(records, key=at_least_ms)


def _history_json(
    run_id: str, records: "list[HistoryRecord]", zone: tzinfo, files: Sequence[str]
) -> None:
    from refold.client.words import event_words
    from refold_projections.fold.plain import iso
    from refold_tools.cli.output import print_json

    today = datetime.now(zone).date()
    lines = []
    for one in records:
        words = None if one.event is None else event_words(one.event, zone, today)
        lines.append(
            {
                "offset": one.offset,
                "partition": one.partition,
                "at": iso(one.at_ms, zone),
                "claim": one.claim_id.hex(),
                "epoch": one.epoch,
                "n": one.n,
                "event": None if words is None else words.event,
                "slot": (words.slot or None) if words is not None else None,
                "what": words.what if words is not None else one.problem,
                "counted": one.counted,
                "why_skipped": one.why_skipped,
            }
        )
    print_json({"run_id": run_id, "records": lines, "archived": list(files)})


def _history_lines(records: "list[HistoryRecord]", zone: tzinfo, home: int) -> None:
    from refold.client.words import event_words
    from refold_projections.fold.calendar import on_calendar
    from refold_tools.cli.output import say

    today = datetime.now(zone).date()
    lines = [None if r.event is None else event_words(r.event, zone, today) for r in records]
    places = [
        f"p{r.partition}:{r.offset}" if r.partition != home else str(r.offset) for r in records
    ]
    offset_width = max(map(len, places))
    event_width = max(len(words.event) if words else 11 for words in lines)
    slot_width = max(len(words.slot) if words else 0 for words in lines)
    day = None
    for record, words, place in zip(records, lines, places, strict=True):
        at = on_calendar(record.at_ms, zone)
        if at.date() != day:
            said = f"{at:%Y-%m-%d}" if day else f"{at:%Y-%m-%d}, times in {zone}"
            day = at.date()
            say(said, "bold")
        event = words.event if words else "undecodable"
        slot, what = (words.slot, words.what) if words else ("", record.problem or "")
        skipped = f"  [skipped: {record.why_skipped}]" if not record.counted else ""
        claim = record.claim_id.hex()[:6] or "------"
        say(
            f"{place:>{offset_width}}  {at:%H:%M:%S}.{at.microsecond // 1000:03}  {claim}  "
            f"{event:<{event_width}}  {slot:<{slot_width}}  {what}{skipped}".rstrip(),
            _line_style(event, counted=record.counted),
        )


def _line_style(event: str, *, counted: bool) -> str:
    if not counted:
        return "dim"
    return {
        "StepCompleted": "green",
        "RunCompleted": "bold green",
        "StepFailed": "red",
        "RunFailed": "bold red",
        "StepInDoubt": "yellow",
        "StepResolved": "green",
        "EvidenceConflict": "bold red",
        "RunDiverged": "bold red",
        "RunBlocked": "bold red",
        "CommandRejected": "yellow",
        "CommandParked": "yellow",
        "CommandEmitted": "yellow",
        "PartitionClaimed": "magenta",
        "undecodable": "bold red",
    }.get(event, "")


def why(
    run_id: RunIdArgument,
    time_zone: TimeZoneOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Explain a run: what is known, since when, on what evidence, and what moves it next."""
    zone = zone_of(time_zone)

    async def work(client: "Client") -> int:
        from refold.client.pending import orders_of
        from refold.client.words import Scene, explain
        from refold_tools.cli.output import print_json, say

        orders = await orders_of(client, run_id, zone)
        seen, said = await seen_and_said(client, run_id, zone)
        scene = Scene(seen.owner, seen.owner_lives, seen.released, zone, now(), orders)
        explained = explain(seen.boundary, seen.state, said, scene)
        if as_json:
            print_json(
                {
                    "run_id": run_id,
                    "status": seen.boundary.status,
                    "reason": seen.boundary.reason,
                    "needs": seen.boundary.needs,
                    "sentence": said,
                    "text": explained.text,
                    "commands": list(explained.commands),
                }
            )
            return 0
        say(f"{explained.text} (Times in {zone}.)")
        if explained.commands:
            say("")
            for command in explained.commands:
                say(f"  {command}", "bold")
        return 0

    return ask(log, work)
