"""`refold worker` and `refold dev`: a process that owns partitions, and one that restarts it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
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

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
FILES_MAX = 20_000
LOOK_EVERY_S = 0.5
STOP_WITHIN_S = 30.0
"""How long a worker has to drain and release before it is killed; its own limits add up to less."""


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


def dev(
    target: AppArgument,
    watch: Annotated[
        list[Path] | None,
        typer.Option("--watch", metavar="FOLDER", help="Watch this one too (may be repeated)."),
    ] = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a worker and restart it whenever a Python file changes: here, or in a watched folder.

    Makes the log if it is missing. Runs go on where they were: that is what the log is for.
    """
    from refold.settings import load_settings, log_url

    load_settings()
    url = log_url(log)
    asyncio.run(_make(url))
    command = [sys.executable, "-m", "refold_tools.cli", "worker", target, "--log", url]
    if as_json:
        command.append("--json")
    folders = (Path.cwd(), *(watch or ()))
    return Watcher(command, folders).run()


async def _make(url: str) -> None:
    from refold.log import open_log
    from refold_tools.cli.output import say
    from refold_tools.cli.registering import make_ready

    log = open_log(url)
    if await log.open(create=True):
        say(f"made the log {log.url}", "dim", error=True)
    await log.close()
    await make_ready(url)


class Watcher:
    """Keeps a child process running; ends it gracefully and starts it anew when a file changes."""

    def __init__(self, command: list[str], folders: tuple[Path, ...]) -> None:
        self.command, self.folders = command, folders
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False

    def run(self) -> int:
        """Watch until SIGINT or SIGTERM; returns 0 once the child has handed over."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        seen = snapshot(self.folders)
        self._start()
        while not self.stopping:
            time.sleep(LOOK_EVERY_S)
            self._look_at_child()
            now = snapshot(self.folders)
            if now != seen and not self.stopping:
                self._say(f"changed: {', '.join(changed(seen, now))}; restarting the worker")
                self._end()
                self._start()
            seen = now
        self._end()
        return 0

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def _start(self) -> None:
        from refold_tools.processes import ends_with_parent

        # A session of its own: Ctrl-C comes to us, and by us to it once. Twice ends it at once.
        self.child = subprocess.Popen(
            self.command, start_new_session=True, preexec_fn=ends_with_parent(signal.SIGTERM)
        )

    def _look_at_child(self) -> None:
        child = self.child
        if child is not None and child.poll() is not None and not self.stopping:
            self._say(f"the worker ended with {child.returncode}; it is started again on a change")
            self.child = None

    def _end(self) -> None:
        child, self.child = self.child, None
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._say(f"the worker has not stopped within {STOP_WITHIN_S:g} s and is killed")
            child.kill()
            child.wait()

    @staticmethod
    def _say(text: str) -> None:
        from refold_tools.cli.output import say

        say(f"dev: {text}", "bold", error=True)


def snapshot(folders: tuple[Path, ...]) -> dict[str, int]:
    """Python files below the folders and when each was modified, in nanoseconds."""
    found: dict[str, int] = {}
    for folder in folders:
        for path in _python_files(folder):
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:  # gone since: that is a change, too
                continue
            if len(found) >= FILES_MAX:
                return found
    return found


def _python_files(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            one for one in folders if not one.startswith(".") and one not in SKIPPED_FOLDERS
        ]
        for name in names:
            if name.endswith(".py"):
                yield os.path.join(place, name)


def changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Names of files that differ, at most three.

    >>> changed({"a.py": 1, "b.py": 1}, {"a.py": 2, "c.py": 1})
    ['a.py', 'b.py', 'c.py']
    """
    differing = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    names = [os.path.basename(path) for path in differing]
    return names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"]
