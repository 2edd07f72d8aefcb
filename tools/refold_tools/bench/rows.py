"""The measurements: each makes a fresh log, drives a worker process, and returns its figures."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from refold_tools.bench.machine import memory_mb, percentile
from refold_tools.bench.process import (
    Line,
    Measured,
    read_lines,
    stored_bytes,
    wait_until,
)

Figures = dict[str, float | int]
DURABLE, FLOWING = "steps", "flowing"


class Place:
    """A folder for one measurement: a log, a file of lines, and the workers started on them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.lines = folder / "log.db", folder / "lines"
        self.workers: list[Measured] = []

    def worker(self, *, crash_at: int | None = None) -> Measured:
        """A worker process on this place's log, ready."""
        started = Measured(f"sqlite:///{self.file}", self.lines, crash_at=crash_at)
        self.workers.append(started)
        return started

    def of(self, kind: str) -> list[Line]:
        """The lines of one kind."""
        return [line for line in read_lines(self.lines) if line.kind == kind]


@contextlib.contextmanager
def place(folder: Path, name: str) -> Iterator[Place]:
    """A fresh place whose workers are ended in any case."""
    made = Place(folder / f"{name}-{time.monotonic_ns()}")
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.stop()


def latency(folder: Path, run: str, *, runs: int = 30, steps: int = 40) -> Figures:
    """Milliseconds from one step's start to the next one's, over `runs` runs one after another."""
    with place(folder, f"latency-{run}") as here:
        worker = here.worker()
        worker.order("seq", run, 3, steps, "warm")
        whole = worker.order("seq", run, runs, steps, "lat")["lat"]
        starts: dict[str, list[int]] = {}
        for line in here.of("X"):
            if line.run.startswith("lat-"):
                starts.setdefault(line.run, []).append(line.ns)
    gaps = [
        (after - before) / 1e6 for moments in starts.values() for before, after in pairwise(moments)
    ]
    return {
        "step_p50_ms": percentile(gaps, 50),
        "step_p99_ms": percentile(gaps, 99),
        "run_p50_ms": percentile(whole, 50) / 1e6,
    }


def throughput(folder: Path, run: str, *, runs: int = 500, steps: int = 10) -> Figures:
    """Steps a second of `runs` runs started at once, one worker process; bytes stored a step."""
    with place(folder, f"throughput-{run}") as here:
        worker = here.worker()
        worker.order("many", run, 20, steps, "warm")
        time.sleep(1)
        before = stored_bytes(here.file)
        answer = worker.order("many", run, runs, steps, "thr")
        memory = memory_mb(worker.pid)
        executed = sum(1 for line in here.of("X") if line.run.startswith("thr-"))
        time.sleep(1)
        worker.stop()  # it hands over and folds the write-ahead log into the file
        after = stored_bytes(here.file)
    seconds = (answer["t1"] - answer["t0"]) / 1e9
    return {
        "steps_per_s": runs * steps / seconds,
        "executed": executed,
        "bytes_per_step": (after - before) / (runs * steps),
        "worker_mb": memory,
    }


def resume(folder: Path, *, steps: int = 40, crash_at: int = 30) -> Figures:
    """SIGKILL inside the 31st step; seconds from the next worker's READY to the run's end."""
    with place(folder, "resume") as here:
        first = here.worker(crash_at=crash_at)
        first.order("submit", DURABLE, 1, steps, "res")
        wait_until("the crash", lambda: bool(here.of("K")), within_s=60)
        first.process.wait()
        time.sleep(1)
        second = here.worker()
        wait_until("the run's end", lambda: bool(here.of("D")), within_s=60, every_s=0.002)
        done = here.of("D")[0].ns
        counts = Counter(line.place for line in here.of("X"))
    return {
        "ready_to_done_s": max(0.0, (done - second.ready_ns) / 1e9),
        "spawn_to_done_s": (done - second.spawned_ns) / 1e9,
        "finished_repeated": sum(1 for i, n in counts.items() if i < crash_at and n > 1),
        "in_flight_repeated": sum(1 for i, n in counts.items() if i >= crash_at and n > 1),
    }


def takeover(folder: Path, *, runs: int = 1_000, seconds: int = 15) -> Figures:
    """SIGKILL with `runs` sleepers, overdue when the next worker starts; until the last woke."""
    with place(folder, "takeover") as here:
        first = here.worker()
        first.order("submit", "sleeper", runs, seconds, "tko")
        wait_until("all asleep", lambda: len(here.of("S")) >= runs, within_s=120, every_s=0.1)
        time.sleep(0.5)
        first.kill()
        asleep = max(line.ns for line in here.of("S"))
        time.sleep(max(0.0, (asleep + (seconds + 2) * 1e9 - time.monotonic_ns()) / 1e9))
        second = here.worker()

        def all_woke() -> bool:
            return len({x.run for x in here.of("X") if x.place == 1}) >= runs

        wait_until("all taken over", all_woke, within_s=120, every_s=0.02)
        woke = [
            (line.ns - second.ready_ns) / 1e9
            for line in here.of("X")
            if line.place == 1 and line.ns > second.spawned_ns
        ]
        repeated = Counter(line.run for line in here.of("X") if line.place == 0)
    return {
        "ready_to_last_s": max(woke),
        "ready_to_median_s": percentile(woke, 50),
        "first_steps_repeated": sum(1 for n in repeated.values() if n > 1),
    }


