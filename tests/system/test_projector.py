"""The projector on a real Postgres: its rows are the fold's, whatever happens to it."""

import asyncio
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from refold.log import Entry, Topic
from refold.log.memory import MemoryBroker
from refold.projector import Projector
from refold.projector.partition import PartitionProjector
from refold_projections.fold.plain import boundary_json
from refold_projections.tables.database import Pool, close, connect
from refold_projections.tables.store import Store
from refold_schemas.codec import Codec
from refold_schemas.errors.tables import LogShorterThanTables, TablesMissing, TablesOfAnother
from refold_schemas.events import (
    AmountsDeclared,
    FindingRecorded,
    RunCompleted,
    StepFailed,
    StepResolved,
    TimerScheduled,
)
from refold_schemas.registry import FileRegistry
from refold_schemas.values import Argument, ErrorInfo, encode_value
from support.histories import Action, actions, play
from support.postgres import rows
from support.projecting import (
    NAMES,
    QUICK,
    caught_up,
    differences,
    opened,
    project,
    projecting,
    stored,
    verified,
)
from support.written_log import Writer, done, intended, started


def a_log() -> tuple[MemoryBroker, Writer]:
    broker = MemoryBroker("default", partition_count=1)
    writer = Writer(broker)
    writer.claim()
    writer.write(
        "order-1", *started("load", "charge", "mail"), done("load#1"), intended("charge#1")
    )
    writer.write("order-2", *started(given={"id": 7}), done("load#1", {"total": "41.60"}))
    writer.write("order-2", RunCompleted(encode_value({"ok": True})))
    return broker, writer


def ask(url: str, sql: str, *values: Any) -> list[dict[str, Any]]:
    return asyncio.run(rows(url, sql, *values))


def test_the_views_say_what_the_fold_says(postgres: str) -> None:
    broker, writer = a_log()
    writer.write("order-1", TimerScheduled("settle:charge#1", 1, "settle", "charge#1", 5_000))

    async def play_it() -> list[str]:
        log = await opened(broker)
        await project(log, postgres)
        return differences(await verified(log, postgres))

    assert asyncio.run(play_it()) == []
    [one, two] = ask(postgres, "select * from v1_runs order by run_id")
    assert (one["status"], one["done_count"], two["status"]) == ("running", 1, "completed")
    assert one["sentence"].startswith("one step complete, charge under way since ")
    assert one["sentence"].endswith("two steps remaining")
    assert json.loads(two["result"]) == {"ok": True}
    assert json.loads(two["input"]) == {"id": 7}
    [step] = ask(postgres, "select * from v1_steps where run_id = 'order-2'")
    assert (step["status"], json.loads(step["result"])) == ("done", {"total": "41.60"})
    [timer] = ask(postgres, "select * from v1_timers")
    assert timer["due_at"].timestamp() == 5
    [partition] = ask(postgres, "select * from v1_partitions")
    assert (partition["lag"], partition["owner"], partition["epoch"]) == (0, "worker-1", 1)


def test_a_claim_puts_open_steps_in_doubt_also_of_runs_that_are_not_in_memory(
    postgres: str,
) -> None:
    broker, writer = a_log()

    async def play_it() -> list[str]:
        log = await opened(broker)
        await project(log, postgres)
        writer.claim("worker-2", process="p2")
        await project(log, postgres)
        return differences(await verified(log, postgres))

    assert asyncio.run(play_it()) == []
    [run] = ask(postgres, "select * from v1_runs where run_id = 'order-1'")
    assert (run["status"], run["needs"], run["in_doubt_count"]) == ("in_doubt", "person", 1)
    assert run["in_doubt_since"] is not None
    [bound] = ask(postgres, "select * from v1_boundary where run_id = 'order-1'")
    said = json.loads(bound["boundary"])
    assert [one["slot"] for one in said["in_doubt"]] == ["charge#1"]
    assert said["sentence"] == run["sentence"] == bound["sentence"]
    [attempt] = ask(postgres, "select * from v1_attempts")
    assert (attempt["status"], attempt["evidence"]) == ("in_doubt", [])
    [effect] = ask(postgres, "select * from v1_effects")
    assert (effect["outcome"], effect["evidence"]) == ("in_doubt", None)


