"""A Kafka broker that has lost one of its disks: what lies on it is away, and nothing else."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from refold import App, Client, RunContext
from refold.log import partition_for
from refold.log.kafka import KafkaLog
from refold.worker import Worker
from refold_schemas.errors import LogUnavailable
from refold_tools.cli import doctor
from support.kafka_broker import Broker

SOON = timedelta(seconds=60)
app = App("shop")


@app.run("order")
async def order(ctx: RunContext, pence: int) -> int:
    return pence


class TwoDisks:
    """A broker with two folders for its topics; one of them can be taken away."""

    def __init__(self, folder: Path) -> None:
        self.good, self.bad = folder / "good", folder / "bad"
        settings = {"log.dirs": f"{self.good},{self.bad}", "metadata.log.dir": str(self.good)}
        self.broker = Broker(folder, more=settings)

    def lose(self, lost: str) -> None:
        """Start it anew with this partition, and no other one, on a disk that cannot be used."""
        self.broker.kill()
        for one in [*self.good.iterdir(), *self.bad.iterdir()]:
            if one.is_dir() and one.name != "__cluster_metadata-0":
                home = self.bad if one.name == lost else self.good
                if one.parent != home:
                    shutil.move(one, home / one.name)
        while True:  # until the controller has heard from the broker what lies where
            self.broker.start()
            time.sleep(1)
            self.broker.kill()
            self.bad.rename(self.bad.with_name("kept"))
            self.bad.write_text("not a folder")
            self.broker.start()
            if self._leaderless() == {lost}:
                return
            self.broker.kill()
            self.bad.unlink()
            self.bad.with_name("kept").rename(self.bad)

    def _leaderless(self) -> set[str]:
        topics = AdminClient({"bootstrap.servers": self.broker.server}).list_topics(timeout=30)
        return {
            f"{name}-{number}"
            for name, topic in topics.topics.items()
            for number, one in topic.partitions.items()
            if one.leader < 0
        }


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[TwoDisks]:
    one = TwoDisks(tmp_path)
    try:
        yield one
    finally:
        one.broker.end()


def test_a_partition_without_a_leader_keeps_nobody_from_the_others(
    disks: TwoDisks, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one says over how many runs are routed, but so does any other."""
    url = f"kafka://{disks.broker.server}/shop?partitions=3"
    names = {partition_for(name, 3): name for name in map("run-{}".format, range(12))}

    async def serve(log: KafkaLog, runs: list[str]) -> None:
        worker = Worker(app, log, watch=False)
        serving = asyncio.create_task(worker.run())
        async with Client(url) as client:
            for name in runs:
                handle = await client.start("order", 5, run_id=name, within=SOON)
                assert await handle.result(within=SOON) == 5
        worker.stop()
        await serving
        await log.close()

    async def whole() -> None:
        log = KafkaLog(url)
        await log.open(create=True)
        await serve(log, list(names.values()))

    async def without() -> None:
        log = KafkaLog(url)
        await log.open(create=False)
        await serve(log, [f"again-{n}" for n in range(9) if partition_for(f"again-{n}", 3)])
        async with Client(url) as client:
            assert (await client.boundary(names[1])).status == "completed"
            with pytest.raises(LogUnavailable, match=r"shop\.events partition 0"):
                await client.boundary(names[0])

    asyncio.run(whole())
    disks.lose("shop.events-0")
    asyncio.run(without())
    assert doctor.doctor(url) == 1
    told = capsys.readouterr().out
    assert "wrong  p0         it cannot be read" in told
    assert "ok     p1" in told
    assert "ok     p2" in told
