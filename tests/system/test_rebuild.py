"""Blue/green on a real Postgres: readers see one set, whole; a stopped rebuild is taken up."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.log import Log, Record, Topic
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.sqlite import SqliteLog
from refold.projector import ProjectorSettings
from refold.projector.partition import PartitionProjector
from refold.projector.rebuilding import Rebuild, Rebuilt, Step
from refold_projections.tables import sets
from refold_projections.tables.database import Pool, close, connect
from refold_schemas.errors.tables import DatabaseUnavailable, RebuildUnderWay, TablesNotTrue
from refold_tools.cli import main
from support.histories import CODEC
from support.postgres import rows, until
from support.postgres_proxy import Breaking
from support.projecting import (
    NAMES,
    QUICK,
    caught_up,
    differences,
    opened,
    project,
    projecting,
    verified,
)
from support.written_log import Writer, done, intended, started

REFOLD = [sys.executable, "-m", "refold_tools.cli"]
BURST = 10
"""Runs written before the projector has to have them: on a slow machine a writer that waits for
nobody is faster than who reads, and the end would be minutes away."""


def a_log(runs: int = 20) -> tuple[MemoryBroker, Writer]:
    broker = MemoryBroker("default", partition_count=1)
    writer = Writer(broker)
    writer.claim()
    for number in range(runs):
        writer.write(f"order-{number}", *started("a", "b"), done("a#1"), intended("b#1"))
    return broker, writer


async def rebuilt(log: Log, url: str, **more: Any) -> Rebuilt:
    return await Rebuild(log, url, CODEC, QUICK, **more).run()


def test_a_reader_in_a_loop_never_sees_two_sets_in_one_answer(postgres: str) -> None:
    """Each set is given a version of its own; twenty swaps while a reader joins three views."""
    broker, _ = a_log()
    asked = """
        select r.run_id, r.version as run_version, s.step, p.owner
        from v1_runs r join v1_steps s using (run_id) cross join v1_partitions p
    """

    async def play_it() -> tuple[set[tuple[str, ...]], int, set[int]]:
        log = await opened(broker)
        await project(log, postgres)
        await rebuilt(log, postgres)
        writer = await connect(postgres)
        for one in ("a", "b"):
            await writer.execute(f"update refold_{one}.runs set version = '{one}'")
            await writer.execute(f"update refold_{one}.steps set step = '{one}'")
            await writer.execute(f"update refold_{one}.positions set owner = '{one}'")
        answers: list[set[str]] = []
        counts: set[int] = set()
        swapping = True

        async def read() -> None:
            reader = await connect(postgres)
            while swapping:
                found = await reader.fetch(asked)
                answers.append({v for row in found for v in (row[1], row[2], row[3])})
                counts.add(len(found))
            await close(reader)

        reading = [asyncio.create_task(read()) for _ in range(2)]
        swaps = 0
        for number in range(20):
            async with writer.transaction():
                await sets.swap(writer, NAMES, "ab"[number % 2])
            swaps += 1
            await asyncio.sleep(0.02)
        swapping = False
        await asyncio.gather(*reading)
        await close(writer)
        return {tuple(sorted(one)) for one in answers}, swaps, counts

    seen, swaps, counts = asyncio.run(play_it())
    assert swaps == 20
    assert seen == {("a",), ("b",)}
    assert counts == {40}


def test_a_rebuild_swaps_under_a_projector_that_goes_on_in_the_new_set(postgres: str) -> None:
    broker, writer = a_log()

    async def play_it() -> tuple[list[str], list[str], list[int]]:
        log, other = await opened(broker), await opened(broker)
        offsets: list[int] = []
        async with projecting(log, postgres) as (one, told):
            await caught_up(one, log)
            writing = True

            async def go_on() -> None:
                number = 0
                while writing:
                    writer.write(f"more-{number}", *started(), done("a#1"))
                    number += 1
                    await asyncio.sleep(0.005)
                    if number % BURST == 0:
                        await caught_up(one, log)

            async def read() -> None:
                reader = await connect(postgres)
                while writing:
                    offsets.append(await reader.fetchval("select offset_next from v1_partitions"))
                    await asyncio.sleep(0.005)
                await close(reader)

            tasks = [asyncio.create_task(go_on()), asyncio.create_task(read())]
            for _ in range(3):
                ended = await rebuilt(other, postgres)
                assert ended.set_name is not None
            writing = False
            await asyncio.gather(*tasks)
            writer.write("last", *started())
            await until(postgres, "select 1 from v1_runs where run_id = 'last'")
            found = differences(await verified(log, postgres))
        return found, [event.kind for event in told], offsets

    found, told, offsets = asyncio.run(play_it())
    assert found == []
    assert told.count("swapped") == 3
    assert offsets == sorted(offsets), "a reader never goes back in time"


def test_a_rebuild_that_was_stopped_is_taken_up(postgres: str) -> None:
    broker, _ = a_log(400)
    small = ProjectorSettings(batch_events_max=50, read_bytes_max=10_000)

    async def play_it() -> tuple[Rebuilt, int, Rebuilt]:
        log = await opened(broker)
        await project(log, postgres)
        first = Rebuild(log, postgres, CODEC, small)

        def stop_soon(step: Step) -> None:
            if 0 < step.done < step.total:
                first.stop()

        first._on_step = stop_soon
        stopped = await first.run()
        [there] = await rows(postgres, "select offset_next from refold_b.positions")
        second = await Rebuild(log, postgres, CODEC, small).run()
        return stopped, there["offset_next"], second

    stopped, offset, second = asyncio.run(play_it())
    assert stopped.set_name is None
    assert 0 < offset < 1_601
    assert (second.set_name, second.resumed) == ("b", True)
    assert second.partitions[0].offset_next == 1_601


def test_a_rebuild_that_was_stopped_begins_anew_where_the_log_is_another_one(postgres: str) -> None:
    """What R610 says to do has to work: half a set of the log before is no reason to refuse."""
    small = ProjectorSettings(batch_events_max=50, read_bytes_max=10_000)

    async def play_it() -> Rebuilt:
        log = await opened(a_log(200)[0])
        await project(log, postgres)
        first = Rebuild(log, postgres, CODEC, small)

        def stop_soon(step: Step) -> None:
            if step.done > 0:
                first.stop()

        first._on_step = stop_soon
        assert (await first.run()).set_name is None
        return await rebuilt(await opened(a_log(5)[0]), postgres)

    ended = asyncio.run(play_it())
    assert (ended.set_name, ended.resumed) == ("b", False)
    assert ended.partitions[0].offset_next == 21


def test_a_rebuild_goes_on_where_a_projector_that_slept_has_written_its_set(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _ = a_log(200)
    small = ProjectorSettings(batch_events_max=50, read_bytes_max=10_000)

    async def play_it() -> tuple[Rebuilt, list[str]]:
        log = await opened(broker)
        await project(log, postgres)
        first = Rebuild(log, postgres, CODEC, small)
        batch, calls = PartitionProjector._batch, 0

        async def and_another(one: PartitionProjector, chunk: Sequence[Record]) -> None:
            nonlocal calls
            calls += 1
            await batch(one, chunk)
            if calls == 3:
                await one._written()
                await rows(postgres, "update refold_b.positions set writer = 'x' returning 1")

        monkeypatch.setattr(PartitionProjector, "_batch", and_another)
        ended = await first.run()
        return ended, differences(await verified(log, postgres))

    ended, found = asyncio.run(play_it())
    assert (ended.set_name, found) == ("b", [])
    assert ended.partitions[0].offset_next == 801


@pytest.mark.parametrize("passed_on", [True, False])
def test_where_the_answer_to_the_swap_is_lost_it_is_looked_which_set_is_live(
    postgres: str, passed_on: bool
) -> None:
    """Unknown is not failed: it was said that the old set stays, whatever had become of it."""
    broker, _ = a_log()

    async def play_it() -> None:
        log = await opened(broker)
        await project(log, postgres)
        way = Breaking(postgres, passed_on=passed_on, for_good=False)
        async with way as url:
            if passed_on:
                assert (await rebuilt(log, url)).set_name == "b"
            else:
                with pytest.raises(DatabaseUnavailable) as caught:
                    await rebuilt(log, url)
                assert caught.value.kept.startswith("set a, which is live as before")
        assert way.cut == 1
        (live,) = await rows(postgres, "select live from refold_live")
        assert live["live"] == ("b" if passed_on else "a")
        await verified(log, postgres)
        if not passed_on:
            again = await rebuilt(log, postgres)
            assert (again.set_name, again.resumed) == ("b", True)

    asyncio.run(play_it())


def test_where_nobody_can_look_it_is_unknown_which_set_is_live(postgres: str) -> None:
    broker, _ = a_log()

    async def play_it() -> None:
        log = await opened(broker)
        await project(log, postgres)
        async with Breaking(postgres, passed_on=True, for_good=True) as url:
            with pytest.raises(DatabaseUnavailable) as caught:
                await rebuilt(log, url)
        assert "which one readers see is not known" in caught.value.kept
        assert "refold projections verify" in caught.value.next

    asyncio.run(play_it())


def test_a_rebuild_ends_though_the_writer_is_always_faster(postgres: str) -> None:
    broker, writer = a_log()

    class Outrun(MemoryLog):
        """Whenever it is read, there is more than before."""

        count = 0

        async def read(
            self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
        ) -> Sequence[Record]:
            if topic is Topic.EVENTS:
                self.count += 1
                writer.write(f"more-{self.count}", *started())
            return await super().read(topic, partition, offset, size_max=size_max)

    async def play_it() -> tuple[str | None, list[str]]:
        log, outrun = await opened(broker), Outrun(broker=broker)
        await outrun.open(create=False)
        await project(log, postgres)
        async with asyncio.timeout(60):
            ended = await rebuilt(outrun, postgres)
        await project(log, postgres)
        return ended.set_name, differences(await verified(log, postgres))

    assert asyncio.run(play_it()) == ("b", [])


def test_two_rebuilds_at_once_are_one_too_many(postgres: str) -> None:
    broker, _ = a_log(5)

    async def play_it() -> None:
        log = await opened(broker)
        await project(log, postgres)
        held = await connect(postgres)
        await sets.reserve(held, NAMES)
        with pytest.raises(RebuildUnderWay):
            await rebuilt(log, postgres)
        await close(held)
        assert (await rebuilt(log, postgres)).set_name == "b"

    asyncio.run(play_it())


def test_a_set_that_is_not_the_fold_is_never_swapped_in(postgres: str) -> None:
    broker, _ = a_log(30)
    spoilt = ProjectorSettings(batch_events_max=20)

    async def play_it() -> None:
        log = await opened(broker)
        await project(log, postgres)
        pool = Pool(postgres, size=2)
        first = Rebuild(log, postgres, CODEC, spoilt)
        stop = first.stop

        def stop_at_the_end(step: Step) -> None:
            if step.phase == "verifying":
                stop()

        first._on_step = stop_at_the_end
        await first.run()
        async with pool.connection() as connection:
            await connection.execute("update refold_b.steps set step = 'x' where slot = 'a#1'")
        await pool.close()
        with pytest.raises(TablesNotTrue, match="column step: the log says 'a', the table 'x'"):
            await rebuilt(log, postgres)
        assert (await rows(postgres, "select live from refold_live"))[0]["live"] == "a"
        again = await rebuilt(log, postgres)  # begins anew
        assert (again.set_name, again.resumed) == ("b", False)

    asyncio.run(play_it())


def test_the_commands_on_a_log_in_a_file(
    postgres: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A projector as a process, SIGTERM; migrate, verify, a rebuild that is killed, and another."""
    url = f"sqlite:///{tmp_path}/log.db"
    monkeypatch.setenv("REFOLD_LOG", url)
    monkeypatch.setenv("REFOLD_DATABASE_URL", postgres)
    broker, _ = a_log(300)

    async def copy() -> None:
        from refold.log import Entry, Topic

        memory, log = await opened(broker), SqliteLog(url)
        await log.open(create=True)
        for record in await memory.read(Topic.EVENTS, 0, 0, size_max=1 << 26):
            entry = Entry(record.key, record.value, record.header)
            await log.append(Topic.EVENTS, 0, [entry])
        await log.close()
        await memory.close()

    asyncio.run(copy())
    assert main(["projections", "verify", "--json"]) == 4  # there are no tables yet
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["code"] == "R604"
    assert main(["projections", "migrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["migrations"] == [1]

    process = subprocess.Popen([*REFOLD, "projector", "--json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "started"

    asyncio.run(until(postgres, "select 1 from v1_partitions where offset_next = 1201"))
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=30)[0].splitlines()
    assert process.returncode == 0
    assert json.loads(rest[-1]) == {"stopped": True}

    assert main(["projections", "verify", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["set"] == "a"
    killed = subprocess.Popen([*REFOLD, "projections", "rebuild"], stderr=subprocess.PIPE)
    assert killed.stderr is not None
    killed.stderr.readline()
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert main(["projections", "rebuild", "--json"]) == 0
    ended = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["sha256"] for one in ended["partitions"]] == [
        one["sha256"] for one in said["partitions"]
    ]
    assert main(["projections", "verify"]) == 0
    assert f"set {ended['live']} says what the log says" in capsys.readouterr().out

    # Rows that are of no partition of the log: nothing in it says so.
    added = (
        "insert into refold_findings select $1, 'r', 'f', 7, now(), '', '', '', '', '', '', true"
    )
    asyncio.run(rows(postgres, f"{added} returning 1", ended["live"]))
    assert main(["projections", "verify"]) == 1
    assert "partition 7, findings (r, f)" in capsys.readouterr().err
    asyncio.run(rows(postgres, "delete from refold_findings returning 1"))
    asyncio.run(rows(postgres, "delete from refold_positions returning 1"))
    assert main(["projections", "verify"]) == 1
    assert "the log says no such row, the table one" in capsys.readouterr().err
