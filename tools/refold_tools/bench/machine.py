"""What a figure was measured on: the machine, how busy it was, and how fast it is right now."""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from refold_tools.compiled import is_compiled


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50)
    2.5
    """
    ranked = sorted(values)
    place = (len(ranked) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def describe_machine() -> dict[str, object]:
    """Processors, memory, system, Python, and whether refold is compiled: to judge a figure by."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processors": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "compiled": is_compiled(),
        "load": round(os.getloadavg()[0], 2),
    }


def canary(folder: Path) -> dict[str, float]:
    """A fixed loop and 50 writes of 4 KiB with fdatasync: compare figures through these."""
    began = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number & 7
    loop_ms = (time.perf_counter() - began) * 1e3
    path = folder / "canary"
    waits = []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            waits.append((time.perf_counter() - began) * 1e6)
    path.unlink()
    return {"loop_ms": round(loop_ms, 1), "fdatasync_us": round(percentile(waits, 50))}


def memory_mb(pid: int) -> float:
    """Resident memory of one process in MB; 0 if it has ended."""
    try:
        for text in Path(f"/proc/{pid}/status").read_text().splitlines():
            if text.startswith("VmRSS:"):
                return round(int(text.split()[1]) / 1024, 1)
    except OSError:
        return 0.0
    return 0.0
