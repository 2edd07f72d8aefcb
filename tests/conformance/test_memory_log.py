"""The log in memory against the suite, and what only it can do: faults, virtual time, loops."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from refold.log import Ack, Entry, Log, Topic, open_log
from refold.log.memory import (
    Answer,
    AppendCall,
    AppendFault,
    Faults,
    MemoryBroker,
    MemoryLog,
    ReadCall,
    ReadFault,
)
from refold.testing.log_conformance import (
    CHECKS,
    NEEDS,
    Check,
    LogConformance,
    MakeLog,
    run_check,
)
from refold_schemas.errors import AppendUnknown, LogClosed, LogMissing, LogUnavailable
from support.memory_maker import MakeMemoryLog, VirtualTime


class TestMemoryLog(LogConformance):
    @pytest.fixture
    def log(self) -> Log:
        return MemoryLog("memory://suite")

    @pytest.fixture
    def make_log(self, log: Log) -> MakeLog:
        return MakeMemoryLog()


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if not NEEDS[check]], ids=lambda check: check.__name__
)
def test_the_suite_needs_no_more_than_one_handle(check: Check) -> None:
    """An adapter's author may begin with the fixture `log` alone."""
    broker = MemoryBroker("alone", batch_size_max=128 * 1024)
    asyncio.run(run_check(check, MakeLog(MemoryLog("memory://alone", broker=broker))))


CLAIM = [Entry(None, b"claim", b"h" * 50)]


class Script(Faults):
    """Faults of the appends to come, in order; none when they are used up."""

    def __init__(self, *faults: AppendFault | None) -> None:
        self.appends = list(faults)
        self.reads: list[ReadFault | None] = []
        self.calls: list[tuple[str, Topic, int]] = []

    def on_append(self, call: AppendCall) -> AppendFault | None:
        self.calls.append((call.handle, call.topic, call.partition))
        return self.appends.pop(0) if self.appends else None

    def on_read(self, call: ReadCall) -> ReadFault | None:
        return self.reads.pop(0) if self.reads else None


def broker_with(faults: Faults, time: VirtualTime) -> MemoryBroker:
    return MemoryBroker("sim", now_ms=time.now_ms, schedule=time.schedule, faults=faults)


async def open_handle(broker: MemoryBroker, name: str = "") -> MemoryLog:
    log = MemoryLog("memory://sim", broker=broker, name=name)
    await log.open(create=True)
    return log


async def turn() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_ownership_is_not_announced_before_the_claim_is_durable() -> None:
    """The acknowledgement comes 5 s late, and then it is a timeout of a claim that is stored."""

    async def main() -> None:
        time = VirtualTime()
        late = AppendFault(answer=Answer.ERROR, answer_at_ms=5_000)
        broker = broker_with(Script(late), time)
        log = await open_handle(broker)
        claim = asyncio.create_task(log.append(Topic.EVENTS, 0, CLAIM))
        for _ in range(49):
            await turn()
            assert not claim.done(), "nothing to act on yet"
            time.advance(100)
        await turn()
        time.advance(100)
        await turn()
        with pytest.raises(AppendUnknown):
            await claim
        assert len(await log.read(Topic.EVENTS, 0, 0)) == 1, "unknown is not failed"
        # Claim anew: the second one is the barrier, the first stands before it.
        assert (await log.append(Topic.EVENTS, 0, CLAIM)).offset == 1

    asyncio.run(main())


@pytest.mark.parametrize("answer", [Answer.ERROR, Answer.NONE, Answer.MINUS_ONE])
@pytest.mark.parametrize("store_at_ms", [(0,), (), (900,), (0, 900)])
def test_an_acknowledgement_has_a_third_outcome_unknown(
    answer: Answer, store_at_ms: tuple[int, ...]
) -> None:
    """An error, offset -1, offset None: stored at once, never, late, or twice, nobody can tell."""

    async def main() -> None:
        time = VirtualTime()
        fault = AppendFault(store_at_ms=store_at_ms, answer=answer, answer_at_ms=100)
        broker = broker_with(Script(fault), time)
        log = await open_handle(broker)
        append = asyncio.create_task(log.append(Topic.EVENTS, 0, CLAIM))
        await turn()
        time.advance(100)
        await turn()
        match answer:
            case Answer.ERROR:
                with pytest.raises(AppendUnknown):
                    await append
            case Answer.NONE:
                assert await append == Ack(None)
            case _:
                assert await append == Ack(-1)
        barrier = await log.append(Topic.EVENTS, 0, [Entry(None, b"barrier")])
        time.advance(1_000)
        found = [record.value for record in broker.records(Topic.EVENTS, 0)]
        assert found.count(b"claim") == len(store_at_ms)
        assert barrier.offset == found.index(b"barrier") == sum(at == 0 for at in store_at_ms)

    asyncio.run(main())


