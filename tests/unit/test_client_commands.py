"""Commands of a client, decided by a real worker, while appends are lost, doubled or unknown."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import pytest
from pydantic import BaseModel

from refold import App, Effect, NotDone, Policy, RunContext
from refold.client import Client, RunHandle
from refold.log import Record, Topic
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
from refold.log.port import Ack, Entry
from refold.worker import Worker
from refold_projections.fold import NO_CLAIM, PartitionFold, boundary
from refold_schemas.codec import Codec
from refold_schemas.commands import SLOT_CHARS_MAX, TEXT_CHARS_MAX, WHY_CHARS_MAX, StartRun
from refold_schemas.errors import BadCommandText, BadRunId, RegistryUnavailable, ValueRefused
from refold_schemas.errors.cli import (
    ClientClosed,
    CommandIdReused,
    CommandRefused,
    CommandUndecided,
    CommandUnknown,
    FunctionUnknown,
    InputInvalid,
    NothingToRetry,
    RunExists,
    RunFailedError,
    RunOver,
    RunUnknown,
    StepNotInDoubt,
    TooEarly,
)
from refold_schemas.errors.log import (
    AppendUnknown,
    BatchTooLarge,
    LogClosed,
    LogFull,
    LogShorter,
    LogUnavailable,
    OffsetOutOfRange,
)
from refold_schemas.events import StepResolved
from refold_schemas.registry import FileRegistry

T = TypeVar("T")
app = App("shop")


class Order(BaseModel):
    """What a run is given."""

    id: str
    pence: int = 4160
    branch: str = ""


@dataclass
class Receipt:
    """What a run returns."""

    order_id: str
    charge: str


class Bank:
    """The far system: it may keep silent after acting."""

    charges: list[str]
    silent: bool

    def __init__(self) -> None:
        self.charges, self.silent = [], False


bank = Bank()


@app.step(policy=Policy.ESCALATE, timeout=timedelta(milliseconds=400))
async def charge(fx: Effect, order_id: str, pence: int) -> str:
    bank.charges.append(order_id)
    if bank.silent:
        raise ConnectionError("no answer")
    if pence == 0:
        raise NotDone("nothing to charge")
    return f"charge-{order_id}"


@app.run("shop")
async def shop(ctx: RunContext, order: Order) -> Receipt:
    charging = ctx.step(charge, order.id, order.pence)
    if order.branch:
        return Receipt(order.id, *(await ctx.gather(**{order.branch: charging})).values())
    return Receipt(order.id, await charging)


@pytest.fixture(autouse=True)
def _fresh_bank() -> None:
    bank.charges, bank.silent = [], False


@asynccontextmanager
async def serving(broker: MemoryBroker) -> AsyncIterator[None]:
    log = MemoryLog(broker=broker, name="worker")
    await log.open(create=True)
    worker = Worker(app, log, watch=False)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task
        await log.close()


def play(
    scene: Callable[[Client], Awaitable[T]],
    *,
    broker: MemoryBroker | None = None,
    faults: Faults | None = None,
    handle: type[MemoryLog] = MemoryLog,
) -> T:
    """A scene with a worker and a client, each on a handle of its own; the client's is `handle`."""

    async def main() -> T:
        made = broker or MemoryBroker("shop", faults=faults)
        async with serving(made):
            log = handle(broker=made, name="client")
            await log.open(create=True)
            async with Client(log, by="ada") as client:
                return await scene(client)

    return asyncio.run(main())


class SlowToLook(MemoryLog):
    """Takes its time to say where a partition ends, as a log behind a network does."""

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        await asyncio.sleep(0.01)
        return await super().bounds(topic, partition)


class CommandFaults(Faults):
    """Each append of the client to ns.commands meets the next of these, then none."""

    def __init__(self, *faults: AppendFault) -> None:
        self.left = list(faults)
        self.batches: list[tuple[bytes | None, ...]] = []

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if call.handle != "client" or call.topic is not Topic.COMMANDS:
            return None
        self.batches.append(tuple(entry.value for entry in call.entries))
        return self.left.pop(0) if self.left else None


# ---- start


def test_a_run_is_started_and_its_result_comes_back_of_its_kind() -> None:
    async def scene(client: Client) -> object:
        handle = await client.start("shop", Order(id="o1"), run_id="r1")
        return await handle.result()

    assert play(scene) == Receipt("o1", "charge-o1")


