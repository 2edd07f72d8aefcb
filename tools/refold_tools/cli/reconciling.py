"""`refold reconcile`: asks the far systems, once or every so often, and tells what differs."""

import asyncio
from datetime import UTC, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.asking import now
from refold_tools.cli.inputs import load_app, zone_of
from refold_tools.cli.moments import duration_ms, moment
from refold_tools.cli.options import (
    ByOption,
    JsonOption,
    LogOption,
    MetricsPortOption,
    TimeZoneOption,
    UntilOption,
    WhyOption,
    WithinOption,
    asker,
)

if TYPE_CHECKING:
    from refold.app import App
    from refold_tools.cli.observing import Observing
    from refold_tools.reconcile import Reconciler, Report, Told, Window
    from refold_tools.reconcile.metrics import ReconcileMetrics

COMMAND = "refold reconcile"
WINDOW = "1d"
SHOWN_MAX = 20
"""So many unknown keys are told one by one; the JSON has all."""


def reconcile(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="The app whose lookups are asked."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="AGE|TIME", help="Effects from then on (2d, 2026-11-30T12:00)."
        ),
    ] = None,
    until: UntilOption = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window", metavar="AGE", help=f"Instead of --since: so long back. Default: {WINDOW}."
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="AGE", help="Look again every so often (1h), for ever."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask and tell, and put nothing on record.")
    ] = False,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=256, help="So many lookups at once.")
    ] = 8,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Of one lookup."),
    ] = 30.0,
    accept: Annotated[
        str | None,
        typer.Option(
            "--accept", metavar="FINDING", help="Say that a finding was dealt with; asks nobody."
        ),
    ] = None,
    by: ByOption = None,
    why: WhyOption = "",
    within: WithinOption = None,
    time_zone: TimeZoneOption = None,
    metrics_port: MetricsPortOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Ask each far system's lookup for the effects of a window, and report what differs.

    Done here and not there, there and not here, another result, evidence that conflicts. Each new
    finding is put on record with the command that settles it; nothing is repaired. No answer is no
    finding. Exit code 1 if there are findings.
    """
    from refold.settings import load_settings
    from refold_schemas.errors.cli import UsageRefused
    from refold_tools.cli.leaving import run_to_end
    from refold_tools.cli.observing import observing

    settings = load_settings()
    zone = zone_of(time_zone)
    patience = None if within is None else timedelta(seconds=within)
    if accept is not None:
        others = (target, since, until, window, every, metrics_port)
        if any(one is not None for one in others) or dry_run:
            raise UsageRefused("--accept FINDING stands alone, with --why, --by and --log", COMMAND)
        return asyncio.run(_accept(log, accept, asker(by), why, patience, as_json=as_json))
    if target is None:
        raise UsageRefused("name the app whose lookups are to be asked: MODULE:APP", COMMAND)
    if since is not None and window is not None:
        raise UsageRefused("--since and --window say the same: give one of them", COMMAND)
    if every is not None and until is not None:
        raise UsageRefused("--every looks up to the present each time: leave out --until", COMMAND)
    if metrics_port is not None and every is None:
        raise UsageRefused("--metrics-port is of what goes on: give --every, too", COMMAND)
    every_ms = None if every is None else duration_ms("--every", every, COMMAND)
    start = since if since is not None else window if window is not None else WINDOW
    now_ms = now()
    since_ms = (
        moment("--since", start, now_ms, COMMAND)
        if since is not None
        else now_ms - duration_ms("--window", start, COMMAND)
    )
    until_ms = now_ms if until is None else moment("--until", until, now_ms, COMMAND)
    if since_ms >= until_ms:
        raise UsageRefused("the window is empty: --since lies at or behind its end", COMMAND)
    app = load_app(target)
    work = _work(
        log,
        app,
        (max(0, since_ms), until_ms),
        every_ms,
        (at_once, timeout, asker(by) if by else None, patience, dry_run),
        zone,
        observing(settings, metrics_port, None),
        as_json=as_json,
    )
    return run_to_end(work, as_json=as_json)


async def _work(
    log: str | None,
    app: "App",
    window: tuple[int, int],
    every_ms: int | None,
    how: tuple[int, float, str | None, timedelta | None, bool],
    zone: tzinfo,
    seen: "Observing",
    *,
    as_json: bool,
) -> int:
    from refold.client.client import Client
    from refold.settings import log_url
    from refold_tools.cli.output import ReadingProgress, say
    from refold_tools.reconcile import Limits, Reconciler, Window
    from refold_tools.reconcile.metrics import ReconcileMetrics

    at_once, timeout_s, by, within, dry = how
    progress = ReadingProgress()
    async with Client(log_url(log), on_progress=progress) as client:
        client.by = by or "reconcile"
        reconciler = Reconciler(
            client,
            app,
            now,
            limits=Limits(at_once=at_once, timeout_s=timeout_s),
            by=client.by,
            within=within,
            dry=dry,
        )
        if every_ms is None:
            report = await reconciler.look(Window(*window))
            progress.end()
            return _told(report, zone, as_json=as_json)
        metrics = ReconcileMetrics(client.log.facts.namespace)
        server = seen.serve(lambda _: [metrics])
        try:
            if server is not None:
                say(f"metrics at http://{server.host}:{server.port}/metrics", error=True)
            first = Window(*window)
            return await _again(reconciler, first, every_ms, zone, metrics, as_json=as_json)
        finally:
            if server is not None:
                server.close()


async def _again(
    reconciler: "Reconciler",
    window: "Window",
    every_ms: int,
    zone: tzinfo,
    metrics: "ReconcileMetrics",
    *,
    as_json: bool,
) -> int:
    """Look, and again at what has come since, until a signal; the code is that of the last look."""
    from refold_schemas.errors import SchemaUnavailable
    from refold_schemas.errors.log import LogUnavailable, OffsetOutOfRange
    from refold_tools.cli.output import say
    from refold_tools.cli.signals import stop_on_signals
    from refold_tools.reconcile import Window

    stopped = asyncio.Event()
    report = await reconciler.look(window)
    metrics.note(report)
    code = _told(report, zone, as_json=as_json)
    with stop_on_signals(stopped.set):
        while not stopped.is_set():
            try:
                async with asyncio.timeout(every_ms / 1000):
                    await stopped.wait()
                break
            except TimeoutError:
                pass
            following = Window(window.until_ms, now())
            try:
                report = await reconciler.look(following)
            except (LogUnavailable, OffsetOutOfRange, SchemaUnavailable) as error:
                # The log or its registry is away, or it was archived while it was read: asked again
                # from the same moment on.
                if isinstance(error, SchemaUnavailable) and not error.mends:
                    raise
                metrics.failed()
                say(f"refold: {error}", error=True)
                continue
            metrics.note(report)
            window, code = following, _told(report, zone, as_json=as_json)
    return code


async def _accept(
    log: str | None, finding: str, by: str, why: str, within: timedelta | None, *, as_json: bool
) -> int:
    from refold.client.client import Client
    from refold.settings import log_url
    from refold_schemas.errors.cli import FindingUnknown
    from refold_tools.cli.output import ReadingProgress, print_json, say
    from refold_tools.reconcile.rounds import accept

    progress = ReadingProgress()
    async with Client(log_url(log), on_progress=progress) as client:
        done = await accept(client, finding, by=by, why=why, within=within)
        progress.end()
        if done is None:
            raise FindingUnknown(finding, client.log.facts.namespace)
        run_id, accepted = done
        if as_json:
            print_json({"run_id": run_id, "finding_id": finding, "status": accepted.status})
        else:
            say(f"recorded: {accepted.kind} of {accepted.slot} in {run_id} is dealt with")
    return 0


# ---- what was found, for people and for programs


def _told(report: "Report", zone: tzinfo, *, as_json: bool) -> int:
    from refold_tools.cli.output import print_json

    if as_json:
        print_json(_shape(report))
    else:
        _say(report, zone)
    return 1 if report.has_findings else 0


def _say(report: "Report", zone: tzinfo) -> None:
    from refold_projections.fold import moment_near
    from refold_tools.cli.output import say

    now_ms = now()
    start = moment_near(report.window.since_ms, zone, now_ms)
    end = moment_near(report.window.until_ms, zone, now_ms)
    findings = len([one for one in report.findings if one.state != "accepted"])
    what = "no findings" if not findings else f"{findings} finding{'s' if findings > 1 else ''}"
    say(
        f"effects from {start} to {end} ({zone}): {report.asked} asked, {report.agreed} agree, "
        f"{what}, {len(report.unknown)} unknown",
        "bold red" if findings else "",
    )
    for one in report.findings:
        _say_finding(one, dry=report.dry)
    for one in report.settled:
        say(f"  settled     {one.run_id} {one.finding.slot}: {one.finding.kind} no more", "green")
    for unknown in report.unknown[:SHOWN_MAX]:
        entry = unknown.effect.entry
        say(f"  unknown     {entry.run_id} {entry.slot}, key {entry.effect_key}: {unknown.why}")
    if len(report.unknown) > SHOWN_MAX:
        say(f"  unknown     {len(report.unknown) - SHOWN_MAX} more: --json has all", "dim")
    for words in _not_asked(report):
        say(f"  not asked   {words}", "dim")
    for words in report.refused:
        say(f"  not on record: {words}", "yellow")
    for words in report.unrecorded:
        say(f"  perhaps not on record: {words}", "yellow")


def _say_finding(one: "Told", *, dry: bool) -> None:
    from refold_tools.cli.output import say

    state = "" if one.state == "new" else f", {one.state}"
    if one.state == "new" and not one.recorded and not dry:
        state = ", not on record until a worker takes it"
    say(f"  {one.finding.kind:<11} {one.run_id}{state}: {one.finding.detail}", "yellow")
    if one.state != "accepted":
        say(f"              {one.finding.command}", "bold")


def _not_asked(report: "Report") -> list[str]:
    words = {
        "young": "too young: the far system may still lag (timeout and settle); asked later",
        "busy": "under way, or in doubt and looked up by its owner",
        "no_lookup": "of steps without a lookup",
        "no_code": "of steps that this app does not have",
        "beyond": "more than one look asks: narrow the window",
    }
    return [
        f"{report.not_asked[how]} {said}" for how, said in words.items() if report.not_asked[how]
    ]


def _shape(report: "Report") -> dict[str, Any]:
    from refold_projections.fold.plain import iso

    def told(one: "Told") -> dict[str, Any]:
        finding = one.finding
        return {
            "finding_id": finding.finding_id,
            "kind": finding.kind,
            "run_id": one.run_id,
            "slot": finding.slot,
            "step": finding.step,
            "effect_key": finding.effect_key,
            "detail": finding.detail,
            "command": finding.command,
            "state": one.state,
            "recorded": one.recorded,
        }

    return {
        "since": iso(report.window.since_ms, UTC),
        "until": iso(report.window.until_ms, UTC),
        "dry_run": report.dry,
        "asked": report.asked,
        "lookups": report.lookups,
        "agreed": report.agreed,
        "findings": [told(one) for one in report.findings],
        "settled": [told(one) for one in report.settled],
        "unknown": [
            {
                "run_id": one.effect.entry.run_id,
                "slot": one.effect.entry.slot,
                "step": one.effect.entry.step,
                "effect_key": one.effect.entry.effect_key,
                "why": one.why,
            }
            for one in report.unknown
        ],
        "not_asked": {
            how: report.not_asked[how]
            for how in ("young", "busy", "no_lookup", "no_code", "beyond")
        },
        "refused": report.refused,
        "unrecorded": report.unrecorded,
    }
