"""What goes to the terminal: lines and tables for people, JSON as the last line for programs."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PIPE_WIDTH = 240
"""Columns of a table that goes to a file or a pipe: there nothing should be folded."""
PROGRESS_AFTER_S = 0.5
"""A read that is over sooner shows no progress."""

GOOD, BAD, WARN, DIM, BOLD = "green", "bold red", "yellow", "dim", "bold"

STATUS_STYLES = {
    "completed": GOOD,
    "running": "cyan",
    "waiting": DIM,
    "in_doubt": WARN,
    "cancelling": WARN,
    "cancelled": DIM,
    "diverged": BAD,
    "blocked": BAD,
    "failed": BAD,
}


def print_json(payload: object) -> None:
    """The one line for programs."""
    print(json.dumps(payload, ensure_ascii=False))


def coloured(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and nobody has set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(*, error: bool = False) -> Any:
    """A rich console that takes text as it is: no markup, no emoji, no guessing of highlights."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    colour = coloured(stream)
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        no_color=not colour,
        color_system="auto" if colour else None,
        width=None if stream.isatty() else max(PIPE_WIDTH, shutil.get_terminal_size().columns),
    )


def say(text: str, style: str = "", *, error: bool = False) -> None:
    """One line for people; it is not folded."""
    stream = sys.stderr if error else sys.stdout
    if style and coloured(stream):
        console(error=error).print(text, style=style, soft_wrap=True)
    else:
        print(text, file=stream)
    stream.flush()


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[int, dict[str, str]]
) -> None:
    """A table without lines. `styles`: for a column, the style of each of its texts."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style=BOLD, padding=(0, 2, 0, 0))
    for name in columns:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(
            *(
                Text(cell, style=styles.get(place, {}).get(cell, ""))
                for place, cell in enumerate(row)
            )
        )
    console().print(shown)


class ReadingProgress:
    """Shows on stderr how far a long read of the log has come, if that is a terminal."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[int, TaskID] = {}

    def __call__(self, partition: int, offset: int, end: int) -> None:
        """What a client's `on_progress` is called with."""
        if not sys.stderr.isatty():
            return
        if self._progress is None:
            if time.monotonic() - self._since < PROGRESS_AFTER_S:
                return
            from rich.progress import Progress

            self._progress = Progress(console=console(error=True), transient=True)
            self._progress.start()
        if partition not in self._tasks:
            self._tasks[partition] = self._progress.add_task(f"partition {partition}", total=end)
        self._progress.update(self._tasks[partition], completed=offset, total=end)

    def end(self) -> None:
        """Take the bars away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()
