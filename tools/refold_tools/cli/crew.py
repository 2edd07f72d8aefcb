"""Several worker processes under one parent: started, started again when they die, ended."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from refold_tools.processes import ends_with_parent, hears_hangups

LOOK_S = 0.1
STOP_WITHIN_S = 30.0
"""How long the workers have to drain and release before they are killed; theirs add up to less."""
AGAIN_MIN_S, AGAIN_MAX_S = 1.0, 30.0
"""The wait before a dead process is started again: doubled each time it has not lived long."""
LIVED_S = 60.0
"""Who has lived so long is started again as after its first death."""
REFUSED = frozenset({2, 3})
"""Exit codes of a worker that has said why it must not serve: all others would say the same."""
UNREACHABLE = 4
"""It reaches no log or registry. Those that serve wait for these; a new one cannot begin."""


class Place:
    """One of the processes, and those that are started in its place."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.again_s = 0.0
        """When it is to be started (again)."""
        self.wait_s = AGAIN_MIN_S


class Crew:
    """Runs `count` processes of `command`. `tell(text)` says what happens to them."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        tell: Callable[[str], None],
        *,
        more: Callable[[int], Sequence[str]] = lambda number: (),
    ) -> None:
        """`more(number)` is what only one of them, counted from 1, is told."""
        self.command, self.count, self.tell = list(command), count, tell
        self._more = more
        self.places = [Place(number) for number in range(1, count + 1)]
        self.codes: list[int] = []
        """What ended a process for good: worth an exit code of our own."""
        self._signals = 0
        self._passed_on = 0

    def run(self) -> int:
        """Until a signal to stop; returns the worst exit code of the processes at their end."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        numbers += [signal.SIGHUP] if hears_hangups() else []
        before = {number: signal.signal(number, self._signalled) for number in numbers}
        try:
            while not self._signals and not self.codes:
                for place in self.places:
                    self._look(place)
                time.sleep(LOOK_S)
            self._end()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._kill()  # whatever went wrong here: nobody is left behind
        return max(self.codes, default=0)

    def _signalled(self, number: int, frame: object) -> None:
        if number != signal.SIGHUP or not self._signals:  # a terminal's end hurries nobody
            self._signals += 1

    def _look(self, place: Place) -> None:
        now = time.monotonic()
        if place.process is None:
            if now >= place.again_s:
                self._start(place, now)
            return
        code = place.process.poll()
        if code is None:
            return
        place.process = None
        said = f"process {place.number} of {self.count} has ended: {_ended(code)}"
        others_live = any(one.process and one.process.poll() is None for one in self.places)
        if code in REFUSED or (code == UNREACHABLE and not others_live):
            self.codes.append(code)
            self.tell(f"{said}; it has said why it must not serve, so all of them end")
            return
        if now - place.started_s >= LIVED_S:
            place.wait_s = AGAIN_MIN_S
        self.tell(f"{said}; it is started again in {place.wait_s:g} s")
        place.again_s = now + place.wait_s
        place.wait_s = min(place.wait_s * 2, AGAIN_MAX_S)

    def _start(self, place: Place, now: float) -> None:
        place.started_s = now
        # A session of its own: Ctrl-C comes to us, and by us to each of them once.
        place.process = subprocess.Popen(
            [*self.command, *self._more(place.number)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=ends_with_parent(signal.SIGTERM),
        )
        self.tell(f"process {place.number} of {self.count} is started: pid {place.process.pid}")

    def _end(self) -> None:
        living = [place.process for place in self.places if place.process is not None]
        self._signals = max(self._signals, 1)
        deadline = time.monotonic() + STOP_WITHIN_S
        while any(one.poll() is None for one in living) and time.monotonic() < deadline:
            if self._passed_on < min(self._signals, 2):  # the second one ends a worker at once
                self._passed_on += 1
                for one in living:
                    one.send_signal(signal.SIGTERM)
            time.sleep(LOOK_S)
        for one in living:
            if one.poll() is None:
                self.tell(f"pid {one.pid} has not stopped within {STOP_WITHIN_S:g} s: it is killed")
        self._kill()
        self.codes += map(self._worth, (one.wait() for one in living))

    def _worth(self, code: int) -> int:
        """The exit code that the end of a process is worth to us."""
        if code == -signal.SIGTERM and self._passed_on == 1:
            return 0  # told to stop while it was still starting: it owned nothing
        return code if code >= 0 else 128 - code

    def _kill(self) -> None:
        for place in self.places:
            if place.process is not None and place.process.poll() is None:
                place.process.kill()
                place.process.wait()


def _ended(code: int) -> str:
    """How a process ended, in words.

    >>> _ended(70), _ended(-9)
    ('exit 70', 'SIGKILL')
    """
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def worker_command(
    target: str, url: str, *, as_json: bool, debug: bool, log_format: str | None = None
) -> list[str]:
    """The command of one of the processes."""
    command = [sys.executable, "-m", "refold_tools.cli", "worker", target, "--log", url]
    command += [] if log_format is None else ["--log-format", log_format]
    return [*command, *(["--json"] if as_json else []), *(["--debug"] if debug else [])]