def timers(folder: Path, *, runs: int = 2_000, seconds: int = 5) -> Figures:
    """`runs` sleeps of `seconds` at once: how late each woke, recording the timer included."""
    with place(folder, "timers") as here:
        worker = here.worker()
        worker.order("many", "timer", 5, 0.2, "warm")
        worker.order("many", "timer", runs, seconds, "tim")
        asleep: dict[str, int] = {}
        for line in here.of("S"):  # once more at each replay: the first is when it fell asleep
            asleep.setdefault(line.run, line.ns)
        late = [
            (line.ns - asleep[line.run]) / 1e6 - seconds * 1e3
            for line in here.of("W")
            if line.run.startswith("tim-")
        ]
    return {"late_p50_ms": percentile(late, 50), "late_p99_ms": percentile(late, 99)}


def flatness(folder: Path, *, steps: int = 50_000) -> Figures:
    """Cost of a step early and late in one long run: microseconds, median of windows of 1,000."""
    with place(folder, "flatness") as here:
        worker = here.worker()
        worker.order("seq", FLOWING, 3, 100, "warm")
        worker.order("seq", FLOWING, 1, steps, "long")
        starts = [line.ns for line in here.of("X") if line.run == "long-0"]
    gaps = [(b - a) / 1e3 for a, b in pairwise(starts)]
    early = percentile(gaps[10:2_010], 50)
    late = percentile(gaps[-2_000:], 50)
    return {
        "step_early_us": early,
        "step_late_us": late,
        "late_over_early": late / early,
        "steps_per_s": len(starts) / ((starts[-1] - starts[0]) / 1e9),
    }


def idle(folder: Path, *, runs: int = 100_000) -> Figures:
    """`runs` sleepers in one owner: the takeover of all of them, and then memory each in KB."""
    with place(folder, "idle") as here:
        worker = here.worker()
        worker.order("many", "timer", 5, 0.1, "warm")
        empty = memory_mb(worker.pid)
        for part in range(20):
            worker.order("submit", "timer", runs // 20, 86_400, f"idle{part}")
        wait_until("all asleep", lambda: len(here.of("S")) >= runs, within_s=600, every_s=0.5)
        time.sleep(3)
        worker.stop()
        second = here.worker()
        taken_s = (second.ready_ns - second.spawned_ns) / 1e9
        time.sleep(2)
        full = memory_mb(second.pid)
    return {"kb_per_run": (full - empty) * 1024 / runs, "spawn_to_ready_s": taken_s}


def fold_speed(folder: Path, *, runs: int = 500, steps: int = 40) -> Figures:
    """Events a second that a reader folds on one core, decoding included."""
    import asyncio

    from refold.log import open_log
    from refold.log.port import Topic
    from refold_projections.fold import PartitionFold
    from refold_schemas.codec import Codec
    from refold_schemas.registry import FileRegistry

    with place(folder, "fold") as here:
        worker = here.worker()
        worker.order("many", FLOWING, runs, steps, "fold")
        worker.stop()

        async def read_all() -> list[Any]:
            log = open_log(f"sqlite:///{here.file}")
            await log.open(create=False)
            records: list[Any] = []
            _, end = await log.bounds(Topic.EVENTS, 0)
            while not records or records[-1].offset + 1 < end:
                offset = records[-1].offset + 1 if records else 0
                records += await log.read(Topic.EVENTS, 0, offset)
            await log.close()
            return records

        records = asyncio.run(read_all())
    speeds = []
    for _ in range(3):
        fold = PartitionFold(Codec(FileRegistry()))
        began = time.process_time()
        fold.apply_all(records)
        speeds.append(len(records) / (time.process_time() - began))
    return {"events_per_s": percentile(speeds, 50), "events": len(records)}


def start_up(folder: Path, *, times: int = 5) -> Figures:
    """Seconds from starting the command line to its end: `--help`, and `boundary` of a run."""
    import subprocess
    import sys

    with place(folder, "cli") as here:
        worker = here.worker()
        worker.order("seq", FLOWING, 1, 40, "cli")
        worker.stop()
        figures: Figures = {}
        url = f"sqlite:///{here.file}"
        for name, words in (
            ("help_s", ["--help"]),
            ("boundary_s", ["boundary", "cli-0", "--log", url]),
        ):
            waits = []
            for _ in range(times):
                began = time.monotonic()
                subprocess.run(
                    [sys.executable, "-m", "refold_tools.cli", *words],
                    check=True,
                    capture_output=True,
                )
                waits.append(time.monotonic() - began)
            figures[name] = percentile(waits, 50)
    return figures
