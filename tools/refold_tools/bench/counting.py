"""How fast one `refold live` counts a log that is there already, as after `--rebuild`."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

from refold_tools.bench.rows import FLOWING, Figures, place
from refold_tools.bench.stores import Store

WITHIN_S = 300.0


def live(store: Store, *, runs: int = 1_000, steps: int = 40) -> Figures:
    """Events a second that one process counts and stores, from the first one that it shows on."""
    with place(store, "live") as here:
        worker = here.worker()
        worker.order("many", FLOWING, runs, steps, "live")
        worker.stop()
        command = [sys.executable, "-m", "refold_tools.cli", "live", "--log", here.url]
        process = subprocess.Popen(
            [*command, "--web-port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            return _count(process, runs * steps)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def _count(process: "subprocess.Popen[str]", steps: int) -> Figures:
    assert process.stdout is not None
    address = ""
    for line in process.stdout:
        found = re.search(r"figures at (http\S+)/figures", line)
        if found:
            address = found[1]
            break
    first: tuple[float, int] | None = None
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        done = _ask(f"{address}/totals")
        counted = sum(cell["counts"].get("steps_done", 0) for cell in done["cells"])
        events = sum(one["offset_next"] for one in done["partitions"])
        now = time.monotonic()
        if events and first is None:
            first = (now, events)
        if counted >= steps and first is not None:
            seconds = max(now - first[0], 0.001)
            return {"events_per_s": (events - first[1]) / seconds, "events": events}
        time.sleep(0.02)
    raise TimeoutError(f"not counted within {WITHIN_S:g} s")


def _ask(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)
