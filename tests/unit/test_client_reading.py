"""What a client reads without a worker: boundaries, histories, lists, ends, by the claim rule."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from refold.client import BlockingClient, Client, HistoryRecord
from refold.client.reading import Reading
from refold.log import Record, Topic
from refold.log.memory import Faults, MemoryBroker, MemoryLog, ReadCall, ReadFault
from refold_projections.fold import Verdict
from refold_schemas.codec import KIND_REPORT, RecordHeader
from refold_schemas.errors import UndecodableRecord
from refold_schemas.errors.cli import (
    ClientClosed,
    ResultNotThere,
    RunCancelledError,
    RunFailedError,
    RunUnknown,
)
from refold_schemas.errors.log import LogUnavailable, LogUrlInvalid
from refold_schemas.events import (
    AttemptReported,
    PartitionReleased,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    StepInDoubt,
)
from refold_schemas.values import ErrorInfo, encode_value
from support.written_log import (
    CODEC,
    KEY,
    NOON_MS,
    Writer,
    acted,
    done,
    intended,
    started,
    writer_for,
)

T = TypeVar("T")
COMPLETED = RunCompleted(encode_value({"refunded": True}))
DECLINED = ErrorInfo("CardDeclined", "shop:CardDeclined", "no funds", None)
SOON = timedelta(milliseconds=30)


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker("shop")
    made.recreate()
    return made


@pytest.fixture
def writer(broker: MemoryBroker) -> Writer:
    made = Writer(broker)
    made.claim()
    return made


def ask(broker: MemoryBroker, question: Callable[[Client], Awaitable[T]]) -> T:
    """The answer of a client on a handle of its own."""

    async def main() -> T:
        log = MemoryLog(broker=broker)
        await log.open(create=False)
        async with Client(log) as client:
            return await question(client)

    return asyncio.run(main())


# ---- boundaries


def test_a_boundary_is_read_with_no_worker_alive(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started("load", "charge", "mail"), done("load#1"), intended("charge#1"))
    seen = ask(broker, lambda client: client.boundary("r1"))
    assert [entry.slot for entry in seen.done] == ["load#1"]
    assert [(e.slot, e.effect_key, e.since_ms) for e in seen.in_doubt] == [
        ("charge#1", KEY, NOON_MS + 4_000)
    ]
    assert (seen.status, seen.remaining) == ("in_doubt", ("charge", "mail"))


def test_an_attempt_of_a_living_owner_is_under_way(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), intended("charge#1"))
    broker.suggest("worker-1")  # a heartbeat: the owner lives
    seen = ask(broker, lambda client: client.boundary("r1"))
    assert ([e.slot for e in seen.under_way], seen.in_doubt) == (["charge#1"], ())


def test_after_a_release_nothing_is_under_way(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), intended("charge#1"))
    writer.write(None, PartitionReleased("the worker stops"))
    broker.suggest("worker-2")  # somebody else holds the lease, and has not claimed yet
    seen = ask(broker, lambda client: client.boundary("r1"))
    assert ([e.slot for e in seen.in_doubt], seen.under_way) == (["charge#1"], ())


def test_events_of_a_superseded_claim_do_not_count(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started("charge"), intended("charge#1"))
    fenced = Writer(broker, claim_id=writer.claim_id, epoch=writer.epoch, n=writer.n)
    writer.claim("worker-2", process="p2")
    fenced.write("r1", acted("charge#1"))
    seen = ask(broker, lambda client: client.boundary("r1"))
    assert [e.slot for e in seen.in_doubt] == ["charge#1"]


def test_the_second_run_that_is_asked_for_is_found_too(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started(command_id="c1"), done("load#1"))
    writer.write("r2", *started(command_id="c2"), done("load#1"), done("load#2"))

    async def both(client: Client) -> list[int]:
        first = await client.boundary("r1")
        second = await client.boundary("r2")
        writer.write("r1", done("load#2"), done("load#3"))
        return [len(first.done), len(second.done), len((await client.boundary("r1")).done)]

    assert ask(broker, both) == [1, 2, 3]


def test_a_run_that_does_not_exist_is_named_with_its_namespace(broker: MemoryBroker) -> None:
    with pytest.raises(RunUnknown, match=r"no run 'r9' in namespace shop"):
        ask(broker, lambda client: client.boundary("r9"))


def test_a_boundary_knows_the_position_that_it_holds_at(
    broker: MemoryBroker, writer: Writer
) -> None:
    last = writer.write("r1", *started())
    seen = ask(broker, lambda client: client.boundary_at("r1"))
    assert (seen.partition, seen.offset, seen.owner) == (0, last + 1, "worker-1")
    assert seen.by_this_claim
    writer.claim("worker-2")
    assert not ask(broker, lambda client: client.boundary_at("r1")).by_this_claim


# ---- lists


def test_runs_of_all_partitions_are_listed_the_latest_first() -> None:
    broker = MemoryBroker("shop", partition_count=4)
    broker.recreate()
    writers: dict[int, Writer] = {}
    for number in range(12):
        run_id = f"run-{number}"
        writer = writer_for(broker, run_id)
        if writer.partition not in writers:
            writer.claim()
            writers[writer.partition] = writer
        writer = writers[writer.partition]
        writer.at_ms = NOON_MS + number * 60_000
        writer.write(run_id, *started(run="shop" if number % 2 else "other"))
        if number >= 8:
            writer.write(run_id, COMPLETED)
    assert len(writers) > 1
    found = ask(broker, lambda client: client.runs())
    assert [one.run_id for one in found] == [f"run-{n}" for n in range(11, -1, -1)]
    ended = ask(broker, lambda client: client.runs(status=["completed"], run="shop"))
    assert [one.run_id for one in ended] == ["run-11", "run-9"]


def test_runs_are_listed_while_others_begin(
    broker: MemoryBroker, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.questions.RUNS_AT_ONCE", 2)
    for number in range(20):
        writer.write(f"r{number}", *started(command_id=f"c{number}"))

    async def both(client: Client) -> int:
        listing = asyncio.create_task(client.runs())
        for number in range(20, 40):
            writer.write(f"r{number}", *started(command_id=f"c{number}"))
            assert await client.find(f"r{number}") is not None
        return len(await listing)

    assert ask(broker, both) >= 20


def test_runs_that_wait_for_a_person_can_be_listed(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), intended("charge#1"))
    writer.write("r1", StepInDoubt("charge#1", 1, "no answer", True))
    writer.write("r2", *started(command_id="c2"))
    found = ask(broker, lambda client: client.runs(needs="person"))
    assert [(one.run_id, one.status, one.reason) for one in found] == [
        ("r1", "in_doubt", "no answer")
    ]


# ---- history


async def _history(client: Client) -> list[HistoryRecord]:
    return [record async for record in client.history("r1", claims=True)]


def test_a_history_marks_reports_that_are_none(broker: MemoryBroker, writer: Writer) -> None:
    """What the fold passes by, the history must not show as if it counted."""
    writer.write("r1", *started(), intended("charge#1"))
    reported = AttemptReported("charge#1", 1, KEY, "completed", encode_value(1), None, "worker-1")
    evidence = writer.report("r1", reported, writer.claim_id, 2)
    odd = writer.report("r1", RunCancelled("somebody's"), writer.claim_id, 2)
    header = RecordHeader(KIND_REPORT, writer.claim_id, writer.epoch, 2, NOON_MS, 0)
    unreadable = writer.raw("r1", b"?", header=header.pack())
    other = writer.write("r1", reported)
    records = {record.offset: record for record in ask(broker, _history)}
    assert records[evidence].counted
    for offset, why in (
        (odd, "the header of a report over another event"),
        (unreadable, "a report that cannot be read"),
        (other, "a report under the header of an event"),
    ):
        assert not records[offset].counted
        assert (records[offset].why_skipped or "").startswith(why)


def test_a_history_shows_what_does_not_count_and_why(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started())
    writer.write("other", *started(command_id="c2"))
    copy = writer.again("r1", done("load#1"), n=0)
    fenced = Writer(broker, claim_id=writer.claim_id, epoch=writer.epoch, n=writer.n)
    claim = writer.claim("worker-2")
    late = fenced.write("r1", done("load#1"))
    good = writer.write("r1", done("load#1"))
    writer.n += 1  # a record is lost
    behind = writer.write("r1", done("load#2"))
    foreign = writer.raw("r1", b"hello", header=b"?")
    records = {record.offset: record for record in ask(broker, _history)}
    assert records[copy].verdict is Verdict.DUPLICATE
    assert records[late].verdict is Verdict.FENCED
    assert records[behind].verdict is Verdict.BROKEN
    assert records[foreign].verdict is Verdict.FOREIGN
    skipped = [offset for offset, record in records.items() if not record.counted]
    assert skipped == [copy, late, behind, foreign]
    assert all(records[offset].why_skipped for offset in skipped)
    assert records[good].counted
    assert records[good].why_skipped is None
    assert (records[claim].verdict, records[claim].epoch) == (Verdict.CLAIM, 2)
    assert records[good].event == done("load#1")


def test_a_body_that_cannot_be_decoded_is_shown_with_its_problem(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started())
    offset = writer.raw("r1", CODEC.encode(done("load#1"))[:-3])
    record = ask(broker, _history)[-1]
    assert (record.offset, record.counted, record.event) == (offset, True, None)
    assert record.problem


def test_claims_are_shown_between_the_records_of_the_run_only(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.claim("worker-2")
    writer.write("r1", *started())
    writer.claim("worker-3")
    last = writer.claim("worker-4")
    writer.write("r1", done("load#1"))
    writer.claim("worker-5")
    shown = [r.offset for r in ask(broker, _history) if r.verdict is Verdict.CLAIM]
    assert shown == [last]


# ---- ends


def test_a_result_comes_back_as_it_was_stored(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), COMPLETED)
    assert ask(broker, lambda client: client.handle("r1").result()) == {"refunded": True}


def test_a_result_can_be_read_into_a_type(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), RunCompleted(encode_value(["2026-08-01"])))
    from datetime import date

    found = ask(broker, lambda client: client.handle("r1").result(as_type=list[date]))
    assert found == [date(2026, 8, 1)]


def test_a_failed_run_raises_its_error(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), RunFailed(DECLINED))
    with pytest.raises(RunFailedError, match="CardDeclined: no funds") as caught:
        ask(broker, lambda client: client.handle("r1").result())
    assert caught.value.type_name == "CardDeclined"


def test_a_cancelled_run_raises_who_asked_and_why(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), RunCancelRequested("ada", "no longer wanted", "c7"))
    writer.write("r1", RunCancelled("nothing is open"))
    with pytest.raises(RunCancelledError, match="cancelled by ada: no longer wanted"):
        ask(broker, lambda client: client.handle("r1").result())


def test_a_result_of_no_run_is_refused(broker: MemoryBroker) -> None:
    with pytest.raises(RunUnknown):
        ask(broker, lambda client: client.handle("r1").result())


def test_a_result_that_does_not_come_in_time_says_so(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started())
    with pytest.raises(ResultNotThere, match=r"has not ended within 0.03 s"):
        ask(broker, lambda client: client.handle("r1").result(within=SOON))


def test_a_run_that_was_resumed_has_not_ended(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), RunFailed(DECLINED))

    async def wait(client: Client) -> object:
        handle = client.handle("r1")
        with pytest.raises(RunFailedError):
            await handle.result()
        writer.write("r1", RunResumed("ada", "again", None, False, "c3"))
        waiting = asyncio.create_task(client.handle("r1").result())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        writer.write("r1", COMPLETED)
        return await waiting

    assert ask(broker, wait) == {"refunded": True}


def test_a_failure_before_a_resumption_that_the_state_knows_is_no_end(
    broker: MemoryBroker, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows reads on from a checkpoint, piece by piece: the failure before the resumption."""
    monkeypatch.setattr("refold.client.tail.READ_SIZE_MAX", 1)
    writer.write("r1", *started(), RunFailed(DECLINED))
    writer.write("r1", RunResumed("ada", "again", None, False, "c3"))

    class Slow(MemoryLog):
        async def read(self, *place: Any, **how: Any) -> Sequence[Record]:
            await asyncio.sleep(0.001)  # as a log behind a network: others have their turn
            return await super().read(*place, **how)

    async def main() -> object:
        log = Slow(broker=broker)
        await log.open(create=False)
        async with Client(log) as client:
            waiting = asyncio.create_task(client.handle("r1").result())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            writer.write("r1", COMPLETED)
            return await waiting

    assert asyncio.run(main()) == {"refunded": True}