def test_a_run_without_an_id_gets_a_fresh_one() -> None:
    async def scene(client: Client) -> tuple[str, str]:
        first = await client.start("shop", {"id": "o1"})
        second = await client.start("shop", {"id": "o1"})
        await asyncio.gather(first.result(), second.result())
        return first.run_id, second.run_id

    one, other = play(scene)
    assert one != other
    assert bank.charges == ["o1", "o1"]


def test_starts_that_wait_for_the_clients_first_look_leave_together() -> None:
    async def scene(client: Client) -> None:
        given = Order(id="o1")
        started = (client.start("shop", given, run_id=f"r{number}") for number in range(40))
        await asyncio.gather(*started)

    faults = CommandFaults()
    play(scene, faults=faults, handle=SlowToLook)
    assert [len(batch) for batch in faults.batches] == [40]


def test_a_run_id_with_the_same_input_is_that_run() -> None:
    async def scene(client: Client) -> list[object]:
        handles = [await client.start("shop", Order(id="o1"), run_id="r1") for _ in range(3)]
        return [await handle.result() for handle in handles]

    assert play(scene) == [Receipt("o1", "charge-o1")] * 3
    assert bank.charges == ["o1"]


def test_a_run_id_with_other_input_is_refused() -> None:
    async def scene(client: Client) -> None:
        await client.start("shop", Order(id="o1"), run_id="r1")
        await client.start("shop", Order(id="o2"), run_id="r1")

    with pytest.raises(RunExists, match="exists as shop with other input") as caught:
        play(scene)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("shoop", {"id": "o1"}, FunctionUnknown),
        ("shop", {"pence": "many"}, InputInvalid),
        ("shop", "o1", InputInvalid),
    ],
)
def test_what_cannot_be_started_is_refused_by_the_owner(
    name: str, given: object, error: type[CommandRefused]
) -> None:
    with pytest.raises(error) as caught:
        play(lambda client: client.start(name, given, run_id="r1"))
    assert caught.value.run_id == "r1"


def test_what_cannot_be_stored_is_refused_before_anything_is_sent() -> None:
    faults = CommandFaults()

    async def scene(client: Client) -> None:
        with pytest.raises(ValueRefused, match="input"):
            await client.start("shop", {"id": object()})
        with pytest.raises(BadRunId):
            await client.start("shop", {"id": "o1"}, run_id="")
        with pytest.raises(BadRunId):
            client.handle("a\nb")
        with pytest.raises(BatchTooLarge):
            await client.start("shop", {"id": "x" * 5_000_000})

    play(scene, faults=faults)
    assert faults.batches == []


def test_commands_of_one_moment_go_in_one_batch() -> None:
    faults = CommandFaults()

    async def scene(client: Client) -> list[object]:
        handles = await asyncio.gather(
            *(client.start("shop", {"id": str(n)}, run_id=f"r{n}") for n in range(50))
        )
        return list(await asyncio.gather(*(handle.result() for handle in handles)))

    found = play(scene, faults=faults)
    assert found == [Receipt(str(n), f"charge-{n}") for n in range(50)]
    assert [len(batch) for batch in faults.batches] == [50]


def test_commands_that_go_together_are_not_refused_for_what_they_are_together() -> None:
    """The log takes less than it said from the moment on in which they are sent."""

    class Narrowed(MemoryLog):
        async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
            self.broker.batch_size_max = 4_000
            return await super().append(topic, partition, entries)

    async def scene(client: Client) -> list[object]:
        handles = await asyncio.gather(
            *(client.start("shop", {"id": str(n)}, run_id=f"r{n}") for n in range(50))
        )
        return list(await asyncio.gather(*(handle.result() for handle in handles)))

    found = play(scene, handle=Narrowed)
    assert found == [Receipt(str(n), f"charge-{n}") for n in range(50)]


# ---- unknown is not failed


