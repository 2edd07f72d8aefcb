"""A Kafka broker that is killed, away, and back: what the log says of it, and what is kept."""

import asyncio

import pytest

from refold.log import Entry, Topic
from refold_schemas.errors import LogUnavailable, RefoldError
from support.kafka_broker import Broker
from support.kafka_maker import MakeKafkaLog


@pytest.fixture
def make(own_broker: Broker) -> MakeKafkaLog:
    return MakeKafkaLog(own_broker, partitions=3)


def entries(count: int) -> list[Entry]:
    return [Entry(b"run-1", b"%d" % at, bytes(50)) for at in range(count)]


def test_a_broker_that_is_killed_loses_nothing_that_it_acknowledged(make: MakeKafkaLog) -> None:
    """SIGKILL under appends: acknowledged is stored, unknown is whole or absent, none twice."""

    async def main() -> None:
        log = make()
        await log.open(create=True)
        acknowledged: dict[bytes, int] = {}
        unknown: set[bytes] = set()
        ended = asyncio.Event()

        async def writer(partition: int) -> None:
            at = 0
            while not ended.is_set():
                name = b"%d/%d" % (partition, at)
                batch = [Entry(name, b"%d" % part) for part in range(3)]
                at += 1
                try:
                    ack = await log.append(Topic.EVENTS, partition, batch)
                except RefoldError:
                    unknown.add(name)
                else:
                    assert ack.offset is not None
                    acknowledged[name] = ack.offset

        writers = [asyncio.create_task(writer(partition)) for partition in range(3)]
        for _ in range(2):
            await asyncio.sleep(0.5)
            make.broker.kill()
            await asyncio.to_thread(make.broker.start)
            before = len(acknowledged)
            while len(acknowledged) < before + 30:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ended.set()
        await asyncio.gather(*writers)
        found: dict[bytes, list[tuple[int, bytes]]] = {}
        for partition in range(3):
            offset = 0
            while records := await log.read(Topic.EVENTS, partition, offset):
                for record in records:
                    assert record.key is not None
                    assert record.value is not None
                    found.setdefault(record.key, []).append((record.offset, record.value))
                offset = records[-1].offset + 1
        assert len(acknowledged) > 60
        for name, base in acknowledged.items():
            assert found.pop(name) == [(base, b"0"), (base + 1, b"1"), (base + 2, b"2")]
        assert set(found) <= unknown
        for records_of in found.values():
            assert [value for _, value in records_of] == [b"0", b"1", b"2"]
        await log.close()

    asyncio.run(main())


def test_reads_and_waits_go_on_over_a_restart(make: MakeKafkaLog) -> None:
    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.COMMANDS, 1, entries(2))
        waiting = asyncio.create_task(log.wait(Topic.COMMANDS, 1, 2, timeout_ms=60_000))
        await asyncio.sleep(0.1)
        make.broker.kill()
        await asyncio.to_thread(make.broker.start)
        assert len(await log.read(Topic.COMMANDS, 1, 0)) == 2
        assert await log.bounds(Topic.COMMANDS, 1) == (0, 2)
        other = make()
        await other.open(create=False)
        await other.append(Topic.COMMANDS, 1, entries(1))
        try:
            assert await waiting
        except LogUnavailable:  # it took longer than a wait keeps silent
            assert await log.wait(Topic.COMMANDS, 1, 2, timeout_ms=10_000)
        await other.close()
        await log.close()

    asyncio.run(main())


def test_a_broker_that_is_frozen_is_said_and_served_again(
    make: MakeKafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.log.kafka_fetch.ASK_S", 0.5)

    async def main() -> None:
        log = make()
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, entries(1))  # so that there is a connection
        make.broker.freeze()
        await asyncio.sleep(0.2)  # what it had answered already is read by now
        try:
            with pytest.raises(LogUnavailable, match="no answer in time"):
                await log.read(Topic.EVENTS, 0, 0)
            append = asyncio.create_task(log.append(Topic.EVENTS, 0, entries(3)))
            await asyncio.sleep(0.2)
            append.cancel()
        finally:
            make.broker.thaw()
        ack = await log.append(Topic.EVENTS, 0, entries(2))
        assert ack.offset == 4, "what was sent before it was given up came first, and whole"
        assert len(await log.read(Topic.EVENTS, 0, 0)) == 6
        await log.close()

    asyncio.run(main())


def test_a_broker_that_is_away_is_said_and_appends_are_known_not_to_be_stored(
    make: MakeKafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.log.kafka.APPEND_TIMEOUT_MS", 500)
    monkeypatch.setattr("refold.log.kafka_fetch.RETRY_MS", 500)

    async def main() -> None:
        log = make()
        await log.open(create=True)
        make.broker.kill()
        try:
            await asyncio.sleep(0.2)
            with pytest.raises(LogUnavailable) as away:
                await log.append(Topic.EVENTS, 0, entries(1))
            assert away.value.stored is False
            with pytest.raises(LogUnavailable):
                await log.read(Topic.EVENTS, 0, 0)
            with pytest.raises(LogUnavailable):
                await log.wait(Topic.EVENTS, 0, 0, timeout_ms=2_000)
            assert await log.owner_lives(0) is None
            with pytest.raises(LogUnavailable):
                await make().open(create=False)
            await asyncio.wait_for(log.close(), 5)
        finally:
            make.broker.start()

    asyncio.run(main())
