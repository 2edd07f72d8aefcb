"""Which process this is, and whether another one of this machine is still alive."""

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple


class ProcessMark(NamedTuple):
    """What tells a process from every other, past and present, that may have had its number.

    `boot_id` and `pid_namespace` are empty where the system has none; then a process is judged by
    its heartbeat alone.
    """

    boot_id: str
    pid_namespace: str
    pid: int
    started: str


def boot_ms() -> int:
    """Milliseconds since the machine started, suspended time included; one clock for all."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def _started(pid: int) -> str | None:
    """When `pid` started, in ticks since the boot; None if it has ended (a zombie has, too)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def this_process() -> ProcessMark:
    """The mark of the process that calls."""
    return _mark(os.getpid())


@cache
def _mark(pid: int) -> ProcessMark:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pid_namespace = os.readlink("/proc/self/ns/pid")
        return ProcessMark(boot_id, pid_namespace, pid, _started(pid) or "")
    except OSError:
        return ProcessMark("", "", pid, "")


def is_surely_dead(mark: ProcessMark) -> bool:
    """True if the process has certainly ended; False if it lives or nothing can be said.

    A process of another container on this machine cannot be seen, so nothing is said about it.
    """
    here = this_process()
    if not mark.boot_id or not here.boot_id:
        return False
    if mark.boot_id != here.boot_id:
        return True
    if mark.pid_namespace != here.pid_namespace:
        return False
    return _started(mark.pid) != mark.started
