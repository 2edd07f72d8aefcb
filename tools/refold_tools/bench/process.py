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

    def __init__(self, url: str, lines: Path, *, crash_at: int | None = None) -> None:
        self.url = url
        self.spawned_ns = time.monotonic_ns()
        environment = {**os.environ, LOG_VARIABLE: str(lines)}
        environment.pop(CRASH_VARIABLE, None)
        if crash_at is not None:
            environment[CRASH_VARIABLE] = str(crash_at)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "refold_tools.bench.worker", url],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready_ns = 0
        while not self.ready_ns:
            text = self._read()
            if text.startswith("READY "):
                self.ready_ns = int(text.split()[1])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def order(self, op: str, run: str, count: int, given: object, tag: str) -> dict[str, Any]:
        """Order work and wait for what was ordered; see `orders`."""
        return order(self.url, op, run, count, given, tag)

    def _read(self) -> str:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise BenchFailed(
                f"the measured worker ended with code {self.process.wait()} before it answered",
                next="run `refold bench` again with --keep and look at its log",
            )
        return text

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


def stored_bytes(path: Path) -> int:
    """Bytes in the SQLite file and its write-ahead log."""
    wal = path.with_name(path.name + "-wal")
    return sum(p.stat().st_size for p in (path, wal) if p.exists())
