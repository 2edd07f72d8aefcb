"""The measurements: each makes a fresh log, drives worker processes, and returns its figures."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from refold_tools.bench.machine import memory_mb, percentile
from refold_tools.bench.process import Line, Measured, read_lines, wait_until
from refold_tools.bench.stores import Store

Figures = dict[str, float | int]
DURABLE, FLOWING = "steps", "flowing"


class Place:
    """One measurement's own: a log, a file of lines, and the workers started on them."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.url = store, store.url(name)
        self.lines = store.folder / f"{name}-{time.monotonic_ns()}.lines"
        self.workers: list[Measured] = []

    def worker(self, *, name: str = "bench-1", crash_at: int | None = None) -> Measured:
        """A worker process on this place's log, ready."""
        started = Measured(self.url, self.lines, name=name, crash_at=crash_at)
        self.workers.append(started)
        return started

    def of(self, kind: str) -> list[Line]:
        """The lines of one kind."""
        return [line for line in read_lines(self.lines) if line.kind == kind]


@contextlib.contextmanager
def place(store: Store, name: str) -> Iterator[Place]:
    """A fresh place whose workers are ended in any case."""
    made = Place(store, name)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.stop()


def latency(store: Store, run: str, *, runs: int = 30, steps: int = 40) -> Figures:
    """Milliseconds from one step's start to the next one's, over `runs` runs one after another."""
    with place(store, f"latency-{run}") as here:
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


def throughput(store: Store, run: str, *, runs: int = 500, steps: int = 10) -> Figures:
    """Steps a second of `runs` runs started at once, one worker process; bytes stored a step."""
    with place(store, f"throughput-{run}") as here:
        worker = here.worker()
        worker.order("many", run, 20, steps, "warm")
        time.sleep(1)
        before = store.stored(here.url)
        answer = worker.order("many", run, runs, steps, "thr")
        memory = memory_mb(worker.pid)
        executed = sum(1 for line in here.of("X") if line.run.startswith("thr-"))
        servers = [memory_mb(pid) for pid in store.server_pids()]
        time.sleep(1)
        worker.stop()  # on SQLite it folds the write-ahead log into the file
        after = store.stored(here.url)
    seconds = (answer["t1"] - answer["t0"]) / 1e9
    figures: Figures = {
        "steps_per_s": runs * steps / seconds,
        "executed": executed,
        "worker_mb": memory,
    }
    if before is not None and after is not None:
        figures["bytes_per_step"] = (after - before) / (runs * steps)
    if servers:
        figures["servers_mb"] = sum(servers)
    return figures


def processes(store: Store, *, runs: int = 500, steps: int = 10) -> Figures:
    """Steps a second, durable each, with one worker process and with two that share the log."""
    figures: Figures = {}
    for count, word in ((1, "one"), (2, "two")):
        with place(store, f"processes-{word}") as here:
            workers = [here.worker(name=f"bench-{number}") for number in range(count)]
            for number, worker in enumerate(workers):
                worker.owns((store.partitions + number) // count)
            workers[0].order("many", DURABLE, 20, steps, "warm")
            answer = workers[0].order("many", DURABLE, runs, steps, "thr")
            seconds = (answer["t1"] - answer["t0"]) / 1e9
            figures[f"{word}_steps_per_s"] = runs * steps / seconds
    figures["two_over_one"] = figures["two_steps_per_s"] / figures["one_steps_per_s"]
    return figures


def resume(store: Store, *, steps: int = 40, crash_at: int = 30) -> Figures:
    """SIGKILL inside the 31st step; seconds from the next worker's READY to the run's end."""
    with place(store, "resume") as here:
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


def takeover(store: Store, *, runs: int = 1_000, seconds: int = 15) -> Figures:
    """SIGKILL with `runs` sleepers, overdue when the next worker starts; until the last woke."""
    with place(store, "takeover") as here:
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


def timers(store: Store, *, runs: int = 2_000, seconds: int = 5) -> Figures:
    """`runs` sleeps of `seconds` at once: how late each woke, recording the timer included."""
    with place(store, "timers") as here:
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


def flatness(store: Store, *, steps: int = 50_000) -> Figures:
    """Cost of a step early and late in one long run: microseconds, median of windows of 1,000."""
    with place(store, "flatness") as here:
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


def idle(store: Store, *, runs: int = 100_000) -> Figures:
    """`runs` sleepers in one owner: the takeover of all of them, and then memory each in KB."""
    with place(store, "idle") as here:
        worker = here.worker()
        worker.order("many", "timer", 5, 0.1, "warm")
        empty = memory_mb(worker.pid)
        for part in range(20):
            worker.order("submit", "timer", runs // 20, 86_400, f"idle{part}")
        wait_until("all asleep", lambda: len(here.of("S")) >= runs, within_s=600, every_s=0.5)
        time.sleep(3)
        worker.stop()
        second = here.worker()
        taken_s = (second.owns(store.partitions) - second.spawned_ns) / 1e9
        time.sleep(2)
        full = memory_mb(second.pid)
    return {"kb_per_run": (full - empty) * 1024 / runs, "spawn_to_all_owned_s": taken_s}


def fold_speed(store: Store, *, runs: int = 500, steps: int = 40) -> Figures:
    """Events a second that a reader folds on one core, decoding included."""
    import asyncio

    from refold.log import open_log
    from refold.log.port import Topic
    from refold_projections.figures import PartitionFigures
    from refold_projections.fold import PartitionFold
    from refold_schemas.codec import Codec
    from refold_schemas.registry import FileRegistry

    with place(store, "fold") as here:
        worker = here.worker()
        worker.order("many", FLOWING, runs, steps, "fold")
        worker.stop()

        async def read_all() -> list[list[Any]]:
            log = open_log(here.url)
            await log.open(create=False)
            partitions: list[list[Any]] = []
            for partition in range(log.facts.partition_count):
                records: list[Any] = []
                offset, end = await log.bounds(Topic.EVENTS, partition)
                while offset < end:
                    read = await log.read(Topic.EVENTS, partition, offset)
                    records += read
                    offset = read[-1].offset + 1 if read else end
                partitions.append(records)
            await log.close()
            return partitions

        partitions = asyncio.run(read_all())
    events = sum(len(records) for records in partitions)
    speeds = []
    for _ in range(3):
        folds = [PartitionFold(Codec(FileRegistry())) for _ in partitions]
        began = time.process_time()
        for fold, records in zip(folds, partitions, strict=True):
            fold.apply_all(records)
        speeds.append(events / (time.process_time() - began))
    began = time.process_time()
    for records in partitions:
        figures = PartitionFigures(Codec(FileRegistry()))
        for record in records:
            figures.apply(record)
    counted = events / (time.process_time() - began)
    return {"events_per_s": percentile(speeds, 50), "counted_per_s": counted, "events": events}


def start_up(store: Store, *, times: int = 5) -> Figures:
    """Seconds from starting the command line to its end: `--help`, and `boundary` of a run."""
    import subprocess
    import sys

    with place(store, "cli") as here:
        worker = here.worker()
        worker.order("seq", FLOWING, 1, 40, "cli")
        worker.stop()
        figures: Figures = {}
        for name, words in (
            ("help_s", ["--help"]),
            ("boundary_s", ["boundary", "cli-0", "--log", here.url]),
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