def test_amounts_and_findings_are_what_the_ledger_says(postgres: str) -> None:
    broker = MemoryBroker("default", partition_count=1)
    writer = Writer(broker)
    writer.claim()
    for number, pence in enumerate((4160, 100), start=1):
        key = f"0b7d3f2e-6d8c-5a4b-9e21-00000000000{number}"
        run_id = f"order-{number}"
        arguments = (
            Argument("order", encode_value(run_id)),
            Argument("pence", encode_value(pence)),
            Argument("fee", encode_value(Decimal("0.250"))),
        )
        intent = replace(intended("charge#1", key=key), arguments=arguments)
        declared = AmountsDeclared("charge", ("pence", "fee"))
        writer.write(run_id, *started(), declared, intent)
        resolved = StepResolved(
            "charge#1", 1, "done", "lookup", encode_value("r"), None, True, None, None, None
        )
        writer.write(run_id, resolved)

    def finding(finding_id: str, status: str) -> FindingRecorded:
        return FindingRecorded(
            *(finding_id, "missing", "charge#1", "charge", "k", "differs"),
            *("refold why order-1", status, "ada", "", f"c-{finding_id}-{status}"),
        )

    writer.write("order-1", finding("f-1", "open"), finding("f-2", "open"))

    async def play_it() -> list[str]:
        log = await opened(broker)
        await project(log, postgres)
        writer.write("order-1", finding("f-2", "agreed"))
        await project(log, postgres)
        return differences(await verified(log, postgres))

    assert asyncio.run(play_it()) == []
    [total] = ask(
        postgres,
        "select sum((amounts->>'pence')::numeric) as pence, sum((amounts->>'fee')::numeric) as fee "
        "from v1_effects where outcome = 'done'",
    )
    assert (total["pence"], total["fee"]) == (4260, Decimal("0.500"))
    found = ask(postgres, "select finding_id, settled from v1_findings order by finding_id")
    assert found == [
        {"finding_id": "f-1", "settled": False},
        {"finding_id": "f-2", "settled": True},
    ]


