"""Tables of a log whose beginning was archived: they begin with the final snapshots."""

import asyncio
from pathlib import Path

import pytest

from refold.log.memory import MemoryLog
from refold.projector.rebuilding import Rebuild
from refold_projections.tables.database import connect
from refold_schemas.errors.tables import TablesBehindLog
from support.archive_lab import Archive, the_report
from support.lab import CODEC
from support.postgres import rows
from support.projecting import QUICK, differences, project, verified


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    one = Archive(tmp_path / "archive")
    one.runs("r-1", "r-2", "r-3")
    one.runs("sleeper", run="reminder")
    return one


async def opened(archive: Archive) -> MemoryLog:
    """A copy of the lab's log: its own lives in virtual time."""
    from refold.log.memory import MemoryBroker
    from refold.log.port import Entry, Topic

    broker = MemoryBroker("lab", partition_count=1)
    for topic in (Topic.EVENTS, Topic.SNAPSHOTS):
        start, end = archive.lab.broker.bounds(topic, 0)
        there = {one.offset: one for one in archive.lab.broker.records(topic, 0)}
        for offset in range(end):
            one = there.get(offset)
            entry = Entry(b"gone", b"") if one is None else Entry(one.key, one.value, one.header)
            broker.put(topic, 0, [entry])
        broker.trim(topic, 0, start)
    log = MemoryLog(broker=broker)
    await log.open(create=True)
    return log


def test_archived_runs_are_in_the_tables_by_their_snapshots(
    archive: Archive, postgres: str
) -> None:
    the_report(archive.archive())
    archive.runs("r-4")

    async def play() -> tuple[list[str], list[dict[str, object]], list[str]]:
        log = await opened(archive)
        start, _ = archive.bounds()
        assert start > 0
        await project(log, postgres)
        first = differences(await verified(log, postgres))
        ended = await Rebuild(log, postgres, CODEC, QUICK).run()
        assert ended.set_name == "b"
        second = differences(await verified(log, postgres))
        found = await rows(
            postgres, "select run_id, status, result #>> '{}' as result from v1_runs order by 1"
        )
        return first, found, second

    first, found, second = asyncio.run(play())
    assert (first, second) == ([], [])
    assert [one["run_id"] for one in found] == ["r-1", "r-2", "r-3", "r-4", "sleeper"]
    assert [one["status"] for one in found] == [*["completed"] * 4, "waiting"]
    assert all(one["result"] for one in found[:4]), "a snapshot keeps what a run returned"


def test_tables_that_were_behind_the_archive_say_so_and_are_rebuilt(
    archive: Archive, postgres: str
) -> None:
    async def before() -> None:
        await project(await opened(archive), postgres)
        connection = await connect(postgres)
        # As of a projector that was away meanwhile.
        await connection.execute("update refold_a.positions set offset_next = 1, last_offset = 0")
        await connection.close()

    asyncio.run(before())
    the_report(archive.archive())

    async def after() -> list[str]:
        log = await opened(archive)
        with pytest.raises(TablesBehindLog, match="refold projections rebuild"):
            await project(log, postgres)
        await Rebuild(log, postgres, CODEC, QUICK).run()
        return differences(await verified(log, postgres))

    assert asyncio.run(after()) == []
