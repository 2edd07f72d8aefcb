"""Plays a namespace while `refold live` counts it in processes that are killed and joined by more.

What it shows at the end is compared with a fresh fold of the log: every counter, bucket and gauge.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from refold.log import Entry, Log, Topic, open_log
from refold_projections.figures import Figures, PartitionFigures
from support.live_history import history
from support.written_log import CODEC

WITHIN_S = 90.0
FROZEN_S = 10.0
"""Longer than a session of `refold live`, and than a rebalance."""
HOUR_MS = 3_600_000
LIVE = [sys.executable, "-m", "refold_tools.cli", "live", "--web-port", "0", "--json"]


class LiveProcess:
    """One `refold live` and the address where it answers."""

    def __init__(self, url: str, folder: Path, environment: dict[str, str], *more: str) -> None:
        self.errors = folder / f"live-{time.monotonic_ns()}.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*LIVE, "--metrics-port", "0", "--log", url, *more],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )
        said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said += line
            found = re.search(r"metrics at (http\S+)/metrics; figures at (http\S+)/figures", line)
            if found:
                self.metrics, self.address = found.groups()
                return
        raise AssertionError(f"it ended: {said}{self.errors.read_text()}")

    def ask(self, path: str) -> Any:
        """The JSON of one answer."""
        return json.loads(self._get(f"{self.address}{path}"))

    def scrape(self) -> str:
        """What Prometheus would read."""
        return self._get(f"{self.metrics}/metrics")

    def _get(self, address: str) -> str:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError as error:
            if self.process.poll() is None:
                raise
            assert self.process.stdout is not None
            said = self.process.stdout.read() + self.errors.read_text()
            raise AssertionError(f"it ended by itself: {said}") from error

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.end()

    def freeze(self) -> None:
        """SIGSTOP: its sessions run out, and it does not know."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: what it was about to write it writes now."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> dict[str, Any]:
        """SIGTERM; its last word."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        *_, last = self.process.stdout.read().splitlines()
        self.end()
        assert self.process.returncode == 0, last
        found: dict[str, Any] = json.loads(last)
        return found

    def end(self) -> None:
        """Wait for it, and give back what it held."""
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


class LivePlay:
    """One namespace; records come in small batches while processes come and go."""

    def __init__(
        self, server: str, folder: Path, *, seed: int, partitions: int, environment: dict[str, str]
    ) -> None:
        self.url = f"kafka://{server}/live{seed}"
        self.folder, self.partitions = folder, partitions
        self.random = Random(seed)
        self.seed, self.environment = seed, environment
        self.processes: list[LiveProcess] = []
        self.log: Log = open_log(f"{self.url}?partitions={partitions}")
        self.batches: list[tuple[int, list[Entry]]] = []

    async def open(self, length: int) -> None:
        """Make the namespace, and what will happen in it."""
        await self.log.open(create=True)
        now_ms = time.time_ns() // 1_000_000
        for partition in range(self.partitions):
            records = history(self.seed * 100 + partition, length, at_ms=now_ms - 8 * HOUR_MS)
            entries = [Entry(r.key, r.value, r.header) for r in records]
            while entries:
                count = self.random.randint(1, 12)
                self.batches.append((partition, entries[:count]))
                entries = entries[count:]
        # Partitions in turns, each in its own order.
        queues: dict[int, list[list[Entry]]] = {p: [] for p in range(self.partitions)}
        for partition, entries in self.batches:
            queues[partition].append(entries)
        self.batches = []
        while any(queues.values()):
            partition = self.random.choice([p for p, q in queues.items() if q])
            self.batches.append((partition, queues[partition].pop(0)))

    async def some(self, fraction: float, pause_s: float = 0.005) -> None:
        """Append a part of what is left."""
        for _ in range(max(1, round(len(self.batches) * fraction))):
            if self.batches:
                partition, entries = self.batches.pop(0)
                await self.log.append(Topic.EVENTS, partition, entries)
                await asyncio.sleep(pause_s)

    async def join(self, *more: str) -> LiveProcess:
        """One process more."""
        made = await asyncio.to_thread(LiveProcess, self.url, self.folder, self.environment, *more)
        self.processes.append(made)
        return made

    async def kill(self, at: int = 0) -> None:
        """SIGKILL one of them."""
        await asyncio.to_thread(self.processes.pop(at).kill)

    async def fresh(self) -> tuple[dict[int, PartitionFigures], Figures]:
        """A fold of the whole log, now."""
        found = {}
        for partition in range(self.partitions):
            figures = found[partition] = PartitionFigures(CODEC, traces=True)
            start, end = await self.log.bounds(Topic.EVENTS, partition)
            figures.begin_at(start)
            while figures.position.offset_next < end:
                offset = figures.position.offset_next
                for record in await self.log.read(Topic.EVENTS, partition, offset):
                    figures.apply(record)
            figures.changes()
        return found, Figures(lambda: found, lambda: time.time_ns() // 1_000_000)

    async def caught_up(self, process: LiveProcess) -> None:
        """Until it shows all that is in the log."""
        ends = [(await self.log.bounds(Topic.EVENTS, p))[1] for p in range(self.partitions)]
        await until(
            lambda: [p["offset_next"] for p in process.ask("/health")["partitions"]] == ends,
            f"figures up to {ends}",
        )

    async def close(self) -> None:
        """End everything that is left."""
        for process in self.processes:
            process.kill()
        await self.log.close()


def shown(figures: Figures) -> dict[str, Any]:
    """Everything that people may read, without what only tells the time of the answer."""
    return {
        "totals": figures.totals()["cells"],
        "hours": figures.windows("hour")["windows"],
        "minutes": figures.windows("minute")["windows"],
        "waiting": timeless(figures.waiting()),
    }


def asked(process: LiveProcess) -> dict[str, Any]:
    """The same of a process."""
    return {
        "totals": process.ask("/totals")["cells"],
        "hours": process.ask("/figures?window=hour")["windows"],
        "minutes": process.ask("/figures?window=minute")["windows"],
        "waiting": timeless(process.ask("/waiting")),
    }


def difference(found: Any, expected: Any) -> str:
    """Some of what one has and the other has not."""
    if isinstance(found, dict):
        return "; ".join(
            f"{name}: {difference(found[name], expected[name])}"
            for name in expected
            if found[name] != expected[name]
        )
    more = [one for one in found if one not in expected][:5]
    less = [one for one in expected if one not in found][:5]
    return f"shown and not in the log: {more}, in the log and not shown: {less}"


def timeless(waiting: dict[str, Any]) -> dict[str, Any]:
    """Without ages."""
    found = [{k: v for k, v in one.items() if k != "age_ms"} for one in waiting["waiting"]]
    return {"waiting": found, "open_runs": waiting["open_runs"]}


async def until(check: Callable[[], bool], what: str) -> None:
    """Ask again and again, for WITHIN_S."""
    end = time.monotonic() + WITHIN_S
    while not await asyncio.to_thread(check):
        assert time.monotonic() < end, f"not within {WITHIN_S:g} s: {what}"
        await asyncio.sleep(0.1)


async def killed_and_scaled(
    play: LivePlay,
    *,
    kills: int,
    length: int,
    freeze: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Kills while records come, then two processes, a kill among them, and the comparison.

    With `freeze` one of the two stands still for longer than its session. Returns figures of the
    play. Raises AssertionError where what is shown differs.
    """
    await play.open(length)
    await play.join()
    part = 0.5 / (kills + 1)
    for number in range(kills):
        tell(f"kill {number + 1} of {kills}, {len(play.batches)} batches left")
        await play.some(part)
        if number % 2:  # two at once: partitions move, and one of the two is killed
            await play.join()
            await play.some(part)
        await asyncio.sleep(play.random.uniform(0, 1.2))
        await play.kill(0)
        if not play.processes:
            await play.join()
    while len(play.processes) < 2:
        await play.join()
    await play.some(0.5)
    first, second = play.processes[:2]
    await until(
        lambda: all(_held(one.scrape()) > 0 for one in (first, second)),
        "each of two processes has partitions",
    )
    if freeze:
        tell("one of two is frozen")
        await play.some(0.2)
        first.freeze()
        await play.some(0.4)
        await asyncio.sleep(FROZEN_S)
        first.thaw()
        await play.some(0.2)
        await asyncio.sleep(5)
    await play.some(1.0)
    tell("comparing")
    for process in (first, second):
        await play.caught_up(process)
    folded, fresh = await play.fresh()
    expected = shown(fresh)
    for process in (first, second):
        found = await asyncio.to_thread(asked, process)
        for name, value in expected.items():
            assert found[name] == value, f"{name} differ: {difference(found[name], value)}"
    spans = {(span.id.trace, span.id.span) for one in folded.values() for span in one.spans}
    return {
        "kills": kills,
        "records": sum(one.position.offset_next for one in folded.values()),
        "windows": sum(len(one.cells) for one in folded.values()),
        "spans": spans,
    }


def _held(metrics: str) -> float:
    found = re.search(r"^refold_live_partitions (\S+)$", metrics, re.MULTILINE)
    return 0.0 if found is None else float(found[1])
