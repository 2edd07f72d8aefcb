"""Projectors as processes, killed and started under load: the tables are the fold's all the same.

`make chaos-projector` is the long form: REFOLD_KILLS kills instead of six, and the database away
for REFOLD_AWAY_S seconds.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refold.log import Log
from refold.log.kafka import KafkaLog
from refold.log.kafka_access import Access
from refold.log.sqlite import SqliteLog
from refold_tools.processes import ends_with_parent
from support.kafka_broker import Broker
from support.log_load import Load
from support.postgres import Postgres, rows
from support.projecting import caught_up, differences, project, projecting, verified

pytestmark = pytest.mark.untraced
KILLS = int(os.environ.get("REFOLD_KILLS", "6"))
AWAY_S = float(os.environ.get("REFOLD_AWAY_S", "0.5"))
REFOLD = [sys.executable, "-m", "refold_tools.cli"]


def projector(log_url: str, database_url: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "REFOLD_LOG": log_url, "REFOLD_DATABASE_URL": database_url}
    return subprocess.Popen(
        [*REFOLD, "projector"],
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=ends_with_parent(signal.SIGKILL),
    )


async def applied(url: str) -> int:
    try:
        found = await rows(
            url, "select coalesce(sum(offset_next), 0)::bigint as n from v1_partitions"
        )
    except Exception:  # no tables yet, or no server
        return -1
    return int(found[0]["n"] or 0)


async def until_more(url: str, before: int) -> None:
    """Something was applied since: the projector is at work, and is killed in the middle of it."""
    async with asyncio.timeout(60):
        while await applied(url) <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def loaded(log: Log, stop: asyncio.Event) -> int:
    loads = [Load(log, partition) for partition in range(log.facts.partition_count)]
    turn = 0
    while not stop.is_set():
        for one in loads:
            if turn % 5 == 0:
                await one.claim()
            await one.runs(12)
        turn += 1
        await asyncio.sleep(0.1)
    return sum(one.count for one in loads)


def test_killed_under_load_two_at_once_and_without_their_database_for_a_while(
    postgres: str, postgres_server: Postgres, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/log.db"

    async def play() -> tuple[list[str], int]:
        log = SqliteLog(f"{url}?partitions=2")
        await log.open(create=True)
        stop = asyncio.Event()
        loading = asyncio.create_task(loaded(log, stop))
        processes = [projector(url, postgres), projector(url, postgres)]
        try:
            for number in range(KILLS):
                await until_more(postgres, await applied(postgres))
                which = number % 2
                os.kill(processes[which].pid, signal.SIGKILL)
                processes[which].wait()
                if number == KILLS // 2:
                    postgres_server.stop()
                    await asyncio.sleep(AWAY_S)
                    postgres_server.start()  # not in a thread: the server ends with who started it
                processes[which] = projector(url, postgres)
            await until_more(postgres, await applied(postgres))
        finally:
            stop.set()
            count = await loading
            for one in processes:
                one.send_signal(signal.SIGTERM)
            ends = [one.wait(30) for one in processes]
        # The one that was started last may not have come as far as to listen to signals.
        assert set(ends) <= {0, -signal.SIGTERM}
        assert 0 in ends
        await project(log, postgres)
        found = await verified(log, postgres)
        await log.close()
        assert sum(one.offset_next for one in found) == count
        return differences(found), sum(one.row_count for one in found)

    found, row_count = asyncio.run(play())
    assert found == []
    assert row_count > 200


def test_on_kafka_the_partitions_are_shared_out_and_go_over_when_one_is_killed(
    broker: Broker, postgres: str
) -> None:
    url = f"kafka://{broker.server}/projected"

    async def play() -> tuple[list[str], list[int], int]:
        log = KafkaLog(f"{url}?partitions=4", access=Access())
        await log.open(create=True)
        stop = asyncio.Event()
        loading = asyncio.create_task(loaded(log, stop))
        reading = KafkaLog(url, access=Access(), session_ms=1_500, hand_over_ms=300)
        await reading.open(create=False)
        shares: list[int] = []
        async with projecting(reading, postgres) as (here, _):
            async with asyncio.timeout(60):
                while len(here.progress) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            shares.append(len(here.progress))
            other = projector(url, postgres)
            try:
                async with asyncio.timeout(60):
                    while len(here.progress) != 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                shares.append(len(here.progress))
                await until_more(postgres, await applied(postgres))
            finally:
                os.kill(other.pid, signal.SIGKILL)
                other.wait()
            async with asyncio.timeout(60):
                while len(here.progress) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            shares.append(len(here.progress))
            stop.set()
            count = await loading
            await caught_up(here, log)
        await reading.close()
        found = await verified(log, postgres)
        await log.close()
        return differences(found), shares, count

    found, shares, count = asyncio.run(play())
    assert found == []
    assert shares == [4, 2, 4]
    [partitions] = asyncio.run(
        rows(postgres, "select sum(offset_next)::bigint as n, max(lag) as lag from v1_partitions")
    )
    assert (partitions["n"], partitions["lag"]) == (count, 0)
