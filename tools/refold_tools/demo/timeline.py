"""The lines that a demo shows: a clock, who speaks, and what happened; coloured on terminals."""

import os
import shutil
import textwrap
from datetime import datetime, tzinfo
from typing import TextIO

COLOURS = {
    "agent": "\x1b[36m",
    "crash": "\x1b[1;31m",
    "refold": "\x1b[32m",
    "world": "\x1b[33m",
    "person": "\x1b[35m",
}
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
WIDTH_MIN, WIDTH_MAX = 60, 110


class Timeline:
    """Writes to one stream. Long lines are folded on a terminal, and only there."""

    def __init__(self, stream: TextIO, zone: tzinfo) -> None:
        self.stream, self.zone = stream, zone
        self._terminal = stream.isatty()
        self._coloured = (
            self._terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )

    def say(self, who: str, text: str, *, at_ms: int | None = None, loud: bool = False) -> None:
        """One line. `at_ms` is when it happened, by default now."""
        at = (
            datetime.now(self.zone)
            if at_ms is None
            else datetime.fromtimestamp(at_ms / 1000, self.zone)
        )
        clock = f"{at:%H:%M:%S}.{at.microsecond // 100_000}"
        head = f"{clock}  {who:<6}  "
        first, *more = self._folded(text, len(head))
        if self._coloured:
            colour = COLOURS.get(who, "")
            body = f"{BOLD}{first}{PLAIN}" if loud else first
            self._write(f"{DIM}{clock}{PLAIN}  {colour}{who:<6}{PLAIN}  {body}")
        else:
            self._write(head + first)
        for rest in more:
            body = f"{BOLD}{rest}{PLAIN}" if self._coloured and loud else rest
            self._write(" " * len(head) + body)

    def head(self, text: str) -> None:
        """A line of its own between the others."""
        self._write("")
        for line in self._folded(text, 0):
            self._write(f"{BOLD}{line}{PLAIN}" if self._coloured else line)
        self._write("")

    def _folded(self, text: str, used: int) -> list[str]:
        if not self._terminal:
            return [text]
        columns = min(max(shutil.get_terminal_size().columns, WIDTH_MIN), WIDTH_MAX)
        return textwrap.wrap(text, columns - used) or [""]

    def _write(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()
