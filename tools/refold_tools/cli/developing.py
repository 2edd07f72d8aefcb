"""`refold dev`: worker, projector, gateway and page for writing code, by one command."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from refold_tools.cli.options import (
    AppArgument,
    JsonOption,
    LogOption,
    MetricsPortOption,
    asker,
)

FOLDER = Path(".refold")


def dev(
    target: AppArgument,
    watch: Annotated[
        list[Path] | None,
        typer.Option("--watch", metavar="FOLDER", help="Watch this one too (may be repeated)."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65_535,
            help="Where the page is served. Default: 8470, or the next free one.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Without it: the worker alone.")
    ] = True,
    metrics_port: MetricsPortOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run worker, projector, gateway and page here, and restart the worker when code changes.

    Makes the log if it is missing, and a Postgres under .refold/ unless REFOLD_DATABASE_URL names
    one. Runs go on where they were: that is what the log is for. Ctrl-C ends all that it started.
    Prometheus is answered for all of them on one port.
    """
    from refold.settings import TIME_ZONE_DEFAULT, load_settings, log_url, time_zone
    from refold_tools.cli.observing import observing
    from refold_tools.dev import Development, Plan
    from refold_tools.dev.metrics import Listening, free_port

    settings = load_settings()
    url = log_url(log)
    command = [sys.executable, "-m", "refold_tools.cli", "worker", target, "--log", url]
    if as_json:
        command.append("--json")
    seen = observing(settings, metrics_port, None)
    listening = None
    if seen.metrics_port is not None:
        worker_port = seen.metrics_port
        if page:  # the page's process answers for both
            worker_port = free_port()
            listening = Listening(seen.host, seen.metrics_port, worker_port)
        command += ["--metrics-port", str(worker_port)]
    plan = Plan(
        command=command,
        watched=(Path.cwd(), *(watch or ())),
        folder=FOLDER.absolute(),
        log_url=url,
        time_zone=time_zone(default=TIME_ZONE_DEFAULT),
        who=asker(None),
        database_url=settings.database_url,
        port=port,
        page=page,
        listening=listening,
    )

    def ready(page_url: str | None, metrics_url: str | None) -> None:
        if as_json:
            said = {"event": "ready", "url": page_url, "metrics": metrics_url}
            print(json.dumps(said), flush=True)
        elif page_url is not None:
            at = "" if metrics_url is None else f"; metrics at {metrics_url}"
            _say(f"ready: {page_url}{at}  (Ctrl-C ends everything)")

    development = Development(plan, _say, ready)
    code = development.run(lambda: asyncio.run(_make(url)))
    if as_json:
        print(json.dumps({"stopped": True}), flush=True)
    return code


async def _make(url: str) -> None:
    from refold.log import open_log
    from refold_tools.cli.output import say
    from refold_tools.cli.registering import make_ready

    log = open_log(url)
    if await log.open(create=True):
        say(f"made the log {log.url}", "dim", error=True)
    await log.close()
    await make_ready(url)


def _say(text: str) -> None:
    from refold_tools.cli.output import say

    say(f"dev: {text}", "bold", error=True)
