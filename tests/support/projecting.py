"""Projectors in tests: run one until it has caught up, verify what it wrote, read the views."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from refold.log import Entry, Log, Topic
from refold.log.memory import MemoryBroker, MemoryLog
from refold.projector import Projector, ProjectorSettings
from refold.projector.settings import ProjectorEvent
from refold.projector.verifying import Verified, verify
from refold_projections.tables.database import close, connect
from refold_projections.tables.names import names_in
from refold_projections.tables.store import Store, live_of
from refold_schemas.codec import Codec
from refold_schemas.registry import FileRegistry
from support.histories import Partition

QUICK = ProjectorSettings(look_every_s=0.05, wait_ms=100, retry_s=0.05, retry_max_s=0.2)
NAMES = names_in("public")


async def opened(broker: MemoryBroker) -> MemoryLog:
    log = MemoryLog(broker=broker)
    await log.open(create=True)
    return log


def stored(partition: Partition, broker: MemoryBroker | None = None) -> MemoryBroker:
    """A random history as a log in memory."""
    broker = broker or MemoryBroker("default", partition_count=1)
    for one in partition.log:
        broker.put(Topic.EVENTS, 0, [Entry(one.key, one.value, one.header)])
    return broker


async def caught_up(projector: Projector, log: Log, *, within_s: float = 60) -> None:
    """Return once the projector's partitions are at the log's end, whatever holes are there."""

    async def ends() -> dict[int, int]:
        count = log.facts.partition_count
        return {p: (await log.bounds(Topic.EVENTS, p))[1] for p in range(count)}

    wanted = await ends()
    async with asyncio.timeout(within_s):
        while any(  # noqa: ASYNC110
            (now := projector.progress.get(p)) is None or now.offset_next < end
            for p, end in wanted.items()
        ):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def projecting(
    log: Log, url: str, settings: ProjectorSettings = QUICK, **more: Any
) -> AsyncIterator[tuple[Projector, list[ProjectorEvent]]]:
    """A projector at work, and what it has told so far."""
    told: list[ProjectorEvent] = []
    one = Projector(log, url, settings=settings, on_event=told.append, **more)
    running = asyncio.create_task(one.run())
    try:
        yield one, told
    finally:
        one.stop()
        await running


async def project(log: Log, url: str, settings: ProjectorSettings = QUICK) -> None:
    """Bring the tables up to the log's end."""
    one = Projector(log, url, settings=settings)
    running = asyncio.create_task(one.run())
    caught = asyncio.create_task(caught_up(one, log))
    await asyncio.wait((running, caught), return_when=asyncio.FIRST_COMPLETED)
    one.stop()
    caught.cancel()
    await running


async def verified(log: Log, url: str, **more: Any) -> list[Verified]:
    """Every partition of the live set against a fresh fold."""
    connection = await connect(url, name="tests")
    try:
        live = await live_of(connection, NAMES)
        store = Store(NAMES, live.name, Codec(FileRegistry()))
        return [
            await verify(connection, store, log, partition, **more)
            for partition in range(log.facts.partition_count)
        ]
    finally:
        await close(connection)


def differences(found: list[Verified]) -> list[str]:
    return [str(one.difference) for one in found if one.difference is not None]
