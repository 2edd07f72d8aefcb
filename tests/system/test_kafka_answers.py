"""What a worker makes of a broker's answers that are none, and of a log that was cut (F17, F19)."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import errors
from aiokafka.structs import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs forget to export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from refold import App, Client, Effect, Policy, RunFailedError
from refold.engine.ending import LogWasCut
from refold.log import Ack, Topic
from refold.worker import Worker, WorkerEvent, WorkerSettings
from support.kafka_broker import Broker
from support.kafka_maker import MakeKafkaLog

ANSWERS = (
    errors.OutOfOrderSequenceNumber,
    errors.InvalidProducerEpoch,
    errors.UnknownProducerId,
    errors.UnknownError,
    errors.NotLeaderForPartitionError,
    errors.NotEnoughReplicasAfterAppendError,
    errors.RequestTimedOutError,
)
MORE = 3
WITHIN_S = 90.0


@pytest.fixture
def make(own_broker: Broker) -> MakeKafkaLog:
    return MakeKafkaLog(own_broker, partitions=1, session_ms=6_000)


class Shop:
    """An app with one effect, and how often each key arrived."""

    def __init__(self) -> None:
        self.app = App("shop")
        self.done: Counter[str] = Counter()
        done = self.done

        @self.app.step(policy=Policy.KEYED, key_ttl=None)
        async def charge(fx: Effect, pence: int) -> str:
            done[fx.key] += 1
            return fx.key

        @self.app.run("order")
        async def order(ctx: Any, pence: int) -> str:
            key: str = await ctx.step(charge, pence)
            return key


@asynccontextmanager
async def working(
    make: MakeKafkaLog, app: App, said: list[WorkerEvent], *, create: bool = True
) -> AsyncIterator[tuple[Worker, "asyncio.Task[None]"]]:
    log = make()
    await log.open(create=create)
    settings = WorkerSettings(append_timeout_ms=5_000, reclaim_max_ms=200)
    worker = Worker(app, log, on_event=said.append, settings=settings)
    task = asyncio.create_task(worker.run())
    try:
        yield worker, task
    finally:
        worker.stop()
        await asyncio.wait([task])
        await log.close()


async def until(check: Any, what: str) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not check():  # noqa: ASYNC110 - what a thread and a broker do, no event tells
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN_S:g} s: {what}") from None


def kinds(said: list[WorkerEvent]) -> list[str]:
    return [event.kind for event in said]


def is_said(said: list[WorkerEvent], before: int) -> bool:
    return "warning" in kinds(said[before:])


class Answers:
    """Lets the appends to the events end with an error, stored or not."""

    def __init__(self, worker: Worker) -> None:
        self.sender: Any = worker.log._sender  # type: ignore[attr-defined]
        self.send = self.sender.send
        self.tries = 0

    def are(self, error: type[Exception], *, stored: bool) -> None:
        self.tries = 0

        async def answered(place: TopicPartition, batch: bytes) -> Ack:
            if not place.topic.endswith(Topic.EVENTS.value):
                ack: Ack = await self.send(place, batch)
                return ack
            self.tries += 1
            if stored:
                await self.send(place, batch)
            raise error

        self.sender.send = answered

    def more(self, tries: int) -> bool:
        return self.tries >= tries + MORE

    def are_right(self) -> None:
        self.sender.send = self.send


def test_an_answer_that_is_none_ends_the_claim_and_is_said_once_f17(
    make: MakeKafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a producer may say of its own state: a claim ends, and another one is made."""
    monkeypatch.setattr("refold.log.kafka.APPEND_TIMEOUT_MS", 100)
    said: list[WorkerEvent] = []
    shop = Shop()

    async def main() -> None:
        async with (
            working(make, shop.app, said) as (worker, _),
            Client(worker.log) as client,
        ):
            await (await client.start("order", 0, run_id="first")).result()
            answers = Answers(worker)
            for number, error in enumerate(ANSWERS, 1):
                before = len(said)
                answers.are(error, stored=number % 2 == 0)
                run_id = f"order-{number}"
                starting = asyncio.create_task(client.start("order", number, run_id=run_id))
                await until(partial(is_said, said, before), f"{error} is said")
                await until(partial(answers.more, answers.tries), f"more tries of {error}")
                answers.are_right()
                await (await starting).result()
                told = kinds(said[before:])
                # One claim ended, and of the claims that were tried after it, one was told.
                assert told.count("ended_claim") == told.count("warning") == 1, (error, told)

    asyncio.run(main())
    assert len(shop.done) == len(ANSWERS) + 1
    assert set(shop.done.values()) == {1}, "no intent was acknowledged before: none acted twice"


