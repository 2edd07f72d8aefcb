"""What a worker in this process tells: a line for people, a JSON object for programs."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from refold_projections.fold.plain import iso
from refold_tools.cli.output import json_line, say

if TYPE_CHECKING:
    from refold.worker import WorkerEvent

STYLES = {
    "claimed": "magenta",
    "released": "magenta",
    "resumed": "bold",
    "completed": "green",
    "failed": "bold red",
    "in_doubt": "yellow",
    "waiting": "dim",
    "blocked": "bold red",
    "diverged": "bold red",
    "conflict": "bold red",
    "finding": "yellow",
    "rejected": "yellow",
    "forwarded": "yellow",
    "warning": "yellow",
    "ended_claim": "yellow",
    "log": "dim",
}


MORE = "\n          "
"""Before the second line of a text, and each further one."""


def event_teller(zone: tzinfo, *, as_json: bool, error: bool) -> "Callable[[WorkerEvent], None]":
    """A listener that prints each event: to stderr with `error`, else to stdout."""

    def tell(event: "WorkerEvent") -> None:
        if as_json:
            line = {
                "event": event.kind,
                "partition": event.partition,
                "run_id": event.run_id,
                "text": event.text,
                "at": iso(event.at_ms, zone),
            }
            print(json_line(line), file=sys.stderr if error else sys.stdout, flush=True)
            return
        at = datetime.fromtimestamp(event.at_ms / 1000, UTC).astimezone(zone)
        about = event.run_id or (f"partition {event.partition}" if event.partition >= 0 else "")
        kind = event.kind.replace("_", " ")
        # A line of what somebody else says must not look like one of ours.
        text = event.text.replace("\n", MORE)
        say(
            f"{at:%H:%M:%S}  {kind:<11}  {about}  {text}",
            STYLES.get(event.kind, ""),
            error=error,
        )

    return tell
