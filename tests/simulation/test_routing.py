"""Over how many partitions runs are routed, after somebody has given the topics more of them."""

import asyncio
from datetime import timedelta

import pytest

from refold import App, Client, RunContext
from refold.engine.adopting import adopt, to_adopt
from refold.log import Entry, Topic, partition_for
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.routing import check_adopted, recorded_count, routing_count
from refold.worker import Worker
from refold_schemas.codec import Codec
from refold_schemas.errors import PartitionsRaised
from refold_schemas.events import PartitionReleased
from refold_schemas.registry import FileRegistry
from support import written_log
from support.outer_registry import OuterRegistry, Place

CODEC = Codec(FileRegistry())
SOON = timedelta(seconds=60)
NAMES = [f"run-{number}" for number in range(12)]
app = App("shop")


@app.run("order")
async def order(ctx: RunContext, pence: int) -> int:
    return pence


async def opened(broker: MemoryBroker) -> MemoryLog:
    log = MemoryLog(broker=broker)
    await log.open(create=True)
    return log


async def serve(broker: MemoryBroker, names: list[str]) -> None:
    """A worker and a client, until these runs have ended."""
    log = await opened(broker)
    worker = Worker(app, log, watch=False)
    serving = asyncio.create_task(worker.run())
    async with Client(log) as client:
        for name in names:
            started = asyncio.create_task(client.start("order", 5, run_id=name, within=SOON))
            await asyncio.wait([started, serving], return_when=asyncio.FIRST_COMPLETED)
            assert not serving.done(), serving.exception()
            assert await (await started).result(within=SOON) == 5
    worker.stop()
    await serving
    await log.close()


async def homes(broker: MemoryBroker) -> dict[str, int]:
    async with Client(await opened(broker)) as client:
        return {one.run_id: one.partition for one in await client.runs()}


def expanded() -> MemoryBroker:
    """Three partitions, which twelve runs have used, and six topics' partitions now."""
    broker = MemoryBroker(partition_count=3, can_grow=True)
    asyncio.run(serve(broker, NAMES))
    broker.grow(6)
    return broker


def test_runs_are_found_where_they_were_and_nobody_serves_before_it_is_adopted() -> None:
    broker = expanded()

    async def main() -> None:
        assert await homes(broker) == {name: partition_for(name, 3) for name in NAMES}
        log = await opened(broker)
        with pytest.raises(PartitionsRaised, match="record 3") as refused:
            await Worker(app, log, watch=False).run()
        assert refused.value.exit_code == 4
        assert await to_adopt(log, CODEC) == (3, 4, 5)
        assert await adopt(log, CODEC, by="somebody", engine="1") == (3, 4, 5)
        assert await adopt(log, CODEC, by="somebody", engine="1") == ()
        await serve(broker, ["new-1", "new-2", "new-3"])
        found = await homes(broker)
        assert found == {name: partition_for(name, 3) for name in found}
        assert len(found) == len(NAMES) + 3

    asyncio.run(main())


def test_who_has_just_started_adopts_them_under_a_registrys_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place()
    codec = Codec(OuterRegistry(place))
    asyncio.run(codec.ready())
    monkeypatch.setattr(written_log, "CODEC", codec)
    broker = MemoryBroker("shop", can_grow=True)
    broker.exists = True
    writer = written_log.writer_for(broker, "run-1")
    writer.claim()
    writer.write(None, PartitionReleased("it stops"))
    broker.grow(2)

    async def main() -> None:
        log, fresh = await opened(broker), Codec(OuterRegistry(place))
        assert await adopt(log, fresh, by="somebody", engine="1") == (1,)
        names = [codec.name_of(one.value or b"") for one in broker.records(Topic.EVENTS, 1)]
        assert names == ["PartitionClaimed", "PartitionReleased"]
        files = [CODEC.name_of(one.value or b"") for one in broker.records(Topic.EVENTS, 1)]
        assert files == [None, None], "they stand under ids of the registry"

    asyncio.run(main())


def test_an_upgrade_that_was_cut_short_is_no_adoption() -> None:
    broker = expanded()

    async def main() -> None:
        log = await opened(broker)
        assert await adopt(log, CODEC, by="somebody", engine="1") == (3, 4, 5)
        broker.grow(8)
        with pytest.raises(PartitionsRaised):
            await check_adopted(log, CODEC, 3)
        assert await to_adopt(log, CODEC) == (6, 7)
        broker.grow(9)
        await adopt(log, CODEC, by="somebody", engine="1")
        await check_adopted(log, CODEC, await routing_count(log, CODEC))

    asyncio.run(main())


def test_a_trimmed_log_says_it_by_its_checkpoint_and_an_empty_one_by_its_topics() -> None:
    broker = expanded()

    async def main() -> None:
        log = await opened(broker)
        for partition in range(3):
            _, end = await log.bounds(Topic.EVENTS, partition)
            broker.trim(Topic.EVENTS, partition, end)
            # Behind the checkpoint stand records of others, more than one look finds.
            rest = [Entry(b"other/%d" % number, b"x") for number in range(600)]
            await log.append(Topic.SNAPSHOTS, partition, rest)
            assert await recorded_count(log, CODEC, partition) == 3
        assert await routing_count(log, CODEC) == 3
        fresh = await opened(MemoryBroker(partition_count=4, can_grow=True))
        assert await routing_count(fresh, CODEC) == 4
        await check_adopted(fresh, CODEC, 4)

    asyncio.run(main())


def test_what_somebody_else_wrote_first_does_not_count() -> None:
    broker = MemoryBroker(partition_count=2, can_grow=True)

    async def main() -> None:
        log = await opened(broker)
        await log.append(Topic.EVENTS, 0, [Entry(b"k", b"junk" * 40_000, b"no header")])
        assert await routing_count(log, CODEC) == 2
        await serve(broker, ["run-1"])
        broker.grow(5)
        assert await recorded_count(log, CODEC, 0) == 2
        assert await routing_count(log, CODEC) == 2

    asyncio.run(main())