def test_the_time_for_a_result_holds_for_a_run_that_is_resumed_under_it(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started(), RunFailed(DECLINED))

    class Resumes(MemoryLog):
        """The run is resumed once its failure was read."""

        reads = 0

        async def read(self, *place: Any, **how: Any) -> Sequence[Record]:
            found = await super().read(*place, **how)
            self.reads += 1
            if self.reads == 1:
                writer.write("r1", RunResumed("ada", "again", None, False, "c3"))
            return found

    async def main() -> None:
        log = Resumes(broker=broker)
        await log.open(create=False)
        async with Client(log) as client, asyncio.timeout(5):
            with pytest.raises(RunFailedError):
                await client.handle("r1").result(within=timedelta(seconds=1))

    asyncio.run(main())


def test_an_end_that_cannot_be_decoded_is_an_error_with_its_place(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started())

    async def wait(client: Client) -> object:
        waiting = asyncio.create_task(client.handle("r1").result())
        await asyncio.sleep(0.01)
        writer.raw("r1", CODEC.encode(COMPLETED)[:-1])
        return await waiting

    with pytest.raises(UndecodableRecord) as caught:
        ask(broker, wait)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("events", 0, 2)


def test_an_end_that_cannot_be_decoded_is_said_to_who_asks_later(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started())
    writer.raw("r1", CODEC.encode(COMPLETED)[:-1])
    with pytest.raises(UndecodableRecord):
        ask(broker, lambda client: client.handle("r1").result(within=timedelta(seconds=5)))