def test_a_boundary_from_the_tables_is_what_the_command_line_prints(postgres: str) -> None:
    broker, writer = a_log()
    error = ErrorInfo("CardDeclined", "shop:CardDeclined", "no", None)
    writer.write("order-1", StepFailed("charge#1", 1, error, True, False, None, None, None))
    writer.write("order-1", intended("mail#1"), intended("refund#1", policy="resolvable"))
    writer.claim("worker-2", process="p2")
    writer.write("order-1", intended("mail#1", attempt=2))

    async def play_it() -> dict[str, object]:
        log = await opened(broker)
        await project(log, postgres)
        from zoneinfo import ZoneInfo

        from refold.client import Client
        from refold_projections.fold import sentence

        async with Client(log) as client:
            seen = await client.boundary_at("order-1")
        from datetime import UTC, datetime

        zone = ZoneInfo("UTC")
        told = sentence(seen.boundary, zone, datetime.now(UTC).date())
        return boundary_json(seen.boundary, seen.partition, seen.offset, zone, told)

    printed = asyncio.run(play_it())
    [bound] = ask(postgres, "select boundary from v1_boundary where run_id = 'order-1'")
    assert json.loads(bound["boundary"]) == json.loads(json.dumps(printed))


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions)
def test_rows_in_postgres_are_those_of_the_fold(postgres: str, steps: list[Action]) -> None:
    """Two halves by two projectors, on any history; hypothesis' histories share a database."""
    partition = play(steps)

    async def play_it() -> list[str]:
        connection = await connect(postgres)
        for schema in ("public", "refold_a", "refold_b"):
            await connection.execute(f"drop schema if exists {schema} cascade")
        await connection.execute("create schema public")
        await close(connection)
        half = play(steps)
        del half.log[len(half.log) // 2 :]
        broker = stored(half)
        log = await opened(broker)
        await project(log, postgres)
        for one in partition.log[len(half.log) :]:
            broker.put(Topic.EVENTS, 0, [Entry(one.key, one.value, one.header)])
        await project(log, postgres)
        found = await verified(log, postgres)
        assert [one.offset_next for one in found] == [len(partition.log)]
        return differences(found)

    assert asyncio.run(play_it()) == []


def test_of_two_projectors_at_once_each_record_is_applied_once(postgres: str) -> None:
    broker, writer = a_log()

    async def play_it() -> list[str]:
        log, other = await opened(broker), await opened(broker)
        async with projecting(log, postgres) as (one, _), projecting(other, postgres) as (two, _):
            for number in range(60):
                run_id = f"run-{number}"
                writer.write(run_id, *started("a"), intended("a#1"))
                await asyncio.sleep(0.005)
                writer.write(run_id, done("b#1"))
            await caught_up(one, log)
            await caught_up(two, other)
        return differences(await verified(log, postgres))

    assert asyncio.run(play_it()) == []


def test_verify_names_the_first_difference(postgres: str) -> None:
    broker, _ = a_log()

    async def play_it() -> list[str]:
        log = await opened(broker)
        await project(log, postgres)
        connection = await connect(postgres)
        await connection.execute("update refold_a.runs set done_count = 9 where run_id = 'order-2'")
        await close(connection)
        return differences(await verified(log, postgres))

    assert asyncio.run(play_it()) == [
        "partition 0, runs (order-2), column done_count: the log says 1, the table 9"
    ]


def test_verify_in_slices_finds_what_it_finds_at_once(postgres: str) -> None:
    broker, writer = a_log()
    for number in range(40):
        writer.write(f"run-{number}", *started(), done("a#1"))

    async def play_it() -> tuple[int, int, list[str]]:
        log = await opened(broker)
        await project(log, postgres)
        [whole] = await verified(log, postgres)
        [sliced] = await verified(log, postgres, memory_bytes_max=30_000)
        return whole.row_count, sliced.row_count, differences([whole, sliced])

    whole, sliced, found = asyncio.run(play_it())
    assert whole == sliced > 80
    assert found == []


def test_a_log_that_is_shorter_than_the_tables_stops_the_projector(postgres: str) -> None:
    broker, _ = a_log()
    shorter, writer = a_log()
    writer.write("order-3", *started())

    async def play_it() -> None:
        log = await opened(shorter)
        await project(log, postgres)
        cut = await opened(broker)
        with pytest.raises(LogShorterThanTables, match="it ends at"):
            await project(cut, postgres)
        # Filled up by others, it shows no gap.
        again = Writer(broker)
        again.claim("worker-9", process="p9")
        again.write("order-4", *started(), done("a#1"))
        with pytest.raises(LogShorterThanTables, match="another record"):
            await project(cut, postgres)

    asyncio.run(play_it())


def test_tables_of_another_namespace_are_left_alone(postgres: str) -> None:
    broker, _ = a_log()

    async def play_it() -> None:
        await project(await opened(broker), postgres)
        other = MemoryBroker("other", partition_count=1)
        with pytest.raises(TablesOfAnother, match="'default', not of 'other'"):
            await Projector(await opened(other), postgres).run()

    asyncio.run(play_it())


def test_tables_that_somebody_drops_end_the_projector_with_what_to_do(postgres: str) -> None:
    broker, writer = a_log()

    async def play_it() -> None:
        log = await opened(broker)
        one = Projector(log, postgres, settings=QUICK)
        running = asyncio.create_task(one.run())
        await caught_up(one, log)
        connection = await connect(postgres)
        await connection.execute("drop schema refold_a cascade")
        await close(connection)
        writer.write("order-3", *started())
        with pytest.raises(TablesMissing, match="refold projections migrate"):
            await running

    asyncio.run(play_it())


def test_a_cancellation_is_not_lost_while_a_batch_ends() -> None:
    """F39: whoever stops a rebuild by a signal stops it also where a batch is being given up."""

    async def main() -> None:
        store = Store(NAMES, "a", Codec(FileRegistry()))
        pool = Pool("postgresql://127.0.0.1:1/x", size=1)
        log = await opened(MemoryBroker("default", partition_count=1))
        one = PartitionProjector(log, 0, store, pool, b"writer", QUICK)
        cancelled = asyncio.Event()

        async def slow_to_end() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                await asyncio.sleep(0)
                raise

        one._writing = asyncio.create_task(slow_to_end())
        await asyncio.sleep(0)
        dropping = asyncio.create_task(one._drop())
        await cancelled.wait()
        dropping.cancel()
        await asyncio.wait({dropping})
        assert dropping.cancelled()

    asyncio.run(main())
