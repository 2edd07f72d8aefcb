"""Logs under a schema registry's ids: who does not know one asks, waits, and never guesses."""

import asyncio
from collections.abc import Callable

import pytest

from refold.app import App
from refold.app.effect import Effect
from refold.client import Client
from refold.client import tail as client_tail
from refold.client.history import read_history
from refold.client.reading import Meter
from refold.client.states import StateReader
from refold.client.tail import PartitionTail
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Entry, Record, Topic
from refold.testing.registry_conformance import MakeRegistry, RegistryConformance
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold, state_hash
from refold_projections.fold.learning import fold_all
from refold_schemas.codec import KIND_REPORT, Codec, RecordHeader
from refold_schemas.errors import (
    RegistryUnavailable,
    SchemaChanged,
    SchemasUnregistered,
    SchemaUnavailable,
)
from refold_schemas.events import AttemptReported, EvidenceConflict, RunCompleted
from refold_schemas.registry import FileRegistry
from refold_schemas.values import Policy, encode_value
from support import written_log
from support.lab import Lab
from support.outer_registry import OuterRegistry, Place
from support.written_log import acted, intended, started, writer_for

NOBODYS_ID = 77_777


class TestOuterRegistry(RegistryConformance):
    @pytest.fixture
    def make_registry(self) -> MakeRegistry:
        place = Place()
        return lambda: OuterRegistry(place)


def fresh(place: Place) -> Codec:
    """The codec of a process that has just started."""
    return Codec(OuterRegistry(place))


def ready(place: Place) -> Codec:
    codec = fresh(place)
    asyncio.run(codec.ready())
    return codec


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose ids `written_log` writes under."""
    place = Place()
    monkeypatch.setattr(written_log, "CODEC", ready(place))
    return place


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker("shop")
    broker.exists = True
    return broker


def written(broker: MemoryBroker, run_id: str = "run-1") -> list[Record]:
    writer = writer_for(broker, run_id)
    writer.claim()
    writer.write(run_id, *started(), intended("charge#1"), acted("charge#1"))
    writer.write(run_id, RunCompleted(encode_value("paid")))
    return list(broker.records(Topic.EVENTS, 0))


def hash_of(fold: PartitionFold, run_id: str = "run-1") -> str:
    return state_hash(fold.runs[run_id])


def test_a_fold_stands_in_front_of_what_it_does_not_know(
    place: Place, broker: MemoryBroker
) -> None:
    records = written(broker)
    whole = PartitionFold(ready(place))
    whole.apply_all(records)
    codec = fresh(place)
    fold = PartitionFold(codec)
    for record in records:
        before = fold.position
        for _ in range(2):
            try:
                fold.apply(record)
                break
            except SchemaUnavailable as unknown:
                assert fold.position == before
                assert "run-1" not in fold.runs or fold.runs["run-1"].parked is None
                asyncio.run(codec.learn(unknown.schema_id))
    assert (fold.position, hash_of(fold)) == (whole.position, hash_of(whole))


def test_a_reader_waits_for_the_registry_and_then_has_missed_nothing(
    place: Place, broker: MemoryBroker
) -> None:
    records = written(broker)
    whole = PartitionFold(ready(place))
    whole.apply_all(records)

    async def main() -> None:
        fold = PartitionFold(fresh(place))
        place.away = True
        for _ in range(3):
            with pytest.raises(SchemaUnavailable, match="nobody is at home") as caught:
                await fold_all(fold, records)
            assert caught.value.mends
            assert fold.position.offset_next == 0
        place.away = False
        await fold_all(fold, records)
        assert hash_of(fold) == hash_of(whole)

    asyncio.run(main())


def test_an_event_under_an_id_that_nobody_has_parks_its_run_if_its_claim_can_be_read(
    place: Place, broker: MemoryBroker
) -> None:
    """Else the registry is the wrong one, or none is set: the reader stops, no run is parked."""
    writer = writer_for(broker, "run-1")
    writer.claim()
    writer.write("run-1", *started())
    at = writer.raw("run-1", b"\0" + NOBODYS_ID.to_bytes(4, "big") + b"x")
    writer.write("run-2", *started())

    async def parked(codec: Codec) -> None:
        fold = PartitionFold(codec)
        await fold_all(fold, broker.records(Topic.EVENTS, 0))
        found = fold.runs["run-1"].parked
        assert found is not None
        assert found.reason == "undecodable_event"
        assert f"offset {at} cannot be read" in found.detail
        assert fold.runs["run-2"].parked is None
        assert fold.position.offset_next == len(broker.records(Topic.EVENTS, 0))

    async def stops(codec: Codec, said: str) -> None:
        fold = PartitionFold(codec)
        with pytest.raises(SchemaUnavailable, match=said) as caught:
            await fold_all(fold, broker.records(Topic.EVENTS, 0))
        assert not caught.value.mends
        assert (fold.position.offset_next, dict(fold.runs)) == (0, {})

    asyncio.run(parked(fresh(place)))
    emptied = Place()
    emptied.ids = {}
    asyncio.run(stops(fresh(emptied), "has none"))
    asyncio.run(stops(Codec(FileRegistry()), "none is set.*set REFOLD_REGISTRY_URL"))


def test_a_record_of_the_partition_under_an_id_that_nobody_has_is_not_passed_by(
    place: Place, broker: MemoryBroker
) -> None:
    """It may be a command that is parked or sent on: whoever passed it by would lose that."""
    writer = writer_for(broker, "run-1")
    writer.claim()
    at = writer.raw(None, b"\0" + NOBODYS_ID.to_bytes(4, "big") + b"x")

    async def main() -> None:
        fold = PartitionFold(fresh(place))
        with pytest.raises(SchemaUnavailable, match="has none"):
            await fold_all(fold, broker.records(Topic.EVENTS, 0))
        assert fold.position.offset_next == at

    asyncio.run(main())


def test_a_client_that_cannot_begin_leaves_no_log_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kafka that is a connection which nobody closes any more."""
    closed: list[str] = []
    close = MemoryLog.close

    async def noted(log: MemoryLog) -> None:
        closed.append(log.url)
        await close(log)

    async def not_known(log: MemoryLog, codec: Codec) -> int:
        raise SchemaUnavailable(NOBODYS_ID, "nobody is at home")

    async def main() -> None:
        with pytest.raises(SchemaUnavailable):
            async with Client("memory://nobody", create=True):
                pass

    monkeypatch.setattr(MemoryLog, "close", noted)
    monkeypatch.setattr("refold.client.client.routing_count", not_known)
    asyncio.run(main())
    assert closed == ["memory://nobody"]