def test_an_end_under_a_superseded_claim_is_no_end(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started())
    fenced = Writer(broker, claim_id=writer.claim_id, epoch=writer.epoch, n=writer.n)

    async def wait(client: Client) -> object:
        waiting = asyncio.create_task(client.handle("r1").result())
        await asyncio.sleep(0.01)
        writer.claim("worker-2")
        fenced.write("r1", RunCompleted(encode_value("never")))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        writer.write("r1", COMPLETED)
        return await waiting

    assert ask(broker, wait) == {"refunded": True}


def test_any_number_of_handles_share_one_reader(broker: MemoryBroker, writer: Writer) -> None:
    names = [f"r{number}" for number in range(300)]
    for name in names:
        writer.write(name, *started(command_id=name))

    async def wait(client: Client) -> list[object]:
        waiting = [asyncio.create_task(client.handle(name).result()) for name in names]
        await asyncio.sleep(0.05)
        before = broker.read_count
        for name in names:
            writer.write(name, RunCompleted(encode_value(name)))
        found = await asyncio.gather(*waiting)
        assert broker.read_count - before < 20
        return list(found)

    assert ask(broker, wait) == names


def test_waiting_ends_where_only_a_person_can_help(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started(), intended("charge#1"))
    broker.suggest("worker-1")

    async def wait(client: Client) -> tuple[str, str | None]:
        waiting = asyncio.create_task(client.handle("r1").wait())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        writer.write("r1", StepInDoubt("charge#1", 1, "no answer", True))
        seen = await waiting
        return seen.status, seen.needs

    assert ask(broker, wait) == ("in_doubt", "person")


