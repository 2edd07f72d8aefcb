"""The measurements of the tables: events a second, freshness, a rebuild, queries of a million runs.

Postgres is started for them, with fsync and its usual settings; the log is written by this process,
as an owner writes it, so that no worker's speed is measured.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from refold.log import Entry, Log, Topic, open_log, partition_for
from refold.projector import ProjectorSettings
from refold.projector.rebuilding import Rebuild
from refold_projections.tables.database import close, connect
from refold_projections.tables.migrating import migrate
from refold_projections.tables.names import names_in
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, Codec, RecordHeader
from refold_schemas.events import (
    Event,
    PartitionClaimed,
    PlanDeclared,
    RunCompleted,
    RunStarted,
    StepCompleted,
    StepIntended,
)
from refold_schemas.registry import FileRegistry
from refold_schemas.values import Argument, encode_value
from refold_tools.bench.machine import percentile
from refold_tools.bench.process import wait_until
from refold_tools.bench.rows import Figures
from refold_tools.bench.stores import Store
from refold_tools.devstack import POSTGRES, Ports, Stack

STEPS = 8
"""Re-executable steps of a run, before the one with an intent."""
EVENTS_A_RUN = STEPS + 5
SIDE_BY_SIDE = 100
"""Runs whose events lie between each other's."""
HALF_LOAD = 5_000
"""Events a second while freshness is measured."""


class Writer:
    """An owner of every partition that writes what a worker would write, without one."""

    def __init__(self, log: Log) -> None:
        self.log, self.codec = log, Codec(FileRegistry())
        self._claims: dict[int, bytes] = {}
        self._n: dict[int, int] = {}
        self._runs = 0

    async def claim(self) -> None:
        """Claim all partitions."""
        count = self.log.facts.partition_count
        for partition in range(count):
            claim_id = (partition + 1).to_bytes(16, "big")
            self._claims[partition], self._n[partition] = claim_id, 0
            claimed = PartitionClaimed(
                "bench", "p1", "bench", "0", ("agent@1",), self.log.facts.topic_ids, count, 1
            )
            header = RecordHeader(KIND_CLAIM, claim_id, 1, 0, _now_ms(), 0)
            await self.log.append(
                Topic.EVENTS, partition, [Entry(None, self.codec.encode(claimed), header.pack())]
            )

    async def runs(self, count: int) -> None:
        """So many whole runs."""
        for first in range(0, count, SIDE_BY_SIDE):
            names = self._names(min(SIDE_BY_SIDE, count - first))
            for event in _life():
                by_partition: dict[int, list[Entry]] = {}
                for run_id in names:
                    self._add(by_partition, run_id, event)
                for partition, entries in by_partition.items():
                    await self.log.append(Topic.EVENTS, partition, entries)

    async def paced(self, seconds: float, rate: int) -> list[tuple[int, int, float]]:
        """Events at a rate; of each batch its partition, the offset behind it, and when acked."""
        acked: list[tuple[int, int, float]] = []
        events, began = _life(), time.monotonic()
        sent, names, place = 0, self._names(SIDE_BY_SIDE), 0
        while time.monotonic() - began < seconds:
            by_partition: dict[int, list[Entry]] = {}
            for run_id in names:
                self._add(by_partition, run_id, events[place])
            for partition, entries in by_partition.items():
                ack = await self.log.append(Topic.EVENTS, partition, entries)
                acked.append((partition, (ack.offset or 0) + len(entries), time.monotonic()))
            sent, place = sent + len(names), place + 1
            if place == len(events):
                names, place = self._names(SIDE_BY_SIDE), 0
            await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()))
        return acked

    def _names(self, count: int) -> list[str]:
        self._runs += count
        return [f"order-{number}" for number in range(self._runs - count, self._runs)]

    def _add(self, found: dict[int, list[Entry]], run_id: str, event: Event) -> None:
        partition = partition_for(run_id, self.log.facts.partition_count)
        header = RecordHeader(
            KIND_EVENT, self._claims[partition], 1, self._n[partition], _now_ms(), 0
        )
        self._n[partition] += 1
        entry = Entry(run_id.encode(), self.codec.encode(event), header.pack())
        found.setdefault(partition, []).append(entry)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _life() -> list[Event]:
    order = encode_value({"id": "48211", "pence": 4160, "lines": [1, 2, 3]})
    pence = (Argument("pence", encode_value(4160)),)
    life: list[Event] = [
        RunStarted("agent", "1", order, bytes(32), "c1", "bench"),
        PlanDeclared(("look", "charge")),
    ]
    for at in range(STEPS):
        life.append(StepCompleted(f"look#{at + 1}", 1, order, None, None, "look", bytes(32), pence))
    key = "0b7d3f2e-6d8c-5a4b-9e21-000000000001"
    life.append(
        StepIntended("charge#1", "charge", 1, 0, pence, bytes(32), key, "keyed", 1, 1, None)
    )
    life.append(StepCompleted("charge#1", 1, order, None, None, None, None, None))
    life.append(RunCompleted(order))
    return life