@pytest.mark.parametrize(
    "fault",
    [
        AppendFault(answer=Answer.ERROR),
        AppendFault(answer=Answer.NONE),
        AppendFault(answer=Answer.MINUS_ONE),
        AppendFault(store_at_ms=(), answer=Answer.ERROR),
        AppendFault(store_at_ms=(150,), answer=Answer.NONE),
        AppendFault(store_at_ms=(0, 20)),
    ],
    ids=["stored", "stored-none", "stored-minus-one", "lost", "late", "doubled"],
)
def test_a_command_is_applied_once_whatever_its_append_was_answered(fault: AppendFault) -> None:
    faults = CommandFaults(fault)

    async def scene(client: Client) -> object:
        handle = await client.start("shop", Order(id="o1"), run_id="r1")
        found = await handle.result()
        await asyncio.sleep(0.2)  # late copies arrive
        return found

    assert play(scene, faults=faults) == Receipt("o1", "charge-o1")
    assert bank.charges == ["o1"]
    assert len(set(faults.batches)) == 1, "a repeat has the same bytes, hence the same command_id"


def test_a_command_that_stays_unknown_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.outbox.REPEAT_MS", 200)
    faults = CommandFaults(*[AppendFault(store_at_ms=(), answer=Answer.ERROR)] * 50)

    async def scene(client: Client) -> None:
        await client.start("shop", Order(id="o1"), run_id="r1", command_id="c-1")

    with pytest.raises(CommandUnknown, match="not known whether the log has StartRun") as caught:
        play(scene, faults=faults)
    assert (caught.value.command_id, caught.value.exit_code) == ("c-1", 4)
    assert len(faults.batches) > 2


def test_an_append_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.outbox.ANSWER_MS", 50)
    faults = CommandFaults(AppendFault(answer=Answer.SILENCE))

    async def scene(client: Client) -> object:
        return await (await client.start("shop", Order(id="o1"), run_id="r1")).result()

    assert play(scene, faults=faults) == Receipt("o1", "charge-o1")
    assert (len(faults.batches), bank.charges) == (2, ["o1"])


def test_the_time_to_wait_holds_for_a_log_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.client.client.SEND_MIN_S", 0.1)
    monkeypatch.setattr("refold.client.outbox.ANSWER_MS", 10**7)
    faults = CommandFaults(AppendFault(answer=Answer.SILENCE, store_at_ms=()))

    async def scene(client: Client) -> None:
        await client.start(
            "shop", Order(id="o1"), command_id="c-1", within=timedelta(milliseconds=200)
        )

    with pytest.raises(CommandUnknown, match=r"it had not answered within 0\.2 s") as caught:
        play(scene, faults=faults)
    assert caught.value.command_id == "c-1"


def test_the_time_to_wait_holds_for_what_comes_before_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.client.client.SEND_MIN_S", 0.1)

    class SlowLog(MemoryLog):
        async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
            await asyncio.sleep(3_600)
            return await super().bounds(topic, partition)

    async def main() -> list[Record]:
        broker = MemoryBroker("shop")
        log = SlowLog(broker=broker)
        await log.open(create=True)
        async with Client(log) as client, asyncio.timeout(60):
            with pytest.raises(LogUnavailable, match=r"not sent") as caught:
                await client.start("shop", Order(id="o1"), within=timedelta(milliseconds=200))
            assert caught.value.stored is False
        return list(await log.read(Topic.COMMANDS, 0, 0))

    assert asyncio.run(main()) == []


def test_an_id_that_two_runs_use_at_once_is_decided_for_each() -> None:
    async def scene(client: Client) -> Sequence[object]:
        started = client.start("shop", Order(id="o1"), run_id="r1", command_id="c-1")
        refused = client.start("no-such", Order(id="o1"), run_id="r2", command_id="c-1")
        return await asyncio.gather(started, refused, return_exceptions=True)

    one, other = play(scene, broker=MemoryBroker("shop", partition_count=1))
    assert isinstance(one, RunHandle)
    assert isinstance(other, FunctionUnknown), "the decision on r1 says nothing of r2"