def test_a_batch_may_be_stored_after_its_process_has_died() -> None:
    """What was sent is under way, whoever is gone: the next owner's claim is the barrier."""

    async def main() -> None:
        time = VirtualTime()
        broker = broker_with(Script(AppendFault(store_at_ms=(300,), answer_at_ms=300)), time)
        old, new = await open_handle(broker, "old"), await open_handle(broker, "new")
        append = asyncio.create_task(old.append(Topic.EVENTS, 0, CLAIM))
        await turn()
        old.kill()
        append.cancel()
        assert (await new.append(Topic.EVENTS, 0, [Entry(None, b"new")])).offset == 0
        time.advance(300)
        assert [r.value for r in broker.records(Topic.EVENTS, 0)] == [b"new", b"claim"]
        with pytest.raises(LogClosed):
            await old.append(Topic.EVENTS, 0, CLAIM)
        with contextlib.suppress(asyncio.CancelledError):
            await append

    asyncio.run(main())


def test_offsets_with_holes_end_at_the_end_of_the_log() -> None:
    """Control records and compaction leave holes; the gap that they make has nothing in it."""

    async def main() -> None:
        time = VirtualTime()
        broker = broker_with(Script(None, AppendFault(hole=2)), time)
        log = await open_handle(broker)
        first = (await log.append(Topic.EVENTS, 0, [*CLAIM, *CLAIM])).offset
        second = (await log.append(Topic.EVENTS, 0, [*CLAIM, *CLAIM])).offset
        assert (first, second) == (0, 4)
        broker.drop(Topic.EVENTS, 0, 1)
        gap = await log.read(Topic.EVENTS, 0, 1)
        assert [record.offset for record in gap] == [4, 5], "read, and found nothing foreign"
        broker.hole(Topic.EVENTS, 0)
        assert await log.bounds(Topic.EVENTS, 0) == (0, 7)
        assert await log.read(Topic.EVENTS, 0, 6) == [], "the log ends here although 6 < 7"

    asyncio.run(main())


def test_a_cut_log_gives_its_offsets_to_others() -> None:
    """After an unclean election the same offsets carry other records; the bounds go back."""

    async def main() -> None:
        broker = broker_with(Faults(), VirtualTime())
        log = await open_handle(broker)
        for at in range(10):
            await log.append(Topic.EVENTS, 0, [Entry(None, b"%d" % at)])
        broker.cut(Topic.EVENTS, 0, 6)
        assert await log.bounds(Topic.EVENTS, 0) == (0, 6)
        assert (await log.append(Topic.EVENTS, 0, [Entry(None, b"other")])).offset == 6
        assert [r.value for r in await log.read(Topic.EVENTS, 0, 5)] == [b"5", b"other"]

    asyncio.run(main())


def test_topics_made_anew_have_other_ids() -> None:
    async def main() -> None:
        broker = broker_with(Faults(), VirtualTime())
        log = await open_handle(broker)
        before = log.facts.topic_ids
        await log.append(Topic.EVENTS, 0, CLAIM)
        broker.recreate()
        assert not set(before) & set(log.facts.topic_ids)
        assert await log.bounds(Topic.EVENTS, 0) == (0, 0)

    asyncio.run(main())


def test_reads_can_be_refused_and_cut_short() -> None:
    async def main() -> None:
        script = Script()
        script.reads = [ReadFault(refused=True), ReadFault(record_count_max=1), None]
        log = await open_handle(broker_with(script, VirtualTime()))
        await log.append(Topic.EVENTS, 0, [*CLAIM, *CLAIM])
        with pytest.raises(LogUnavailable):
            await log.read(Topic.EVENTS, 0, 0)
        assert [len(await log.read(Topic.EVENTS, 0, 0)) for _ in range(2)] == [1, 2]

    asyncio.run(main())