@contextlib.contextmanager
def postgres(store: Store) -> Iterator[str]:
    """A fresh Postgres for one measurement; its URL."""
    folder = store.folder / f"postgres-{time.monotonic_ns()}"
    stack = Stack.up(folder, ports=Ports.free(), services={POSTGRES}, tied=True)
    try:
        yield stack.variables["REFOLD_DATABASE_URL"]
    finally:
        stack.down(delete=True)


@contextlib.contextmanager
def projector(log_url: str, database_url: str) -> Iterator["subprocess.Popen[str]"]:
    """`refold projector` as a process of its own, which has its tables."""
    command = [sys.executable, "-m", "refold_tools.cli", "projector", "--json"]
    process = subprocess.Popen(
        [*command, "--log", log_url.partition("?")[0], "--database", database_url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if json.loads(line)["event"] == "started":
                break
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def _value(url: str, sql: str) -> Any:
    connection = await connect(url, name="refold bench")
    try:
        return await connection.fetchval(sql)
    finally:
        await close(connection)


async def _filled(url: str, runs: int) -> int:
    """Write a new log with so many runs; its records."""
    log = open_log(url)
    await log.open(create=True)
    writer = Writer(log)
    await writer.claim()
    await writer.runs(runs)
    count = log.facts.partition_count + runs * EVENTS_A_RUN
    await log.close()
    return count


def projector_speed(store: Store, *, runs: int = 15_000) -> Figures:
    """Events a second into Postgres: from the projector's start to its last row."""
    url = store.url("projector")
    events = asyncio.run(_filled(url, runs))
    with postgres(store) as database, projector(url, database):
        began = time.monotonic()
        asked = "select coalesce(sum(offset_next), 0)::bigint from v1_partitions"

        def is_there() -> bool:
            return bool(asyncio.run(_value(database, asked)) >= events)

        wait_until("all rows", is_there, within_s=600, every_s=0.05)
        seconds = time.monotonic() - began
        rows = asyncio.run(_value(database, "select count(*) from v1_steps"))
        size = asyncio.run(_value(database, "select pg_database_size(current_database())"))
    return {
        "events_per_s": events / seconds,
        "events": events,
        "step_rows": rows,
        "bytes_per_event": size / events,
    }


def freshness(store: Store, *, seconds: float = 20, rate: int = HALF_LOAD) -> Figures:
    """Milliseconds from an acknowledgement to the visible row, at half of what is aimed at."""
    url = store.url("freshness")

    async def watch(database: str, seen: list[tuple[float, dict[int, int]]]) -> None:
        connection = await connect(database, name="refold bench")
        try:
            while True:
                found = await connection.fetch("select partition, offset_next from v1_partitions")
                seen.append((time.monotonic(), dict(map(tuple, found))))
                await asyncio.sleep(0.001)
        finally:
            await close(connection)

    async def measure(database: str) -> tuple[list[float], int]:
        log = open_log(url.partition("?")[0])
        await log.open(create=False)
        writer = Writer(log)
        await writer.claim()
        seen: list[tuple[float, dict[int, int]]] = []
        watching = asyncio.create_task(watch(database, seen))
        acked = await writer.paced(seconds, rate)
        await asyncio.sleep(3)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await log.close()
        return _waits(acked, seen), len(acked)

    async def make() -> None:
        log = open_log(url)
        await log.open(create=True)
        await log.close()

    asyncio.run(make())
    with postgres(store) as database, projector(url, database):
        waits, batches = asyncio.run(measure(database))
    return {
        "visible_p50_ms": percentile(waits, 50),
        "visible_p99_ms": percentile(waits, 99),
        "batches": batches,
        "not_seen": batches - len(waits),
    }


def _waits(
    acked: Sequence[tuple[int, int, float]], seen: Sequence[tuple[float, dict[int, int]]]
) -> list[float]:
    """Of each batch how long it took until a reader saw it, in milliseconds."""
    waits: list[float] = []
    place: dict[int, int] = {}
    for partition, offset, at in acked:
        look = place.get(partition, 0)
        while look < len(seen) and seen[look][1].get(partition, 0) < offset:
            look += 1
        place[partition] = look
        if look < len(seen):
            waits.append(max(0.0, (seen[look][0] - at) * 1e3))
    return waits


def rebuild_speed(store: Store, *, runs: int = 77_000) -> Figures:
    """A rebuild of a million events: filled, verified and swapped, in seconds."""
    url = store.url("rebuild")
    events = asyncio.run(_filled(url, runs))

    async def work(database: str) -> float:
        connection = await connect(database, name="refold bench")
        await migrate(connection, names_in("public"))
        await close(connection)
        log = open_log(url.partition("?")[0])
        await log.open(create=False)
        began = time.monotonic()
        await Rebuild(log, database, Codec(FileRegistry()), ProjectorSettings()).run()
        seconds = time.monotonic() - began
        await log.close()
        return seconds

    with postgres(store) as database:
        seconds = asyncio.run(work(database))
    return {"seconds": seconds, "events": events, "events_per_s": events / seconds}


MANY_RUNS = """
    insert into refold_a.runs
    select 'a', 'order-' || g, 0, 'agent-' || g % 7, '1',
        (array['completed', 'completed', 'completed', 'completed', 'completed', 'waiting',
            'running', 'failed', 'in_doubt', 'blocked'])[1 + g % 10],
        null, (array[null, null, null, null, null, 'time', null, null, 'person', 'code'])
            [1 + g % 10],
        '["six steps complete, charge in doubt since ", 1785585600000, ", three steps remaining"]',
        now(), now() - g * interval '1 second', null, null, 13, 3000,
        '{"id": "48211", "pence": 4160}', '{"ok": true}', null, null, 6,
        case when g % 10 = 8 then 1 else 0 end, case when g % 10 = 8 then now() end, 0,
        '["charge", "notify", "close"]', 0, '\\x00'
    from generate_series(1, $1::int) g
"""
MANY_STEPS = """
    insert into refold_a.steps
    select 'a', 'order-' || g, 'look#' || s, 0, 'look', s, '', 'done', 1, null, now(), '',
        '{"pence": 4160}', '{"id": "48211"}', null, null, null, false, false, false, '\\x00'
    from generate_series(1, $1::int) g, generate_series(1, 4) s
"""
ONE_POSITION = """
    insert into refold_a.positions
    select 'a', 0, 1, 1, '\\x00', 1, false, 0, 0, 0, '\\x00', 0, '', 'bench', '', 1, '{}', 1, false,
        0, 0, now(), '\\x00', 1, 1, now(), now()
"""
LISTS = {
    "list": "order by changed_at desc, run_id desc limit 50",
    "status": "where status = 'in_doubt' order by changed_at desc, run_id desc limit 50",
    "needs": "where needs = 'person' order by changed_at desc, run_id desc limit 50",
    "run": "where run = 'agent-3' order by changed_at desc, run_id desc limit 50",
    "page": "where (changed_at, run_id) < (now() - interval '3 days', 'x') "
    "order by changed_at desc, run_id desc limit 50",
    "search": "where run_id like 'order-4821%' order by run_id limit 50",
}


def queries(store: Store, *, runs: int = 1_000_000, times: int = 60) -> Figures:
    """Milliseconds of the page's queries over so many runs, p95 of each."""

    async def work(database: str) -> Figures:
        connection = await connect(database, name="refold bench", statement_timeout_ms=600_000)
        await migrate(connection, names_in("public"))
        for sql in (MANY_RUNS, MANY_STEPS):
            await connection.execute(sql, runs, timeout=600)
        await connection.execute(ONE_POSITION)
        await connection.execute("vacuum analyze", timeout=600)
        figures: Figures = {"runs": runs}
        columns = "run_id, run, version, status, needs, sentence, changed_at"
        asked = {name: f"select {columns} from v1_runs {rest}" for name, rest in LISTS.items()}
        asked["boundary"] = "select boundary from v1_boundary where run_id = $1"
        for name, sql in asked.items():
            waits = []
            for at in range(times):
                given = (f"order-{1 + at * 7_919 % runs}",) if name == "boundary" else ()
                began = time.monotonic()
                await connection.fetch(sql, *given)
                waits.append((time.monotonic() - began) * 1e3)
            figures[f"{name}_p95_ms"] = percentile(waits, 95)
        figures["worst_p95_ms"] = max(
            value for name, value in figures.items() if name.endswith("p95_ms")
        )
        await close(connection)
        return figures

    with postgres(store) as database:
        return asyncio.run(work(database))
