"""The options that commands share, declared once."""

import os
from typing import Annotated

import typer

LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        help="The log: sqlite:///FILE.db, sqlite:////ABSOLUTE.db?ns=NAME, kafka://HOST:PORT/NAME. "
        "Default: REFOLD_LOG, else sqlite:///.refold/log.db.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the answer as JSON, on the last line of stdout.")
]
ByOption = Annotated[
    str | None,
    typer.Option("--by", metavar="WHO", help="Who asks. Default: your login.", show_default=False),
]
WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why, for the record.")]
WITHIN_MAX_S = 31_536_000.0
"""A year, in seconds."""


WithinOption = Annotated[
    float | None,
    typer.Option(
        "--within",
        metavar="SECONDS",
        min=0.0,
        max=WITHIN_MAX_S,
        help="How long to wait for a worker's decision; the command itself stays in the log. "
        "Default: 10 s, 1 s where no worker is alive.",
        show_default=False,
    ),
]
RunIdArgument = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The run function's name.")]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="JSON|@FILE", help="The input; @- reads stdin.")
]
NewRunIdOption = Annotated[
    str | None,
    typer.Option("--run-id", metavar="ID", help="The run's id. Default: a fresh one."),
]
LIMIT = 100
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, help="At most so many, the latest first.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="AGE|TIME", help="Before then. Default: now.")
]
AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP",
        help="The app: an importable module and the name of the App in it.",
    ),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65_535,
        help="Answer Prometheus at http://127.0.0.1:PORT/metrics; 0 is any free port. "
        "Default: REFOLD_METRICS_PORT, else nowhere.",
        show_default=False,
    ),
]
LogFormatOption = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="json|text",
        help="Log lines with fields on stderr. Default: REFOLD_LOG_FORMAT, else lines for people.",
        show_default=False,
    ),
]
TimeZoneOption = Annotated[
    str | None,
    typer.Option(
        "--time-zone",
        metavar="ZONE",
        help="Zone of the times shown, such as Europe/Berlin. Default: REFOLD_TIME_ZONE, else UTC.",
        show_default=False,
    ),
]


def asker(by: str | None) -> str:
    """Who asks: as given, else the login name."""
    return by or os.environ.get("USER") or os.environ.get("LOGNAME") or "command line"
