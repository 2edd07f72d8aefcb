"""The short forms of `make chaos`: real workers, a real broker, faults in between, and the audit.

What each checks at its end is in `chaos/audit.py`: commands accepted are runs that ended, each
effect stands once in the world's own ledger, no evidence against what was settled, three readers
agree, histories have an order. A scenario raises ChaosFailed with what was not so.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos import scenarios
from chaos.play import Figures
from chaos.stage import Cluster

SEED = 7
quiet: Any = lambda _: None  # noqa: E731


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("chaos"))
    yield cluster
    cluster.stack.down()


def play(cluster: Cluster, scenario: Any, folder: Path, **how: Any) -> Figures:
    async def main() -> Figures:
        await cluster.open()
        try:
            figures: Figures = await scenario(cluster, folder, seed=SEED, tell=quiet, **how)
            return figures
        finally:
            await cluster.shut()

    return asyncio.run(main())


def test_workers_that_are_killed_at_named_moments(cluster: Cluster, tmp_path: Path) -> None:
    figures = play(cluster, scenarios.kills, tmp_path, count=3)
    assert figures["exit codes"]["-9"] >= 3
    assert figures["operations checked"] > 0
