"""The short forms of `make chaos`: real workers, real brokers, faults in between, and the audit.

What each checks at its end is in `chaos/audit.py`: commands accepted are runs that ended, each
effect stands once in the world's own ledger, no evidence against what was settled, three readers
agree, histories have an order. A scenario raises ChaosFailed with what was not so.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos import scenarios, storms
from chaos.play import Figures
from chaos.stage import Cluster

pytestmark = pytest.mark.untraced
SEED = 7
GROWTH_MAX_MB = 100
"""Of a worker's memory in a flood: what it needs at work, and the state of runs that have ended."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("chaos"))
    yield cluster
    cluster.down()


def play(cluster: Cluster, scenario: Any, folder: Path, **how: Any) -> Figures:
    def tell(line: str) -> None:
        print(line)  # noqa: T201 - shown if it fails

    async def main() -> Figures:
        await cluster.open()
        try:
            figures: Figures = await scenario(cluster, folder, seed=SEED, tell=tell, **how)
            return figures
        finally:
            await cluster.shut()

    return asyncio.run(main())


def test_one_of_each_fault_a_flood_and_long_steps(cluster: Cluster, tmp_path: Path) -> None:
    """A cut network, SIGKILL, SIGSTOP before a call, a killed broker, SIGTERM, poison; F13."""
    figures = play(cluster, scenarios.everything, tmp_path / "everything")
    assert sum(figures["kills"].values()) >= 6
    assert figures["operations checked"] > 0
    assert figures["poisoned"] == ("blocked", "undecodable_event")
    assert figures["killed its workers"] == ("blocked", "crashes_worker")
    figures = play(cluster, storms.flood, tmp_path / "flood", runs=3_000, partitions=2)
    assert figures["most memory, MB"] - figures["memory at first, MB"] < GROWTH_MAX_MB
    how = {"workers": 3, "seconds": 5, "session_ms": 2_500}
    figures = play(cluster, storms.long_steps, tmp_path / "long", **how)
    assert figures["claims while they took"] == 0
    assert figures["warned of blocked loops"] > 0


def test_one_of_three_brokers_is_lost_and_then_two(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "brokers", brokers=3)
    try:
        figures = play(cluster, scenarios.three_brokers, tmp_path, runs=5, away_s=4, hurried=True)
    finally:
        cluster.down()
    assert figures["said while two were lost"], "a worker says that its appends have no answer"
