"""The end of the process: once a command has said its last word, nothing of the author's holds it.

A thread cannot be cancelled, and Python waits at its exit for all of them; asyncio waits for its
own pool and for coroutines that swallow their cancellation.
"""

import errno
import io
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn

from refold_tools.processes import interrupt_on_hangup

LEAVE_S = 1.0
"""How long the process may take to end by itself after the last word."""

INTERRUPTED = 130
"""The exit code of a process that SIGINT has ended, as shells have it."""

_alone = False
"""Whether this process is the command's own: only then may it be ended."""


def run_process() -> NoReturn:
    """Run the command line as this process and end it with its exit code."""
    global _alone
    _alone = True
    interrupt_on_hangup()
    try:
        from refold_tools.cli import main

        open_streams()
        code = main()
    except KeyboardInterrupt:  # while what `main` needs is imported
        code = INTERRUPTED
    _leave_soon(code)
    _drop_refused()
    sys.exit(code)


def open_streams() -> None:
    """See to it that whatever is said can be said: a stream that is closed takes it all.

    A character that the terminal's encoding lacks is escaped, and ends no command.
    """
    if sys.stdout is None:  # as a service manager may start it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as above
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, Stream(stream))


class Stream(io.TextIOWrapper):
    """What `whole` is; it remembers how it was last refused, so that no other file is blamed.

    A terminal that has gone takes it all, as what is closed does: nobody is there to be told, and
    what the process still has to do is worth more than its words.
    """

    def __init__(self, whole: io.TextIOWrapper) -> None:
        self.refused: OSError | None = None
        self._on_terminal = whole.isatty()
        self._whole = whole  # it would close what both write to
        super().__init__(
            whole.buffer,
            encoding=whole.encoding,
            errors="backslashreplace",
            line_buffering=whole.line_buffering,
            write_through=whole.write_through,
        )

    def write(self, text: str, /) -> int:
        """Write it. Raises OSError."""
        try:
            return super().write(text)
        except OSError as error:
            if self._has_gone(error):
                return len(text)
            self.refused = error
            raise

    def flush(self) -> None:
        """Write what is kept back. Raises OSError."""
        try:
            super().flush()
        except OSError as error:
            if self._has_gone(error):
                super().flush()
                return
            self.refused = error
            raise

    def _has_gone(self, error: OSError) -> bool:
        """Whether it was a terminal that is there no more; then all goes nowhere from now on."""
        if error.errno != errno.EIO or not self._on_terminal:
            return False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return True


def _drop_refused() -> None:
    """Drop what a stream has kept back and cannot write: Python's exit would end with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run_to_end(work: Coroutine[Any, Any, int], *, as_json: bool) -> int:
    """Run the coroutine of a command that hosts the author's code; it says its last word itself.

    What it raises is said at once: asyncio may never come to an end where a thread does not.
    """
    import asyncio  # here: it takes longest to load, and an interrupt until then has nobody

    async def whole() -> int:
        try:
            code = await work
        except Exception as error:
            if not _alone or isinstance(error, BrokenPipeError):
                raise
            from refold_tools.cli.failures import report, wants_traceback

            code = report(error, as_json=as_json, debug=wants_traceback(sys.argv))
        if _alone:
            _leave_soon(code)
        return code

    return asyncio.run(whole())


def _leave_soon(code: int) -> None:
    """End the process in LEAVE_S, unless it has ended until then."""

    def leave() -> None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # whoever read them may have gone
            os._exit(code)

    timer = threading.Timer(LEAVE_S, leave)
    timer.daemon = True
    timer.start()