def test_states_and_history_are_read_by_asking(place: Place, broker: MemoryBroker) -> None:
    written(broker)

    async def main() -> None:
        log = MemoryLog("memory://shop", broker=broker, name="reader")
        await log.open(create=False)
        state, _ = await StateReader(log, fresh(place), 0, Meter(None)).of_run("run-1")
        assert state is not None
        assert state.ended is not None
        lines = [one async for one in read_history(log, fresh(place), 0, "run-1", claims=True)]
        assert [one.problem for one in lines] == [None] * len(lines)
        place.away = True
        for codec in (fresh(place), Codec(FileRegistry())):
            with pytest.raises(SchemaUnavailable):
                await StateReader(log, codec, 0, Meter(None)).of_run("run-1")
            with pytest.raises(SchemaUnavailable):
                async for _ in read_history(log, codec, 0, "run-1", claims=True):
                    pass
        await log.close()

    asyncio.run(main())


def test_who_waits_for_a_decision_learns_its_schema(
    place: Place, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        log = MemoryLog("memory://shop", broker=broker, name="client")
        await log.open(create=False)

        async def waits(codec: Codec, *, then: Callable[[], None]) -> object:
            tail = PartitionTail(log, codec, 0)
            await tail.begin()
            decided = tail.expect("run-1", "c1")
            then()
            try:
                async with asyncio.timeout(60):
                    return (await decided).event
            finally:
                await tail.close()

        def decide() -> None:
            writer = writer_for(broker, "run-1")
            writer.claim()
            writer.write("run-1", *started())

        event = await waits(fresh(place), then=decide)
        assert getattr(event, "command_id", None) == "c1"
        # Where none is set, waiting mends nothing: it is said at once.
        broker.records(Topic.EVENTS, 0)
        with pytest.raises(SchemaUnavailable, match="none is set"):
            await waits(Codec(FileRegistry()), then=decide)
        place.away = True
        monkeypatch.setattr(client_tail, "OUTAGE_MS", 500)
        with pytest.raises(SchemaUnavailable, match="nobody is at home"):
            await waits(fresh(place), then=decide)
        await log.close()

    asyncio.run(main())


# ---- workers


def shop() -> App:
    app = App("shop")

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def charge(fx: Effect) -> str:
        return "charged"

    @app.run("order")
    async def order(ctx: object) -> str:
        return await ctx.step(charge)  # type: ignore[attr-defined,no-any-return]

    return app


def told(lab: Lab, word: str) -> list[str]:
    return [one.text for one in lab.told if word in one.text]


@pytest.fixture
def lab(place: Place) -> Lab:
    return Lab(settings=WorkerSettings(registry_ms=1_000), codec=ready(place))


def learn(lab: Lab, schema_id: int) -> None:
    """The lab's own reader is told what its worker has to find out."""
    asyncio.run(lab.codec.learn(schema_id))


def test_a_worker_writes_under_the_registrys_ids_and_starts_without_it_in_no_case(
    lab: Lab, place: Place
) -> None:
    place.away = True
    first = lab.worker(shop(), codec=fresh(place))
    lab.run(5)
    assert isinstance(lab.failures[first.name], RegistryUnavailable)
    assert not lab.broker.records(Topic.EVENTS, 0)
    place.away = False
    name = "refold.events.StepIntended"
    kept = place.ids.pop(place.id_of(name))
    second = lab.worker(shop(), codec=fresh(place))
    lab.run(5)
    failure = lab.failures[second.name]
    assert isinstance(failure, SchemasUnregistered)
    assert failure.names == (name,)
    assert not lab.broker.records(Topic.EVENTS, 0)
    place.ids[500] = kept
    learn(lab, 500)
    lab.worker(shop(), codec=fresh(place))
    lab.start("order")
    assert lab.run(30, until=lab.ended)
    ids = {
        int.from_bytes((r.value or b"")[1:5], "big") for r in lab.broker.records(Topic.EVENTS, 0)
    }
    assert ids <= set(place.ids)
    assert 500 in ids


def test_a_worker_that_can_read_no_claim_ends_and_holds_nothing(lab: Lab, place: Place) -> None:
    """It would keep its share of the partitions from those who can."""
    before = lab.worker(shop(), name="before", codec=Codec(FileRegistry()))
    assert lab.run(30, until=lambda: bool(lab.broker.records(Topic.EVENTS, 0)))
    before.kill()
    under = lab.worker(shop(), name="under")
    lab.start("order", run_id="run-2")
    assert lab.run(30, until=lambda: lab.ended("run-2"))
    under.kill()
    without = lab.worker(shop(), name="without", codec=Codec(FileRegistry()))
    lab.run(30)
    failure = lab.failures[without.name]
    assert isinstance(failure, SchemaUnavailable)
    assert "set REFOLD_REGISTRY_URL" in failure.next


def test_a_registry_that_goes_away_is_said_once_and_no_run_waits_for_it(
    lab: Lab, place: Place
) -> None:
    lab.worker(shop())
    lab.start("order", run_id="run-1")
    assert lab.run(30, until=lambda: lab.ended("run-1"))
    place.away = True
    assert lab.run(30, until=lambda: bool(told(lab, "registry unreachable")))
    lab.start("order", run_id="run-2")
    assert lab.run(30, until=lambda: lab.ended("run-2"))
    lab.run(10)
    assert len(told(lab, "registry unreachable")) == 1
    place.away = False
    assert lab.run(30, until=lambda: bool(told(lab, "answers again")))
    assert not lab.failures


def test_an_id_that_changes_stops_the_worker_with_both_fingerprints(lab: Lab, place: Place) -> None:
    process = lab.worker(shop())
    lab.start("order")
    assert lab.run(30, until=lab.ended)
    changed = place.id_of("refold.events.StepIntended")
    place.ids[changed] = ("refold.events.StepFailed", 1)
    assert lab.run(60, until=lambda: process.name in lab.failures)
    failure = lab.failures[process.name]
    assert isinstance(failure, SchemaChanged)
    assert failure.pinned in str(failure)
    assert failure.found in str(failure)
    assert failure.exit_code == 4


def test_a_claim_waits_for_a_schema_that_cannot_be_learnt_yet(lab: Lab, place: Place) -> None:
    """An older namespace, written under another id of the same schema."""
    writer = written_log.Writer(lab.broker)
    place.ids[600] = ("refold.events.RunStarted", 1)
    old = fresh(place)
    asyncio.run(old.ready())
    start, *_ = started(run="order")
    writer.claim()
    writer.raw("run-9", b"\0" + (600).to_bytes(4, "big") + old.encode(start)[5:])
    learn(lab, 600)
    codec = ready(place)
    place.away = True
    lab.worker(shop(), codec=codec)
    assert lab.run(30, until=lambda: bool(told(lab, "is not claimed; it is tried again")))
    lab.run(20)
    records = lab.broker.records(Topic.EVENTS, 0)
    assert len(records) == 2, "nobody claims what he cannot read"
    place.away = False
    assert lab.run(60, until=lambda: lab.ended("run-9"))
    assert lab.state("run-9").parked is None


def claims(lab: Lab) -> int:
    records = lab.broker.records(Topic.EVENTS, 0)
    return sum(lab.codec.name_of(r.value or b"") == "PartitionClaimed" for r in records)


def test_a_report_under_an_unknown_id_ends_the_claim_and_is_not_passed_by(
    lab: Lab, place: Place
) -> None:
    lab.worker(shop(), codec=ready(place))
    lab.start("order")
    assert lab.run(30, until=lab.ended)
    place.ids[700] = ("refold.events.AttemptReported", 1)
    learn(lab, 700)
    (intent,) = [
        (header, record)
        for record in lab.broker.records(Topic.EVENTS, 0)
        if (header := RecordHeader.read(record.header)) is not None
        and lab.codec.name_of(record.value or b"") == "StepIntended"
    ]
    header, record = intent
    event = lab.codec.decode(record.value or b"")
    report = AttemptReported(
        event.slot, event.attempt, event.effect_key, "failed", None, None, "another"
    )
    body = b"\0" + (700).to_bytes(4, "big") + lab.codec.encode(report)[5:]
    lab.broker.put(
        Topic.EVENTS, 0, [Entry(b"run-1", body, header._replace(kind=KIND_REPORT).pack())]
    )
    assert lab.run(60, until=lambda: claims(lab) == 2)
    assert lab.run(60, until=lambda: bool(lab.events(EvidenceConflict)))