def test_a_limit_below_what_the_topics_said_costs_a_claim_and_is_said_once(
    make: MakeKafkaLog, own_broker: Broker
) -> None:
    """What is over it is refused by itself from then on; the rest of the partition goes on."""
    said: list[WorkerEvent] = []
    shop = Shop()
    calls: list[str] = []

    @shop.app.step(policy=Policy.KEYED, key_ttl=None)
    async def fetch(fx: Effect, size: int) -> str:
        calls.append(fx.key)
        return random.Random(size).randbytes(size).hex()

    @shop.app.run("reading")
    async def reading(ctx: Any, size: int) -> int:
        return len(await ctx.step(fetch, size))

    async def main() -> None:
        async with (
            asyncio.timeout(WITHIN_S),
            working(make, shop.app, said) as (worker, _),
            Client(worker.log) as client,
        ):
            await (await client.start("reading", 60_000, run_id="before")).result()
            limit = 1 << 16
            lower(own_broker, f"{make.namespace}.events", limit)
            await asyncio.sleep(1)  # a broker obeys what it was told a moment later
            for number, told in enumerate(("could not be stored", "65,536 fit into a batch"), 1):
                run = await client.start("reading", 60_000 + number, run_id=f"large-{number}")
                with pytest.raises(RunFailedError, match=told):
                    await run.result()
            for number in range(3):
                await (await client.start("order", number, run_id=f"order-{number}")).result()
            assert worker.log.facts.batch_size_max == limit

    asyncio.run(main())
    ends = [event.text for event in said if event.kind == "ended_claim"]
    assert len(ends) == 1, ends
    assert "the log takes at most 65536" in ends[0]
    assert len(shop.done) == 3
    assert len(set(calls)) == 3


def test_an_owner_does_not_go_on_with_a_log_that_was_cut_f19(
    make: MakeKafkaLog, own_broker: Broker
) -> None:
    """The broker loses the end of its log, as after an unclean election: R013, and exit code 4."""
    said: list[WorkerEvent] = []
    shop = Shop()

    async def main() -> None:
        async with working(make, shop.app, said) as (worker, task):
            async with Client(worker.log) as client:
                for number in range(5):
                    await (await client.start("order", number, run_id=f"order-{number}")).result()
            own_broker.kill()
            cut(own_broker, make.namespace)
            await asyncio.to_thread(own_broker.start)
            with pytest.raises(LogWasCut) as why:
                async with asyncio.timeout(WITHIN_S):
                    await asyncio.shield(task)
            assert why.value.exit_code == 4
        # Somebody has looked, and starts another one: what was lost is done again, under its keys.
        async with (
            working(make, shop.app, said, create=False) as (worker, _),
            Client(worker.log) as client,
        ):
            for number in range(5):
                await (await client.start("order", number, run_id=f"order-{number}")).result()

    asyncio.run(main())
    assert len(shop.done) == 5, "every repeat went out under the key of the first time"
    assert sum(shop.done.values()) > 5, "the cut took outcomes with it"


def test_workers_that_are_pid_1_of_one_host_name_share_the_partitions(
    own_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers. Members of one name would push each other out of the group for ever."""
    monkeypatch.setattr("socket.gethostname", lambda: "app")
    monkeypatch.setattr("os.getpid", lambda: 1)
    make = MakeKafkaLog(own_broker, partitions=2, session_ms=6_000)
    shop = Shop()

    async def main() -> None:
        async with (
            working(make, shop.app, []) as (first, _),
            working(make, shop.app, [], create=False) as (second, _),
        ):
            assert first.name.startswith("app:1:")
            await until(
                lambda: len(first.owners) == len(second.owners) == 1, "each owns one of two"
            )

    asyncio.run(main())


def lower(broker: Broker, topic: str, size_max: int) -> None:
    """Have the topic take no batch that is larger."""
    admin = AdminClient({"bootstrap.servers": broker.server, "log_level": 0})
    setting = ConfigEntry(
        "max.message.bytes", str(size_max), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[setting])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result()


def cut(broker: Broker, namespace: str) -> None:
    """Take the last third of the events from the broker's disk. It is not running."""
    folder: Path = broker.directory / "data" / f"{namespace}.events-0"
    for index in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
        index.unlink()
    [log] = folder.glob("*.log")
    data = log.read_bytes().rstrip(b"\0")
    log.write_bytes(data[: len(data) * 2 // 3])
