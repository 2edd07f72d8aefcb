"""The short forms of `make chaos`: real workers, real brokers, faults in between, and the audit.

What each checks at its end is in `chaos/audit.py`: commands accepted are runs that ended, each
effect stands once in the world's own ledger, no evidence against what was settled, three readers
agree, histories have an order. A scenario raises ChaosFailed with what was not so.
"""

import asyncio
from pathlib import Path
from typing import Any

from chaos import scenarios, storms
from chaos.play import Figures
from chaos.stage import Cluster

SEED = 7


def play(scenario: Any, folder: Path, *, brokers: int = 1, **how: Any) -> Figures:
    def tell(line: str) -> None:
        print(line)  # noqa: T201 - shown if it fails

    async def main() -> Figures:
        await cluster.open()
        try:
            figures: Figures = await scenario(cluster, folder, seed=SEED, tell=tell, **how)
            return figures
        finally:
            await cluster.shut()

    cluster = Cluster(folder / "brokers", brokers)
    try:
        return asyncio.run(main())
    finally:
        cluster.stack.down()


def test_one_of_each_fault_under_load(tmp_path: Path) -> None:
    """SIGKILL, SIGSTOP before a call, a cut network, a killed broker, a rolling restart."""
    figures = play(scenarios.everything, tmp_path)
    assert sum(figures["kills"].values()) >= 6
    assert figures["operations checked"] > 0


def test_one_of_three_brokers_is_lost_and_then_two(tmp_path: Path) -> None:
    figures = play(scenarios.three_brokers, tmp_path, brokers=3, runs=5, away_s=11)
    assert figures["said while two were lost"], "a worker says that its appends have no answer"
    assert figures["doctor while two were lost"]["exit"] != 0


def test_poison_parks_its_run_and_a_flood_stays_within_its_memory(tmp_path: Path) -> None:
    figures = play(storms.poison_and_flood, tmp_path, runs=5, flood_runs=3_000)
    assert set(figures["still parked"].values()) == {
        ("blocked", "undecodable_event"),
        ("blocked", "crashes_worker"),
    }
    assert figures["flood"]["bytes a run"] < 20_000


def test_steps_longer_than_the_session_move_no_partition_f13(tmp_path: Path) -> None:
    figures = play(storms.long_steps, tmp_path, seconds=8, session_ms=3_000)
    assert figures["claims while they took"] == 0
    assert figures["warned of blocked loops"] > 0


def test_workers_that_join_at_once_settle_and_nothing_is_repeated(tmp_path: Path) -> None:
    figures = play(storms.crowd, tmp_path, workers=6, partitions=8)
    assert figures["attempts"].keys() == {"1"}