@pytest.mark.parametrize("ends_by", ["time", "cancellation"])
def test_callers_of_one_command_do_not_take_its_decision_from_each_other(ends_by: str) -> None:
    broker = MemoryBroker("shop")

    async def main() -> object:
        log = MemoryLog(broker=broker, name="client")
        await log.open(create=True)
        async with Client(log) as client:

            def start(within: timedelta | None) -> asyncio.Task[RunHandle]:
                order = Order(id="o1")
                return asyncio.create_task(
                    client.start("shop", order, run_id="r1", command_id="c-1", within=within)
                )

            hasty = start(timedelta(milliseconds=50) if ends_by == "time" else None)
            patient = start(None)
            if ends_by == "time":
                with pytest.raises(CommandUndecided):
                    await hasty
            else:
                assert await log.wait(Topic.COMMANDS, 0, 1, timeout_ms=10_000)
                await asyncio.sleep(0.05)
                hasty.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await hasty
            async with serving(broker), asyncio.timeout(20):
                return await (await patient).result()

    assert asyncio.run(main()) == Receipt("o1", "charge-o1")


def test_closing_does_not_wait_for_an_answer_that_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.client.outbox.CLOSE_MS", 20)
    faults = CommandFaults(AppendFault(answer=Answer.SILENCE))

    async def scene(client: Client) -> None:
        starting = asyncio.create_task(client.start("shop", Order(id="o1"), run_id="r1"))
        await asyncio.sleep(0.05)
        await client.close()
        await starting

    with pytest.raises(CommandUnknown, match="the client was closed"):
        play(scene, faults=faults)


def test_a_start_that_waits_for_its_schemas_is_not_sent_once_the_client_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, answers = MemoryBroker("shop"), asyncio.Event()

    async def ready(_: Codec, *kinds: type) -> None:
        await answers.wait()  # as a registry behind a network

    monkeypatch.setattr(Codec, "ready", ready)

    async def main() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=True)  # not the client's: it stays open
        async with Client(log) as client:
            starting = asyncio.create_task(client.start("shop", Order(id="o1")))
            await asyncio.sleep(0.01)
        answers.set()
        async with asyncio.timeout(5):
            await starting

    with pytest.raises(ClientClosed):
        asyncio.run(main())
    assert not broker.records(Topic.COMMANDS, 0)


def test_a_command_that_the_log_has_when_the_client_is_closed_is_unknown_not_unsent() -> None:
    async def main() -> None:
        log = MemoryLog(broker=MemoryBroker("shop"))
        await log.open(create=True)
        async with Client(log) as client:
            starting = asyncio.create_task(client.start("shop", Order(id="o1"), command_id="c-1"))
            assert await log.wait(Topic.COMMANDS, 0, 0, timeout_ms=10_000)
            await asyncio.sleep(0.01)
        await starting

    with pytest.raises(CommandUnknown, match="closed before it was decided") as caught:
        asyncio.run(main())
    assert (caught.value.stored, caught.value.command_id) == (True, "c-1")


def test_a_client_whose_closing_is_cancelled_has_closed_all_the_same() -> None:
    faults = CommandFaults(AppendFault(answer=Answer.SILENCE))

    async def main() -> None:
        log = MemoryLog(broker=MemoryBroker("shop", faults=faults), name="client")
        await log.open(create=True)
        client = Client(log)
        client._owns_log = True
        await client.__aenter__()
        starting = asyncio.create_task(client.start("shop", Order(id="o1")))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):  # less than it waits for the append's answer
                await client.close()
        with pytest.raises(CommandUnknown):
            await starting
        with pytest.raises(LogClosed):
            await log.bounds(Topic.COMMANDS, 0)

    asyncio.run(main())


def test_a_full_disk_is_told_at_once_since_nothing_was_stored() -> None:
    class Full(MemoryLog):
        async def append(self, topic, partition, entries):  # type: ignore[no-untyped-def]
            raise LogFull(self.url)

    async def main() -> None:
        log = Full(broker=MemoryBroker("shop"))
        await log.open(create=True)
        async with Client(log) as client:
            await client.start("shop", Order(id="o1"))

    with pytest.raises(LogFull):
        asyncio.run(main())


def test_a_disk_that_is_full_for_the_repeat_says_nothing_of_the_append_before_it() -> None:
    class ThenFull(MemoryLog):
        tries = 0

        async def append(self, topic, partition, entries):  # type: ignore[no-untyped-def]
            self.tries += 1
            if self.tries > 1:
                raise LogFull(self.url)
            await super().append(topic, partition, entries)
            raise AppendUnknown(topic=topic.value, partition=partition, reason="no answer")

    broker = MemoryBroker("shop")

    async def main() -> None:
        log = ThenFull(broker=broker)
        await log.open(create=True)
        async with Client(log) as client:
            await client.start("shop", Order(id="o1"), command_id="c-1")

    with pytest.raises(CommandUnknown, match=r"no answer.*repeated: .*full") as caught:
        asyncio.run(main())
    assert caught.value.command_id == "c-1"
    assert len(broker.records(Topic.COMMANDS, 0)) == 1, "it is stored, and will be applied"


