"""`python -m chaos`: the scenarios in their long form, and their figures as text and JSON."""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from chaos import counting, scenarios, storms
from chaos.play import ChaosFailed, Figures
from chaos.stage import Cluster

Scenario = Callable[..., Awaitable[Figures]]
LONG: dict[str, tuple[int, Scenario]] = {
    "kills": (1, partial(scenarios.kills, count=24)),
    "frozen": (1, partial(scenarios.frozen, rounds=2)),
    "broker-killed": (1, partial(scenarios.broker_killed, away_s=(0, 0, 60))),
    "three-brokers": (3, partial(scenarios.three_brokers, runs=30, away_s=30, hurried=False)),
    "network-cut": (1, partial(scenarios.network_cut, away_s=20)),
    "rolling-restart": (1, partial(scenarios.rolling, workers=4, rounds=2)),
    "poison": (1, partial(storms.poison, runs=20)),
    "crowd": (1, partial(storms.crowd, workers=20, partitions=32)),
    "flood": (1, partial(storms.flood, runs=50_000, partitions=4)),
    "live-figures": (1, partial(counting.live, kills=8, length=2_000)),
    "long-steps": (1, partial(storms.long_steps, workers=3, seconds=20, session_ms=3_000)),
}
"""Each scenario, and how many brokers it wants."""


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *LONG], help="default: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--folder", type=Path, help="where brokers and workers keep their files")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    begun = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", file=sys.stderr, flush=True)

    tell(f"seed {options.seed}, files in {folder}")
    figures: dict[str, Any] = {}
    for name in options.scenario or list(LONG):
        brokers, scenario = LONG[name]
        cluster = await asyncio.to_thread(Cluster, folder / f"{name}-brokers", brokers)
        await cluster.open()
        try:
            figures[name] = await scenario(cluster, folder / name, seed=options.seed, tell=tell)
        except (ChaosFailed, TimeoutError, AssertionError) as error:
            figures[name] = {"failed": str(error) or type(error).__name__}
        finally:
            await cluster.shut()
            await asyncio.to_thread(cluster.down)
        tell(f"{name}: {json.dumps(figures[name])}")
    report = {"seed": options.seed, "machine": platform.machine(), "scenarios": figures}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(table(figures))
    return int(any("failed" in one for one in figures.values()))


COLUMNS = {
    "runs ended": "runs",
    "effects": "effects",
    "kills": "faults",
    "claims": "claims",
    "repeats under a key": "repeats",
    "in doubt": "in doubt",
    "longest pause of a run, s": "longest pause, s",
    "stalled, s": "stalled, s",
    "seconds": "took, s",
}


def table(figures: dict[str, Figures]) -> str:
    """The figures that all scenarios have, as a table of Markdown."""
    rows = [["scenario", *COLUMNS.values()]]
    for name, one in figures.items():
        if "failed" in one:
            rows.append([name, "FAILED: " + one["failed"].splitlines()[0]])
            continue
        cells = [one.get(column, "") for column in COLUMNS]
        rows.append([name, *(str(sum(c.values()) if isinstance(c, dict) else c) for c in cells)])
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)) + " |"
        for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
