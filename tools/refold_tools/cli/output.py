"""What goes to the terminal: lines and tables for people, JSON as the last line for programs."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from refold_schemas.errors.harmless import harmless, harmless_json

if TYPE_CHECKING:
    from refold.client.reading import Reading

PIPE_WIDTH = 240
"""Columns of a table that goes to a file or a pipe: there nothing should be folded."""
GAP = 2
"""Columns between those of a table."""
PROSE_MIN = 20
"""Columns below which a text in a table is folded, not cut."""
PROGRESS_AFTER_S = 1.0
"""A read that is over sooner shows no progress."""
PROGRESS_EVERY_S = 5.0
"""How often a line is written where stderr is no terminal."""

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


def json_line(payload: object) -> str:
    """The payload on one line that a terminal can show, too."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    line = json.dumps(payload, ensure_ascii=not encoding.lower().startswith("utf"))
    return harmless_json(line)


def print_json(payload: object) -> None:
    """The one line for programs."""
    print(json_line(payload))


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
    text = harmless(text)
    if style and coloured(stream):
        console(error=error).print(text, style=style, soft_wrap=True)
    else:
        print(text, file=stream)
    stream.flush()


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: dict[int, dict[str, str]],
    *,
    prose: bool = False,
) -> None:
    """A table without lines. `styles`: for a column, the style of each of its texts.

    `prose`: the last column is one line of text, cut where a terminal ends. To a file or a pipe
    everything goes whole, a row a line.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.table import Table
    from rich.text import Text

    safe = [[harmless(cell) for cell in row] for row in rows]
    cells = [[*row[:-1], " ".join(row[-1].split()) if prose else row[-1]] for row in safe]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    terminal = console()
    left = terminal.width - sum(widths[:-1]) - GAP * (len(widths) - 1)
    if prose and sys.stdout.isatty() and left >= PROSE_MIN:
        for row in cells:
            if cell_len(row[-1]) > left:
                row[-1] = set_cell_size(row[-1], left - 1).rstrip() + "…"
    shown = Table(box=None, pad_edge=False, header_style=BOLD, padding=(0, GAP, 0, 0))
    for name in columns:
        shown.add_column(name, overflow="fold")
    for row in cells:
        shown.add_row(
            *(
                Text(cell, style=styles.get(place, {}).get(cell, ""))
                for place, cell in enumerate(row)
            )
        )
    if sys.stdout.isatty():
        terminal.print(shown)
        return
    terminal.width = max(PIPE_WIDTH, sum(widths) + GAP * len(widths))
    with terminal.capture() as printed:
        terminal.print(shown)
    for line in printed.get().splitlines():
        say(line.rstrip())


class ReadingProgress:
    """A line on stderr that says how far a long read of the log has come, if that is a terminal.

    `wanted` (`--progress`): also where it is none, and at the end what was read.
    """

    wanted = False

    def __init__(self) -> None:
        self._since = self._shown_s = time.monotonic()
        self._reading: Reading | None = None
        self._shown = False

    def __call__(self, reading: "Reading") -> None:
        """What a client's `on_progress` is called with."""
        self._reading = reading
        now = time.monotonic()
        on_terminal = sys.stderr.isatty()
        if not (on_terminal or self.wanted) or now - self._since < PROGRESS_AFTER_S:
            return
        if self._shown and now - self._shown_s < (0.1 if on_terminal else PROGRESS_EVERY_S):
            return
        self._shown, self._shown_s = True, now
        told = reading_words(reading)
        sys.stderr.write(f"\r{told}\x1b[K" if on_terminal else f"{told}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._shown and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._shown = False
        if self.wanted and self._reading is not None:
            partitions = _partitions(self._reading.partition_count)
            say(f"read {size_words(self._reading.size)} of {partitions}", "dim", error=True)
            self._reading = None


def reading_words(reading: "Reading") -> str:
    """How far a read has come, as a line.

    >>> from refold.client.reading import Reading
    >>> reading_words(Reading(32, 0.41, 1_200_000_000))
    'reading 32 partitions: 41 % (1.2 of about 2.9 GB)'
    """
    about = size_words(reading.size_about)
    number, _, unit = size_words(reading.size).partition(" ")
    same = about.endswith(f" {unit}")
    sizes = f"{number if same else f'{number} {unit}'} of about {about}"
    return (
        f"reading {_partitions(reading.partition_count)}: {reading.fraction:.0%} ({sizes})".replace(
            "%", " %"
        )
    )


def size_words(size: int) -> str:
    """Bytes for people.

    >>> size_words(999), size_words(2_930_000)
    ('999 B', '2.9 MB')
    """
    if size < 1_000:
        return f"{size} B"
    units = (("kB", 10**3), ("MB", 10**6), ("GB", 10**9))
    unit, factor = next((one for one in units if size < one[1] * 1_000), units[-1])
    return f"{size / factor:.1f} {unit}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