def test_a_change_that_another_question_has_read_is_not_waited_for(
    broker: MemoryBroker, writer: Writer
) -> None:
    """The offset of a boundary is where it holds, however far the fold has come since."""
    writer.write("r1", *started())

    class Busy(MemoryLog):
        """Somebody asks about the run, which ends, while the first one asks for its owner."""

        client: Client
        asked = 0

        async def owner_lives(self, partition: int) -> bool | None:
            self.asked += 1
            if self.asked == 1:
                writer.write("r1", COMPLETED)
                await self.client.find("r1")
            return await super().owner_lives(partition)

    async def main() -> str:
        log = Busy(broker=broker)
        await log.open(create=False)
        async with Client(log) as log.client:
            seen = await log.client.handle("r1").wait(within=timedelta(seconds=5))
            return seen.status

    assert asyncio.run(main()) == "completed"


def test_waiting_has_a_limit(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started())
    with pytest.raises(ResultNotThere):
        ask(broker, lambda client: client.handle("r1").wait(within=SOON))


def test_waiting_has_a_limit_where_the_log_takes_its_time(
    broker: MemoryBroker, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.handle.LOOK_MIN_S", 0.1)
    writer.write("r1", *started())

    class SlowLog(MemoryLog):
        async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
            await asyncio.sleep(3_600)
            return await super().bounds(topic, partition)

    async def main() -> None:
        log = SlowLog(broker=broker)
        await log.open(create=True)
        async with Client(log) as client, asyncio.timeout(60):
            await client.handle("r1").wait(within=SOON)

    with pytest.raises(ResultNotThere):
        asyncio.run(main())


# ---- the client itself


def test_a_read_that_fails_for_a_moment_is_repeated(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started())

    class Shaky(Faults):
        left = 3

        def on_read(self, call: ReadCall) -> ReadFault | None:
            if call.topic is Topic.EVENTS and call.offset > 1 and self.left:
                self.left -= 1
                return ReadFault(refused=True)
            return None

    async def wait(client: Client) -> object:
        waiting = asyncio.create_task(client.handle("r1").result())
        await asyncio.sleep(0.01)
        broker.faults = Shaky()
        writer.write("r1", COMPLETED)
        return await waiting

    assert ask(broker, wait) == {"refunded": True}


def test_whoever_waits_hears_that_the_client_was_closed(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started())

    async def wait(client: Client) -> None:
        waiting = [
            asyncio.create_task(client.handle("r1").result()),
            asyncio.create_task(client.handle("r1").wait()),
        ]
        await asyncio.sleep(0.01)
        await client.close()
        for one in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(one, ClientClosed)
        with pytest.raises(ClientClosed):
            await client.boundary("r1")

    ask(broker, wait)


def test_whoever_follows_a_run_hears_that_the_client_was_closed(
    broker: MemoryBroker, writer: Writer
) -> None:
    writer.write("r1", *started())

    async def wait(client: Client) -> None:
        follower, late = client.follow("r1"), client.follow("r1")
        assert isinstance((await anext(follower)).event, RunStarted)
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0.01)
        await client.close()
        async with asyncio.timeout(5):
            for one in (waiting, anext(late)):
                with pytest.raises(ClientClosed):
                    await one

    ask(broker, wait)