def test_a_command_repeated_by_another_client_gets_the_first_decision() -> None:
    broker = MemoryBroker("shop")

    async def scene(client: Client) -> object:
        for _ in range(2):
            handle = await client.start("shop", Order(id="o1"), run_id="r1", command_id="c-1")
        log = MemoryLog(broker=broker)
        await log.open(create=False)
        async with Client(log) as other:
            again = await other.start("shop", Order(id="o1"), run_id="r1", command_id="c-1")
            assert again.run_id == handle.run_id
            return await again.result()

    assert play(scene, broker=broker) == Receipt("o1", "charge-o1")
    stored = [
        Codec(FileRegistry()).decode(r.value or b"") for r in broker.records(Topic.COMMANDS, 0)
    ]
    assert [type(one) for one in stored] == [StartRun] * 3


def test_without_a_worker_a_command_is_undecided_and_kept() -> None:
    broker = MemoryBroker("shop")

    async def alone() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=True)
        async with Client(log) as client:
            await client.start(
                "shop", Order(id="o1"), run_id="r1", within=timedelta(milliseconds=30)
            )

    with pytest.raises(CommandUndecided, match="no worker has taken StartRun") as caught:
        asyncio.run(alone())
    assert caught.value.exit_code == 3
    found = play(lambda client: _appears(client, "r1"), broker=broker)
    assert found == Receipt("o1", "charge-o1")


LONG = 5_000


@pytest.mark.parametrize(
    ("send", "field"),
    [
        (lambda c: c.start("shop", run_id="r1", command_id="x" * LONG), "command_id has 5,000"),
        (lambda c: c.start("shop", run_id="r1", command_id=""), "command_id is empty"),
        (lambda c: c.start("shop", run_id="r1", command_id="\udc80"), "command_id has half of a"),
        (lambda c: c.start("shop", run_id="r1", by="x" * LONG), "by has 5,000"),
        (lambda c: c.start("shop", run_id="r1", by=7), "by is int, not text"),
        (lambda c: c.start("x" * LONG, run_id="r1"), "run has 5,000"),
        (lambda c: c.start("shop", run_id="r1", version="x" * LONG), "version has 5,000"),
        (lambda c: c.resolve("r1", "x" * 10_001, happened=False), "slot has 10,001"),
        (lambda c: c.resolve("r1", "charge#1", happened=False, why="x" * 10_001), "why has 10,001"),
        (lambda c: c.retry("r1", slot="x" * 10_001), "slot has 10,001"),
        (lambda c: c.retry("r1", why="\ud83d"), "why has half of a"),
        (lambda c: c.cancel("r1", command_id="x" * 1_001), "command_id has 1,001"),
    ],
)
def test_a_text_that_no_worker_takes_is_refused_before_anything_is_sent(
    send: Callable[[Client], Awaitable[object]], field: str
) -> None:
    broker = MemoryBroker("shop")

    async def alone() -> None:
        log = MemoryLog(broker=broker)
        await log.open(create=True)
        async with Client(log) as client:
            async with asyncio.timeout(10):  # sent, it would be waited for for ever
                await send(client)

    with pytest.raises(BadCommandText, match=field) as caught:
        asyncio.run(alone())
    assert (caught.value.code, caught.value.exit_code) == ("R104", 2)
    assert not broker.records(Topic.COMMANDS, 0)


def test_a_step_in_a_branch_with_a_long_name_can_be_resolved() -> None:
    async def scene(client: Client) -> object:
        bank.silent = True
        handle = await client.start("shop", Order(id="o1", branch="a" * 2_000), run_id="r1")
        (doubt,) = (await handle.wait()).in_doubt
        assert len(doubt.slot) > TEXT_CHARS_MAX
        await client.resolve("r1", doubt.slot, happened=True, result="charge-77")
        return await handle.result()

    assert play(scene) == Receipt("o1", "charge-77")


