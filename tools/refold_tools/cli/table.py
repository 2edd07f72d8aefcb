"""The table of commands: name, where its function is, and one line of help.

To add a command, add a line. Nothing is imported before the command is called or completed. A
command of an optional part (`needs`) appears when that module is there.
"""

from importlib.util import find_spec
from typing import NamedTuple


class Entry(NamedTuple):
    """One command. `place` is `module:function`, or `module:object` for a Typer of several."""

    name: str
    place: str
    help: str
    needs: str | None = None


COMMANDS = (
    Entry(
        "demo",
        "refold_tools.demo:demo",
        "Watch an agent lose its process twice and finish with one refund.",
        needs="refold_tools.demo",
    ),
    Entry(
        "dev",
        "refold_tools.cli.developing:dev",
        "Run worker, database and page here; restart the worker when the code changes.",
    ),
    Entry(
        "worker",
        "refold_tools.cli.hosting:worker",
        "Own partitions and host their runs, until a signal.",
    ),
    Entry(
        "live",
        "refold_tools.cli.counting:live",
        "Count what happens, by second, minute and hour, for pages and Prometheus.",
    ),
    Entry(
        "run",
        "refold_tools.cli.running:run",
        "Run one run to its end, here, resuming it if it exists.",
    ),
    Entry(
        "start",
        "refold_tools.cli.acting:start",
        "Ask for a run; a worker will do it.",
    ),
    Entry("runs", "refold_tools.cli.asking:runs", "List runs and what they wait for."),
    Entry(
        "boundary",
        "refold_tools.cli.asking:boundary",
        "Say what is done, under way, in doubt, failed and remaining.",
    ),
    Entry("history", "refold_tools.cli.asking:history", "Show every record of a run, one a line."),
    Entry(
        "why",
        "refold_tools.cli.asking:why",
        "Explain why a run stands where it stands, and what moves it.",
    ),
    Entry(
        "resolve",
        "refold_tools.cli.acting:resolve",
        "Say of a step in doubt whether it happened.",
    ),
    Entry("retry", "refold_tools.cli.acting:retry", "Let a parked or failed run go on."),
    Entry("cancel", "refold_tools.cli.acting:cancel", "End a run; what is open is settled first."),
    Entry(
        "policies",
        "refold_tools.cli.coding:policies",
        "List step, policy, key, lookup and settle of an app, and what is missing.",
    ),
    Entry(
        "check",
        "refold_tools.cli.coding:check",
        "Import an app and report what it registers and what it lacks.",
    ),
    Entry(
        "doctor",
        "refold_tools.cli.doctor:doctor",
        "Look over log, owners, clock, commands and runs.",
    ),
    Entry(
        "commands",
        "refold_tools.cli.orders:commands",
        "List rejected commands, or publish one again.",
    ),
    Entry(
        "reconcile",
        "refold_tools.cli.reconciling:reconcile",
        "Ask the far systems about effects, and report what differs from the record.",
    ),
    Entry(
        "export",
        "refold_tools.cli.exporting:export",
        "Copy events, runs and effects of a window to files for analytics.",
    ),
    Entry(
        "gateway",
        "refold_tools.cli.gateway:gateway",
        "Answer over HTTP what the command line answers, with roles.",
    ),
    Entry(
        "archive",
        "refold_tools.cli.archiving:archive",
        "Copy the events of finished runs to files, and trim the log behind them.",
    ),
    Entry(
        "projector",
        "refold_tools.cli.projecting:projector",
        "Follow the log into the tables of a Postgres, until a signal.",
    ),
    Entry(
        "projections",
        "refold_tools.cli.projecting:projections",
        "Make, rebuild or verify the tables.",
    ),
    Entry(
        "namespace",
        "refold_tools.cli.keeping:namespace",
        "Make, show or upgrade a namespace of a log.",
    ),
    Entry(
        "schemas",
        "refold_tools.cli.schemas:schemas",
        "List, show, check or register the schemas of the records.",
    ),
    Entry(
        "devstack",
        "refold_tools.devstack.command:devstack",
        "Start and stop Kafka, a schema registry and Postgres here, without Docker.",
        needs="refold_tools.devstack",
    ),
    Entry(
        "bench",
        "refold_tools.bench:bench",
        "Measure against the budgets and the peers.",
        needs="refold_tools.bench",
    ),
)


def available() -> tuple[Entry, ...]:
    """The commands that work here."""
    return tuple(entry for entry in COMMANDS if entry.needs is None or _is_there(entry.needs))


def _is_there(module: str) -> bool:
    try:
        spec = find_spec(module)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None  # a bare folder is no module