def test_a_client_of_another_namespace_is_refused(broker: MemoryBroker) -> None:
    async def main() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=False)
        async with Client(log, namespace="other"):
            raise AssertionError("it was opened")

    with pytest.raises(LogUrlInvalid, match="holds namespace shop"):
        asyncio.run(main())


def test_progress_is_told_while_a_log_is_read(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started())
    told: list[Reading] = []

    async def main() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=False)
        async with Client(log, on_progress=told.append) as client:
            await client.boundary("r1")

    asyncio.run(main())
    assert (told[-1].partition_count, told[-1].fraction) == (1, 1.0)
    assert told[-1].size == told[-1].size_about > 100


def test_progress_counts_all_partitions_and_never_goes_back() -> None:
    broker = MemoryBroker("shop", partition_count=4)
    for number in range(20):
        one = writer_for(broker, f"r{number}")
        one.claim(epoch=number + 1)
        one.write(f"r{number}", *started("load"), done("load#1"))
    told: list[Reading] = []

    async def main() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=True)
        async with Client(log, on_progress=told.append) as client:
            await client.runs()
            _ = [one async for one in client.history("r1")]

    asyncio.run(main())
    fractions = [one.fraction for one in told if one.partition_count == 4]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert any(0 < one < 1 for one in fractions)
    assert told[-1].partition_count == 1


def test_a_long_read_can_be_cancelled_and_the_next_one_is_whole(
    broker: MemoryBroker, writer: Writer
) -> None:
    for number in range(1_200):
        writer.write(f"r{number}", *started())

    async def main() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=False)
        async with Client(log) as client:
            cancelled = 0
            for turns in range(12):
                reading = asyncio.create_task(client.runs())
                for _ in range(turns):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait([reading])
                cancelled += reading.cancelled()
            assert cancelled > 0
            assert len(await client.runs()) == 1_200

    asyncio.run(main())


# ---- without an event loop


def test_the_blocking_client_answers_without_a_loop(broker: MemoryBroker, writer: Writer) -> None:
    writer.write("r1", *started("load"), done("load#1"), COMPLETED)
    with BlockingClient("memory://shop-blocking", create=True) as empty:
        assert empty.runs() == []
        with pytest.raises(RunUnknown):
            empty.boundary("r1")
    with pytest.raises(ClientClosed):
        empty.runs()
    log = MemoryLog(broker=broker)
    asyncio.run(log.open(create=False))
    with BlockingClient(log) as client:
        assert client.handle("r1").result() == {"refunded": True}
        assert [one.run_id for one in client.runs()] == ["r1"]
        assert [record.offset for record in client.history("r1")] == [1, 2, 3, 4]
        assert client.handle("r1").boundary().remaining == ()
        assert client.find("r2") is None


def test_the_blocking_client_leaves_no_thread_where_the_log_does_not_open() -> None:
    import threading

    before = set(threading.enumerate())
    with (
        pytest.raises(LogUnavailable),
        BlockingClient("sqlite:////nowhere/at/all/log.db"),
    ):
        raise AssertionError("it was opened")
    # Threads of other tests may end meanwhile; none of this one may be left.
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("refold-client")] == []