def test_the_group_may_suggest_one_partition_to_two_owners() -> None:
    """A suggestion is no more than that; a simulation has to be able to give a wrong one."""

    class Both(Faults):
        def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
            return frozenset({0})

    async def main() -> None:
        broker = broker_with(Both(), VirtualTime())
        one, two = await open_handle(broker, "one"), await open_handle(broker, "two")
        assert (await one.suggest("a")) == (await two.suggest("b"))

    asyncio.run(main())


def test_a_waiter_of_another_loop_wakes_in_its_own() -> None:
    """A simulation has a loop for each process; one that is not run must not be run by another."""
    broker = MemoryBroker("sim")
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    woken_in: list[asyncio.AbstractEventLoop] = []

    async def wait(log: MemoryLog) -> None:
        assert await log.wait(Topic.EVENTS, 0, 0, timeout_ms=60_000)
        woken_in.append(asyncio.get_running_loop())

    waiter = one.run_until_complete(open_handle(broker))
    writer = other.run_until_complete(open_handle(broker))
    task = one.create_task(wait(waiter))
    one.run_until_complete(turn())
    other.run_until_complete(writer.append(Topic.EVENTS, 0, CLAIM))
    assert not task.done(), "the process is frozen: its loop does not run"
    one.run_until_complete(task)
    assert woken_in == [one]
    one.close()
    other.close()


def test_a_loop_that_is_closed_is_a_dead_process() -> None:
    broker = MemoryBroker("sim")
    dead, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    waiter = dead.run_until_complete(open_handle(broker))
    task = dead.create_task(waiter.wait(Topic.EVENTS, 0, 0, timeout_ms=60_000))
    dead.run_until_complete(turn())
    task.cancel()
    dead.run_until_complete(asyncio.gather(task, return_exceptions=True))
    late = dead.create_future()
    from refold.log.memory import _Waiter

    broker.stream(Topic.EVENTS, 0).waiters.append(_Waiter(late, dead, threading.get_ident()))
    dead.close()
    writer = other.run_until_complete(open_handle(broker))
    ack = other.run_until_complete(writer.append(Topic.EVENTS, 0, CLAIM))
    assert ack.offset == 0
    other.close()


def test_threads_of_one_process_share_a_log() -> None:
    """A blocking client has a loop in a thread of its own."""
    broker = MemoryBroker("sim")
    found: list[int] = []

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        return thread

    async def read() -> None:
        log = await open_handle(broker)
        offset = 0
        while offset < 400:
            assert await log.wait(Topic.EVENTS, 0, offset, timeout_ms=60_000)
            records = await log.read(Topic.EVENTS, 0, offset)
            found.extend(record.offset for record in records)
            offset = records[-1].offset + 1

    async def write() -> None:
        log = await open_handle(broker)
        for _ in range(100):
            await log.append(Topic.EVENTS, 0, [*CLAIM, *CLAIM])

    for thread in [run(read), run(write), run(write)]:
        thread.join(60)
    assert found == list(range(400))


def test_one_url_is_one_log_within_a_process() -> None:
    async def main() -> None:
        one, two = open_log("memory://shared"), open_log("memory://shared")
        apart = open_log("memory://apart")
        assert await one.open(create=True)
        assert not await two.open(create=False)
        with pytest.raises(LogMissing):
            await apart.open(create=False)
        await one.append(Topic.EVENTS, 0, CLAIM)
        assert len(await two.read(Topic.EVENTS, 0, 0)) == 1

    asyncio.run(main())


def test_owner_lives_says_what_the_lease_shows() -> None:
    async def main() -> None:
        time = VirtualTime()
        broker = broker_with(Faults(), time)
        log = await open_handle(broker)
        assert await log.owner_lives(0) is False
        await log.suggest("a")
        assert await log.owner_lives(0) is True
        time.advance(broker.lease_ms)
        assert await log.owner_lives(0) is None
        await log.give_up("a")
        assert await log.owner_lives(0) is False

    asyncio.run(main())
