"""What a projector and a gateway with tables say to Prometheus, on a real Postgres."""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from refold.gateway.metrics import GatewayMetrics
from refold.log import Topic
from refold.log.memory import MemoryBroker
from refold.projector import Projector
from refold.projector.metrics import ProjectorMetrics
from refold.projector.partition import PartitionProjector
from refold.telemetry import CATALOGUE, Buckets, Sample
from refold.telemetry.exposition import exposition
from refold_projections.tables.database import Pool, close, connect
from refold_projections.tables.sets import mark
from refold_projections.tables.store import Store
from refold_tools.devstack import layout
from support.gateway_lab import serving
from support.projecting import NAMES, QUICK, caught_up, opened, projecting
from support.written_log import CODEC, Writer, done, started

pytestmark = pytest.mark.untraced


def a_log(count: int) -> MemoryBroker:
    broker = MemoryBroker("default", partition_count=1)
    writer = Writer(broker)
    writer.claim()
    for number in range(count):
        writer.write(f"order-{number}", *started("load"), done("load#1"))
    return broker


def found(samples: Iterable[Sample]) -> dict[tuple[str, ...], float | Buckets]:
    return {(one.name.removeprefix("refold_projector_"), *one.labels): one.value for one in samples}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_projector_says_what_it_applied_what_it_waits_for_and_how_far_a_rebuild_is(
    postgres: str,
) -> None:
    async def main() -> None:
        log = await opened(a_log(20))
        async with projecting(log, postgres) as (projector, _):
            await caught_up(projector, log)
            metrics = ProjectorMetrics(projector)
            (_, end) = await log.bounds(Topic.EVENTS, 0)
            said = found(metrics())
            assert said["partitions",] == 1
            assert said["records_total",] == said["position_offset", "0"] == end
            assert said["lag_records", "0"] == 0
            assert said["rows_total", "runs"] == said["rows_total", "steps"] == 20
            seconds = said["batch_seconds",]
            assert isinstance(seconds, Buckets)
            assert sum(seconds.counts) == said["batches_total",] == projector.stats.batches
            assert projector.stats.batches >= 1
            assert 0 < seconds.sum < 30
            assert said["generation",] == projector.generation
            assert said["commits_refused_total",] == 0
            assert said["outages_total", "database"] == said["away", "database"] == 0
            assert ("rebuild_records",) not in said

            # Somebody fills the other set.
            person = await connect(postgres, name="tests")
            await mark(person, NAMES, NAMES.other("a"), "building")
            await until(lambda: projector.rebuild is not None)
            said = found(metrics())
            assert (said["rebuild_records",], said["rebuild_lag_records",]) == (0, end)
            text = exposition([metrics])().decode()
            names = set(re.findall(r"^# TYPE (refold_\w+) ", text, re.MULTILINE))
            of_it = {m.name for m in CATALOGUE if m.of in ("projector", "every service")}
            assert names == of_it
            await mark(person, NAMES, NAMES.other("a"), "empty")
            await until(lambda: projector.rebuild is None)

            await close(person)

            # Its connections are lost, and it gets none: one outage, however often it tries.
            server, _, database = postgres.rpartition("/")
            person = await connect(f"{server}/{layout.DATABASE}", name="tests")
            await person.execute(f"alter database {database} allow_connections false")
            await person.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1",
                database,
            )
            await until(lambda: found(metrics())["away", "database"] == 1)
            await asyncio.sleep(3 * QUICK.retry_max_s)
            await person.execute(f"alter database {database} allow_connections true")
            await until(lambda: found(metrics())["away", "database"] == 0)
            outages = {one: projector.stats.outages[one] for one in ("database", "log", "registry")}
            assert outages == {"database": 1, "log": 0, "registry": 0}
            await close(person)
        await log.close()

    asyncio.run(main())


def test_a_batch_that_another_projector_was_faster_with_is_counted_as_refused(
    postgres: str,
) -> None:
    async def main() -> None:
        broker = a_log(1)
        writer = Writer(broker)
        writer.claim()
        log, second = await opened(broker), await opened(broker)
        async with projecting(log, postgres) as (one, _), projecting(second, postgres) as (two, _):
            await caught_up(one, log)
            await caught_up(two, second)
            number = 0
            while not one.stats.refused + two.stats.refused:
                number += 1
                assert number < 200
                writer.write(f"more-{number}", *started("load"), done("load#1"))
                await asyncio.sleep(0.02)
            await caught_up(one, log)
            both = [found(ProjectorMetrics(each)()) for each in (one, two)]
            refused = [float(said["commits_refused_total",]) for said in both]  # type: ignore[arg-type]
            assert sum(refused) >= 1
        await log.close()
        await second.close()

    asyncio.run(main())


def test_who_never_catches_up_still_says_how_far_behind_it_is(postgres: str) -> None:
    """The end of the log is looked at while there is something to read, too."""

    async def main() -> None:
        broker = a_log(10)
        log = await opened(broker)
        projector = Projector(log, postgres, settings=QUICK)
        live = await projector.prepare()
        await projector._pool.close()
        pool = Pool(postgres, size=2)
        lags: list[int] = []

        def busy(partition: int, _: object) -> None:
            writer = Writer(broker)
            writer.claim()
            for number in range(40):  # faster than it is read
                writer.write(f"more-{len(lags)}-{number}", *started("load"), done("load#1"))
            lags.append(one.progress.lag)
            if len(lags) == 5:
                stopping.set()

        settings = replace(QUICK, batch_events_max=10, read_bytes_max=2_000, look_every_s=0.0)
        store = Store(NAMES, live.name, CODEC)
        one = PartitionProjector(log, 0, store, pool, b"w" * 16, settings, observe=busy)
        stopping = asyncio.Event()
        await one.load()
        await one.follow(stopping)
        await pool.close()
        await log.close()
        assert max(lags) > 40
        assert lags[-1] > lags[0]

    asyncio.run(main())


def test_a_gateway_with_tables_says_how_many_connections_are_in_use(
    tmp_path: Path, postgres: str
) -> None:
    async def main() -> None:
        async with serving(tmp_path, worker=False, database_url=postgres, connections_max=1) as lab:
            metrics = GatewayMetrics(lab.shell)

            def connections() -> dict[str, float | Buckets]:
                mark = "refold_gateway_connections_"
                return {s.name.removeprefix(mark): s.value for s in metrics() if mark in s.name}

            assert connections() == {"in_use": 0, "max": 1, "waiting": 0}
            views = lab.gateway.views
            assert views is not None
            async with views._connection():
                waiting = asyncio.create_task(views.partitions())
                await until(lambda: connections()["waiting"] == 1)
                assert connections() == {"in_use": 1, "max": 1, "waiting": 1}
            await asyncio.wait({waiting})  # it got its turn; there are no tables
            assert waiting.exception() is not None
            assert connections() == {"in_use": 0, "max": 1, "waiting": 0}

    asyncio.run(main())