def test_a_step_that_nobody_could_name_is_refused_before_it_acts() -> None:
    async def scene(client: Client) -> object:
        given = Order(id="o1", branch="a" * SLOT_CHARS_MAX)
        return await (await client.start("shop", given, run_id="r1")).result()

    with pytest.raises(RunFailedError, match=r"its slot.* has 10,0\d\d characters, 10,000 are"):
        play(scene)
    assert bank.charges == []


def test_texts_as_long_as_they_may_be_are_decided() -> None:
    async def scene(client: Client) -> None:
        full = "x" * TEXT_CHARS_MAX
        await client.start("shop", Order(id="o1"), run_id="r1", command_id=full, by=full)
        await client.handle("r1").result()
        other = "y" * TEXT_CHARS_MAX
        with pytest.raises(RunOver):
            await client.cancel("r1", command_id=other, by=full, why="x" * WHY_CHARS_MAX)

    play(scene)


async def _appears(client: Client, run_id: str) -> object:
    """The result of a run that is not there yet."""
    handle = client.handle(run_id)
    while await client.find(run_id) is None:  # noqa: ASYNC110 (the log is what is polled)
        await asyncio.sleep(0.01)
    return await handle.result()


# ---- resolve, retry, cancel


async def _in_doubt(client: Client) -> None:
    await _in_doubt_as(client, "r1")


async def _in_doubt_as(client: Client, run_id: str) -> None:
    bank.silent = True
    handle = await client.start("shop", Order(id="o1"), run_id=run_id)
    seen = await handle.wait()
    assert (seen.status, seen.needs) == ("in_doubt", "person")


def test_a_person_says_that_it_happened() -> None:
    async def scene(client: Client) -> tuple[object, str]:
        await _in_doubt(client)
        await client.resolve(
            "r1", "charge#1", happened=True, result="charge-77", by="ada", why="seen in the bank"
        )
        result = await client.handle("r1").result()
        events = [record.event async for record in client.history("r1")]
        (said,) = [event for event in events if isinstance(event, StepResolved)]
        return result, f"{said.by}: {said.why}"

    assert play(scene) == (Receipt("o1", "charge-77"), "ada: seen in the bank")
    assert bank.charges == ["o1"]


def test_absence_is_not_believed_too_early_and_then_tried_again() -> None:
    async def scene(client: Client) -> object:
        await _in_doubt(client)
        bank.silent = False
        while True:
            try:
                await client.resolve("r1", "charge#1", happened=False, why="not in the bank")
            except TooEarly:
                await asyncio.sleep(0.02)
            else:
                return await client.handle("r1").result()

    assert play(scene) == Receipt("o1", "charge-o1")
    assert bank.charges == ["o1", "o1"]


def test_a_repeat_whose_first_decision_is_trimmed_is_granted_or_unknown_never_refused() -> None:
    broker = MemoryBroker("shop")

    async def resolve(client: Client, *, happened: bool) -> None:
        await client.resolve(
            "r1", "charge#1", happened=happened, result="charge-77", command_id="c-9"
        )

    async def first(client: Client) -> None:
        await _in_doubt(client)
        await resolve(client, happened=True)
        await client.handle("r1").result()
        bank.silent = False
        with pytest.raises(RunFailedError):
            await (await client.start("shop", Order(id="o2", pence=0), run_id="r2")).result()
        await client.retry("r2", slot="charge#1", command_id="c-8")
        with pytest.raises(RunFailedError):
            await client.handle("r2").result()

    async def again(client: Client) -> None:
        await resolve(client, happened=True)
        with pytest.raises(CommandUnknown, match="in the log no more") as caught:
            await resolve(client, happened=False)
        assert caught.value.stored
        with pytest.raises(CommandUnknown, match="in the log no more"):
            await client.retry("r2", slot="charge#1", command_id="c-8")

    play(first, broker=broker)  # its worker leaves a checkpoint at the log's end
    broker.trim(Topic.EVENTS, 0, len(broker.records(Topic.EVENTS, 0)))
    play(again, broker=broker)


