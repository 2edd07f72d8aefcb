"""Starts and stops the measured worker process, and reads the lines that its steps left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from refold_schemas.errors import RefoldError
from refold_tools.bench.orders import order
from refold_tools.bench.work import CRASH_VARIABLE, LOG_VARIABLE


class Line(NamedTuple):
    """What a step left: see `work`."""

    kind: str
    run: str
    place: int
    ns: int


class BenchFailed(RefoldError):
    """A measurement did not come to its end; no figure is made up for it."""

    code = "R510"


class Measured:
    """One worker process on a log. `spawned_ns`: started, `ready_ns`: takes work."""

    def __init__(
        self, url: str, lines: Path, *, name: str = "bench-1", crash_at: int | None = None
    ) -> None:
        self.url = url
        self.spawned_ns = time.monotonic_ns()
        environment = {**os.environ, LOG_VARIABLE: str(lines)}
        environment.pop(CRASH_VARIABLE, None)
        if crash_at is not None:
            environment[CRASH_VARIABLE] = str(crash_at)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "refold_tools.bench.worker", url, name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready_ns = int(self._told("READY")[0])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def owns(self, count: int) -> int:
        """Wait until it owns `count` partitions. Returns since when, on CLOCK_MONOTONIC, in ns."""
        while True:
            owned, since_ns = self._told("OWNS")
            if int(owned) == count:
                return int(since_ns)

    def order(self, op: str, run: str, count: int, given: object, tag: str) -> dict[str, Any]:
        """Order work and wait for what was ordered; see `orders`."""
        return order(self.url, op, run, count, given, tag)

    def _told(self, word: str) -> list[str]:
        """What stands behind `word` in the next line that begins with it."""
        assert self.process.stdout is not None
        while text := self.process.stdout.readline():
            first, *rest = text.split() or [""]
            if first == word:
                return rest
        raise BenchFailed(
            f"the measured worker ended with code {self.process.wait()} before it answered",
            next="what it said of it stands on standard error; run `refold bench` again",
        )

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Let it hand over; killed if it does not end within ten seconds."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def read_lines(path: Path) -> Iterator[Line]:
    """Every whole line so far."""
    if not path.exists():
        return
    for text in path.read_text().splitlines():
        parts = text.split()
        if len(parts) == 4:
            yield Line(parts[0], parts[1], int(parts[2]), int(parts[3]))


def wait_until(
    what: str, check: Callable[[], bool], *, within_s: float, every_s: float = 0.02
) -> None:
    """Poll until `check` holds. Raises BenchFailed when the time is over."""
    end = time.monotonic() + within_s
    while not check():
        if time.monotonic() > end:
            raise BenchFailed(f"{what}: not within {within_s:g} s")
        time.sleep(every_s)
