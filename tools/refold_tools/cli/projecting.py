"""The commands about the tables: filled, rebuilt beside readers, verified, brought to a shape."""

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.options import (
    JsonOption,
    LogFormatOption,
    LogOption,
    MetricsPortOption,
    TimeZoneOption,
)

if TYPE_CHECKING:
    from refold.log import Log
    from refold.projector.rebuilding import Rebuilt, Step
    from refold.projector.settings import ProjectorEvent
    from refold.projector.verifying import Verified
    from refold_tools.cli.observing import Observing

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="postgresql://USER@HOST:PORT/DATABASE. Default: REFOLD_DATABASE_URL.",
        show_default=False,
    ),
]
SchemaOption = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="Postgres schema of the views.")
]
BAR_WIDTH = 30
SHOW_EVERY_S = 0.1
SHOW_LINE_EVERY_S = 5.0

projections = typer.Typer(
    help="Make, rebuild or verify the tables.", no_args_is_help=True, add_completion=False
)


def projector(
    database: DatabaseOption = None,
    schema: SchemaOption = "public",
    time_zone: TimeZoneOption = None,
    metrics_port: MetricsPortOption = None,
    log_format: LogFormatOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Follow the log into the tables of a Postgres, until SIGINT or SIGTERM.

    Makes the tables, or brings them to this version's shape. Several share the partitions of a log
    on Kafka. While the database or the log is away it waits and says so. --time-zone is that of the
    sentences in the tables.
    """
    from refold.settings import load_settings
    from refold_tools.cli.observing import observing

    seen = observing(load_settings(), metrics_port, log_format)
    return asyncio.run(_projector(database, schema, time_zone, log, seen, as_json=as_json))


async def _projector(
    given: str | None,
    schema: str,
    time_zone: str | None,
    log_given: str | None,
    seen: "Observing",
    *,
    as_json: bool,
) -> int:
    from refold.log import open_log
    from refold.projector import Projector, ProjectorSettings
    from refold.projector.metrics import ProjectorMetrics
    from refold.projector.settings import event
    from refold.settings import database_url, log_url
    from refold.worker import tune_process
    from refold_tools.cli.inputs import zone_of
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.signals import stop_on_signals

    url, zone = database_url(given), zone_of(time_zone)
    log = open_log(log_url(log_given))
    await log.open(create=False)
    line = seen.lines("projector", log.facts.namespace)

    def tell(one: "ProjectorEvent") -> None:
        if line is not None:
            fields = {"partition": None if one.partition < 0 else one.partition}
            level = "warning" if one.kind == "waiting" else "info"
            line(level, one.kind, one.text, {**fields, "at_ms": one.at_ms})
            return
        at = datetime.fromtimestamp(one.at_ms / 1000, UTC).astimezone(zone)
        if as_json:
            print_json(
                {
                    "at": at.isoformat(timespec="milliseconds"),
                    "event": one.kind,
                    "partition": None if one.partition < 0 else one.partition,
                    "text": one.text,
                }
            )
            sys.stdout.flush()
            return
        where = "" if one.partition < 0 else f"partition {one.partition}: "
        style = {"waiting": "yellow", "going_on": "green"}.get(one.kind, "")
        say(f"{at:%H:%M:%S}  {where}{one.text}", style)

    metrics = None
    try:
        settings = ProjectorSettings(schema=schema, time_zone=str(zone))
        following = Projector(log, url, settings=settings, on_event=tell)
        metrics = seen.serve(lambda _: [ProjectorMetrics(following)])
        if metrics is not None:
            where = f"http://{metrics.host}:{metrics.port}/metrics"
            tell(event("metrics", -1, f"metrics at {where}"))
        tune_process()
        with stop_on_signals(following.stop):
            await following.run()
        if as_json:
            print_json({"stopped": True})
        return 0
    finally:
        if metrics is not None:
            metrics.close()
        await log.close()


@projections.command("migrate")
def migrate(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be applied, and change nothing.")
    ] = False,
    database: DatabaseOption = None,
    schema: SchemaOption = "public",
    as_json: JsonOption = False,
) -> int:
    """Make the tables, or bring them to this version's shape: all of it or nothing.

    Views that somebody has dropped are made again.
    """
    return asyncio.run(_migrate(database, schema, dry_run=dry_run, as_json=as_json))


async def _migrate(given: str | None, schema: str, *, dry_run: bool, as_json: bool) -> int:
    from refold.settings import database_url
    from refold_projections.tables.database import close, connect, translated
    from refold_projections.tables.migrating import lost_views, pending, restore
    from refold_projections.tables.migrating import migrate as apply
    from refold_projections.tables.names import names_in
    from refold_tools.cli.output import print_json, say

    url, names = database_url(given), names_in(schema)
    connection = await connect(url, name="refold migrate")
    try:
        with translated(url):
            numbers = await (pending if dry_run else apply)(connection, names)
            views: tuple[str, ...] = ()
            if not (dry_run and numbers):  # what is to be applied is not there, and not lost
                views = await (lost_views if dry_run else restore)(connection, names)
    finally:
        await close(connection)
    if as_json:
        print_json(
            {
                "schema": schema,
                "migrations": list(numbers),
                "views": list(views),
                "applied": not dry_run,
            }
        )
        return 0
    if numbers:
        listed = ", ".join(map(str, numbers))
        say(f"{'would apply' if dry_run else 'applied'} migration {listed} in schema {schema}")
    if views:
        made = "would make" if dry_run else "made"
        say(f"{made} {', '.join(views)} again in schema {schema}: somebody has dropped it")
        say("what others may do with it has to be granted again")
    if not numbers and not views:
        say(f"the tables in schema {schema} have this version's shape")
    return 0


@projections.command("verify")
def verify(
    database: DatabaseOption = None,
    schema: SchemaOption = "public",
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare the live tables with a fresh fold of the log; name the first difference.

    Each partition is compared at the position that stands beside its rows, so the projector may go
    on meanwhile. Exit code 1 where they differ.
    """
    return asyncio.run(_verify(database, schema, log, as_json=as_json))


async def _verify(given: str | None, schema: str, log_given: str | None, *, as_json: bool) -> int:
    from refold.projector.verifying import stray_row
    from refold.projector.verifying import verify as compare
    from refold.settings import database_url
    from refold.settings.registry import open_registry
    from refold_projections.tables.database import close, connect, translated
    from refold_projections.tables.migrating import check
    from refold_projections.tables.names import names_in
    from refold_projections.tables.store import Store, live_of
    from refold_schemas.codec import Codec
    from refold_schemas.errors.tables import TablesNotTrue, TablesOfAnother
    from refold_tools.cli.output import print_json, say

    url, names = database_url(given), names_in(schema)
    log = await _opened(log_given)
    bar = Bar()
    found: list[Verified] = []
    try:
        connection = await connect(url, name="refold verify", statement_timeout_ms=0)
        try:
            with translated(url):
                await check(connection, names)
                live = await live_of(connection, names)
                if live.namespace not in ("", log.facts.namespace):
                    raise TablesOfAnother(schema, live.namespace, log.facts.namespace)
                store = Store(names, live.name, Codec(open_registry(log.url)))
                for partition in range(log.facts.partition_count):
                    show = bar.of(f"verifying partition {partition}")
                    one = await compare(connection, store, log, partition, on_progress=show)
                    found.append(one)
                    if one.difference is not None:
                        break
                count = log.facts.partition_count
                stray = await stray_row(connection, store, "partition >= $1", count)
        finally:
            await close(connection)
    finally:
        bar.end()
        await log.close()
    differing = [one for one in found if one.difference is not None]
    if differing or stray is not None:
        raise TablesNotTrue(str(differing[0].difference if differing else stray))
    if as_json:
        print_json({"set": live.name, "partitions": [_verified_json(one) for one in found]})
        return 0
    for one in found:
        say(f"partition {one.partition}: {_verified_words(one)}")
    say(f"set {live.name} says what the log says", "green")
    return 0


@projections.command("rebuild")
def rebuild(
    database: DatabaseOption = None,
    schema: SchemaOption = "public",
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Fill a new set of tables beside the live one, verify it, and swap them.

    Readers see the old set until the swap, and the new one from then on. Ctrl-C stops it, or
    whatever else; called again it goes on where it was. The projector may run meanwhile.
    """
    return asyncio.run(_rebuild(database, schema, log, as_json=as_json))


async def _rebuild(given: str | None, schema: str, log_given: str | None, *, as_json: bool) -> int:
    from refold.projector import ProjectorSettings
    from refold.projector.rebuilding import Rebuild
    from refold.settings import database_url
    from refold.settings.registry import open_registry
    from refold.worker import tune_process
    from refold_schemas.codec import Codec
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.signals import stop_on_signals

    url = database_url(given)
    log = await _opened(log_given)
    bar = Bar()
    tune_process()

    def show(step: "Step") -> None:
        bar.show(step.phase, step.done, step.total)

    began = time.monotonic()
    try:
        codec = Codec(open_registry(log.url))
        work = Rebuild(log, url, codec, ProjectorSettings(schema=schema), show)
        with stop_on_signals(work.stop):
            ended: Rebuilt = await work.run()
    finally:
        bar.end()
        await log.close()
    seconds = time.monotonic() - began
    if as_json:
        print_json(
            {
                "live": ended.set_name,
                "stopped": ended.set_name is None,
                "resumed": ended.resumed,
                "seconds": round(seconds, 1),
                "partitions": [_verified_json(one) for one in ended.partitions],
            }
        )
    elif ended.set_name is None:
        say("stopped; what is filled stays. `refold projections rebuild` takes it up again")
    else:
        for one in ended.partitions:
            say(f"partition {one.partition}: {_verified_words(one)}")
        more = ", taken up where one was stopped," if ended.resumed else ""
        say(f"rebuilt{more} in {seconds:.1f} s; set {ended.set_name} is live", "green")
    return 0 if ended.set_name is not None else 1


async def _opened(given: str | None) -> "Log":
    from refold.log import open_log
    from refold.settings import load_settings, log_url

    load_settings()
    log = open_log(log_url(given))
    await log.open(create=False)
    return log


def _verified_words(one: "Verified") -> str:
    return f"{one.row_count:,} rows up to offset {one.offset_next}, sha256 {one.sha256[:16]}"


def _verified_json(one: "Verified") -> dict[str, Any]:
    return {
        "partition": one.partition,
        "offset_next": one.offset_next,
        "rows": one.row_count,
        "sha256": one.sha256,
    }


class Bar:
    """How far a long work is, on stderr: a bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._shown_s = 0.0
        self._phase = ""
        self._any = False

    def of(self, phase: str) -> Callable[[int, int], None]:
        """What a work of this name is to call."""
        return lambda done, total: self.show(phase, done, total)

    def show(self, phase: str, done: int, total: int) -> None:
        """Say it, unless something was said just now."""
        on_terminal, now = sys.stderr.isatty(), time.monotonic()
        every = SHOW_EVERY_S if on_terminal else SHOW_LINE_EVERY_S
        if now - self._shown_s < every and phase == self._phase and done < total:
            return
        self._shown_s, self._phase, self._any = now, phase, True
        told = bar_words(phase, done, total)
        sys.stderr.write(f"\r{told}\x1b[K" if on_terminal else f"{told}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the bar away."""
        if self._any and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def bar_words(phase: str, done: int, total: int) -> str:
    """One line.

    >>> bar_words("filling", 500_000, 1_000_000)
    'filling [===============               ]  50 % (500,000 of 1,000,000)'
    """
    part = min(done / total, 1.0) if total else 1.0
    full = round(part * BAR_WIDTH)
    bar = "=" * full + " " * (BAR_WIDTH - full)
    return f"{phase} [{bar}] {part * 100:3.0f} % ({done:,} of {total:,})"