def test_what_keeps_a_repeat_from_its_first_decision_does_not_say_that_it_was_not_sent() -> None:
    broker = MemoryBroker("shop")

    class Forgets(MemoryLog):
        """Reads what is new, and nothing of what stood there before."""

        broken = False

        async def read(
            self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
        ) -> Sequence[Record]:
            if self.broken and topic is Topic.EVENTS and offset == 0:
                raise LogUnavailable(self.url, "the disk's first block is gone")
            return await super().read(topic, partition, offset, size_max=size_max)

    async def scene(client: Client) -> None:
        for _ in range(2):
            await client.start("shop", Order(id="o1"), run_id="r1", command_id="c-1")
            assert isinstance(client.log, Forgets)
            client.log.broken = True

    with pytest.raises(CommandUnknown, match="first block is gone") as caught:
        play(scene, broker=broker, handle=Forgets)
    assert caught.value.stored


@pytest.mark.parametrize("answers", [0, 1])
def test_what_is_read_behind_a_trimmed_decision_has_the_time_of_its_command(
    answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.client.SEND_MIN_S", 0.1)
    monkeypatch.setattr("refold.client.tail.WAIT_MS", 10)

    class Trimmed(MemoryLog):
        """Once a command is stored, what decides it is trimmed, and the log falls silent."""

        sent = trimmed = False
        left = answers

        async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
            self.sent = True
            return await super().append(topic, partition, entries)

        async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
            if self.sent and not self.trimmed:
                self.trimmed = True
                raise OffsetOutOfRange(
                    topic=topic.value, partition=partition, offset=offset, start=9, end=9
                )
            return await super().wait(topic, partition, offset, timeout_ms=timeout_ms)

        async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
            if self.trimmed and topic is Topic.EVENTS:
                if not self.left:
                    await asyncio.sleep(3_600)
                self.left -= 1
            return await super().bounds(topic, partition)

    async def main() -> None:
        log = Trimmed(broker=MemoryBroker("shop"))
        await log.open(create=True)
        async with Client(log) as client, asyncio.timeout(20):
            await client.start("shop", Order(id="o1"), within=timedelta(milliseconds=200))

    with pytest.raises(CommandUnknown, match="was not read within") as caught:
        asyncio.run(main())
    assert caught.value.stored


def test_a_registry_that_does_not_answer_is_named_and_not_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.client.client.SEND_MIN_S", 0.1)

    async def ready(_: Codec, *kinds: type) -> None:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(Codec, "ready", ready)

    async def main() -> None:
        log = MemoryLog(broker=MemoryBroker("shop"))
        await log.open(create=True)
        async with Client(log, registry_url="http://127.0.0.1:8081") as client:
            await client.start("shop", Order(id="o1"), within=timedelta(milliseconds=200))

    with pytest.raises(RegistryUnavailable, match=r"8081 .* within 0\.2 s; .* not sent"):
        asyncio.run(main())


def test_what_is_not_in_doubt_cannot_be_resolved() -> None:
    async def scene(client: Client) -> None:
        await (await client.start("shop", Order(id="o1"), run_id="r1")).result()
        for slot in ("charge#1", "charge#9"):
            with pytest.raises(StepNotInDoubt, match="is not in doubt"):
                await client.resolve("r1", slot, happened=True, result="x")
        with pytest.raises(RunUnknown):
            await client.resolve("r2", "charge#1", happened=False)

    play(scene)


def test_a_failed_run_is_retried() -> None:
    async def scene(client: Client) -> None:
        handle = await client.start("shop", Order(id="o1", pence=0), run_id="r1")
        with pytest.raises(RunFailedError, match="nothing to charge"):
            await handle.result()
        await client.retry("r1", why="they promised", fresh_key=True)
        with pytest.raises(RunFailedError):
            await handle.result()

    play(scene)
    assert bank.charges == ["o1", "o1"]


def test_a_retry_under_an_id_that_was_used_is_the_same_retry() -> None:
    async def scene(client: Client) -> None:
        handle = await client.start("shop", Order(id="o1", pence=0), run_id="r1")
        with pytest.raises(RunFailedError):
            await handle.result()
        for _ in range(2):
            await client.retry("r1", command_id="k")
        for other in ({"fresh_key": True}, {"slot": "charge#2"}):
            with pytest.raises(CommandIdReused, match=r"a retry of charge#1"):
                await client.retry("r1", command_id="k", **other)

    play(scene)


def test_a_run_that_goes_well_cannot_be_retried() -> None:
    async def scene(client: Client) -> None:
        await _in_doubt(client)
        with pytest.raises(NothingToRetry):
            await client.retry("r1")
        with pytest.raises(RunUnknown):
            await client.retry("r2")

    play(scene)


def test_cancel_returns_when_it_is_recorded_and_may_be_said_twice() -> None:
    async def scene(client: Client) -> tuple[str, str]:
        await _in_doubt(client)
        handle = client.handle("r1")
        await handle.cancel(why="no longer wanted")
        await handle.cancel(why="really")
        state = await handle.state()
        assert state.cancel is not None
        await client.resolve("r1", "charge#1", happened=True, result="charge-o1")
        await handle.wait()
        with pytest.raises(RunOver):
            await handle.cancel()
        return state.cancel.by, state.cancel.why

    assert play(scene) == ("ada", "no longer wanted")


# ---- long logs


class Reads(Faults):
    """Notes from which offsets a client reads ns.events."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def on_read(self, call: ReadCall) -> ReadFault | None:
        if call.handle == "reader" and call.topic is Topic.EVENTS:
            self.offsets.append(call.offset)
        return None


def test_a_client_begins_at_a_checkpoint_and_sees_what_a_whole_fold_sees() -> None:
    broker = MemoryBroker("shop")

    async def work(client: Client) -> None:
        for number in range(20):
            await (await client.start("shop", Order(id="o"), run_id=f"r{number}")).result()
        await _in_doubt_as(client, "r20")

    play(work, broker=broker)  # the worker writes a checkpoint when it stops
    _, end = broker.bounds(Topic.EVENTS, 0)
    whole = PartitionFold(Codec(FileRegistry()))
    whole.apply_all(broker.records(Topic.EVENTS, 0))
    reads = broker.faults = Reads()

    async def read() -> None:
        log = MemoryLog(broker=broker, name="reader")
        await log.open(create=False)
        for run_id in ("r3", "r20"):
            async with Client(log) as client:
                seen = await client.boundary_at(run_id)
                assert seen.boundary == boundary(whole.runs[run_id], NO_CLAIM)
                assert (seen.offset, seen.released) == (end, True)
        async with Client(log) as client:
            assert await client.state("r20") == whole.runs["r20"]
            assert (await client.state("r3")).ended == whole.runs["r3"].ended
            assert {one.run_id for one in await client.runs()} == set(whole.runs)
            assert (await client.fold_of(0)).position == whole.position
            assert await client.handle("r3").result() == Receipt("o", "charge-o")

    asyncio.run(read())
    assert min(reads.offsets) > 3, "not from the start"


def test_a_decision_behind_a_newer_checkpoint_is_not_missed() -> None:
    broker = MemoryBroker("shop")

    async def main() -> object:
        log = MemoryLog(broker=broker)
        await log.open(create=True)
        async with Client(log) as client:
            starting = asyncio.create_task(client.start("shop", Order(id="o1"), run_id="r1"))
            await asyncio.sleep(0.01)  # the command is stored, its client waits
            async with serving(broker):  # decides it, does the run, writes a checkpoint, ends
                handle = await starting
                waiting = asyncio.create_task(handle.result())
                while (await client.boundary("r1")).status != "completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return await waiting

    assert asyncio.run(main()) == Receipt("o1", "charge-o1")


def test_a_wait_for_what_was_cut_from_the_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.tail.LOOK_S", 0.0)
    monkeypatch.setattr("refold.client.tail.WAIT_MS", 20)
    broker = MemoryBroker()

    async def scene() -> None:
        log = MemoryLog(broker=broker, name="client")
        await log.open(create=True)
        async with Client(log) as client:
            bank.silent = True
            async with serving(broker):
                handle = await client.start("shop", Order(id="cut"), run_id="cut")
                await handle.wait(lambda seen: seen.needs == "person")
                waiting = asyncio.ensure_future(handle.result())
                await asyncio.sleep(0.05)
            broker.cut(Topic.EVENTS, client.partition_of("cut"), 1)
            with pytest.raises(LogShorter) as why:
                await waiting
        await log.close()
        assert why.value.end == 1 < why.value.read_to

    asyncio.run(scene())
