"""`refold worker`: a process that owns partitions, or several under one parent."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from refold_tools.cli.inputs import load_app, zone_of
from refold_tools.cli.options import (
    AppArgument,
    JsonOption,
    LogFormatOption,
    LogOption,
    MetricsPortOption,
)

if TYPE_CHECKING:
    from refold.app import App
    from refold_tools.cli.observing import Observing


def worker(
    target: AppArgument,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", metavar="N", min=1, help="So many worker processes under this one."
        ),
    ] = 1,
    metrics_port: MetricsPortOption = None,
    log_format: LogFormatOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Own partitions of the log and host their runs, until SIGINT or SIGTERM: then hand over.

    What happens is told line by line, as JSON objects with --json. A worker never makes a log.
    With `--processes` each is a worker of its own; one that dies is started again. Their metrics
    are on as many ports, from `--metrics-port` on.
    """
    from refold.settings import load_settings, log_url
    from refold_tools.cli.leaving import run_to_end
    from refold_tools.cli.observing import observing

    seen = observing(load_settings(), metrics_port, log_format)
    app = load_app(target)
    if processes > 1:
        return _crew(app, target, log_url(log), processes, seen, as_json=as_json)
    return run_to_end(_serve(app, log_url(log), seen, as_json=as_json), as_json=as_json)


def _crew(
    app: "App", target: str, url: str, count: int, seen: "Observing", *, as_json: bool
) -> int:
    """Look whether they could serve at all, then run them until they end."""
    from refold.worker import WorkerEvent
    from refold_schemas.errors.cli import UsageRefused
    from refold_tools.cli.crew import Crew, worker_command
    from refold_tools.cli.failures import wants_traceback
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.telling import event_teller

    partitions = asyncio.run(_partitions(url))
    if count > partitions:
        raise UsageRefused(
            f"--processes {count}: the namespace has {partitions} partition(s), and each is served "
            "by one process; the others would only stand by",
            "refold worker",
        )
    event = event_teller(zone_of(app=app), as_json=as_json, error=False)

    def tell(text: str) -> None:
        event(WorkerEvent("process", -1, None, text, time.time_ns() // 1_000_000))

    debug, log_format = wants_traceback(sys.argv), seen.log_format
    command = worker_command(target, url, as_json=as_json, debug=debug, log_format=log_format)
    crew = Crew(command, count, tell, more=seen.options_of)
    code = crew.run()
    if as_json:
        print_json({"stopped": True, "processes": count, "exit_codes": crew.codes})
    else:
        say(f"stopped; the {count} processes ended with {crew.codes}")
    return code


async def _partitions(url: str) -> int:
    from refold.log import open_log

    log = open_log(url)
    await log.open(create=False)
    try:
        return log.facts.partition_count
    finally:
        await log.close()


async def _serve(app: "App", url: str, seen: "Observing", *, as_json: bool) -> int:
    from refold.log import open_log
    from refold.worker import Worker, WorkerSettings, tune_process
    from refold.worker.metrics import WorkerMetrics
    from refold_tools.cli.failures import hard_exit
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.signals import stop_on_signals
    from refold_tools.cli.telling import event_teller

    log = open_log(url)
    await log.open(create=False)
    tune_process()
    try:
        zone = zone_of(app=app)
        tell = seen.teller(log.facts.namespace) or event_teller(zone, as_json=as_json, error=False)
        end = hard_exit(lambda: hosting, as_json=as_json)
        settings = WorkerSettings(time_zone=str(zone))
        hosting = Worker(app, log, on_event=tell, exit_hard=end, settings=settings)
        metrics = seen.serve(lambda loop: [WorkerMetrics(hosting, loop)])
        if not as_json:
            versions = ", ".join(app.versions) or "no run functions"
            served = f"{log.facts.namespace} in {log.url} with app {app.name}: {versions}"
            at = "" if metrics is None else f"; metrics at http://{metrics.host}:{metrics.port}"
            say(f"serving {served}; times in {zone}{at}")
        with stop_on_signals(hosting.stop):
            await hosting.run()
        if as_json:
            handed_over = hosting.handed_over
            print_json({"stopped": True, "handed_over": handed_over, "stats": hosting.stats()})
        elif hosting.handed_over:
            say("stopped; the partitions are handed over")
        else:
            say("stopped; not all partitions are handed over: the next owner waits for the lease")
        return 0
    finally:
        await log.close()
