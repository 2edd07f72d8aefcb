"""Archives beside what a partition still owes: parked commands, what has to be sent, schemas."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from refold.client import Client
from refold.client.orders import decided_before, letters_of, raw_of, rejected_at
from refold.log import partition_for
from refold.log.memory import Answer, AppendCall, AppendFault, Faults, MemoryLog
from refold.log.port import Entry, Topic
from refold_schemas.codec import Codec
from refold_schemas.commands import StartRun
from refold_schemas.errors import EventsGone, SchemasUnregistered, SchemaUnavailable
from refold_schemas.events import CommandEmitted, CommandParked, CommandRejected, RunStarted
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value
from support.archive_lab import Archive, is_position, the_report
from support.lab import CODEC
from support.outer_registry import OuterRegistry, Place
from support.scripted_registry import Kept

START = 7
JUNK = b"no frame" + bytes(3_000)
"""A command that nobody can read; its rejection keeps the beginning alone."""
UNKNOWN = b"\0" + (2_000_003_999).to_bytes(4, "big") + b" of a later version"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def command(run_id: str) -> bytes:
    start = StartRun(f"start-{run_id}", run_id, "order", encode_value(5), None, "them")
    return CODEC.encode(start)


def put(archive: Archive, value: bytes, key: bytes | None = None) -> int:
    return archive.lab.broker.put(Topic.COMMANDS, 0, [Entry(key, value)])


def offsets(archive: Archive, kind: type, partition: int = 0) -> list[int]:
    """Where events of this class stand in the log now."""
    records = archive.lab.broker.records(Topic.EVENTS, partition)
    return [r.offset for r in records if isinstance(CODEC.decode(r.value or b""), kind)]


def letters(archive: Archive) -> list[dict[str, Any]]:
    records = archive.lab.broker.records(Topic.DEAD_LETTERS, 0)
    return [json.loads(record.value or b"") for record in records]


def kill_all(archive: Archive) -> None:
    for process in list(archive.lab.universe.processes):
        process.kill()


# ---- parked


@pytest.mark.parametrize("positions", [True, False], ids=["a checkpoint", "none"])
def test_a_parked_command_outlives_the_archive(folder: Path, *, positions: bool) -> None:
    """Its event is in a file, the checkpoint may be lost: it is still known, and still there."""
    kept = Kept()
    kept.away = True
    kept.register(START, "refold.commands.StartRun")
    archive = Archive(folder, kept.codec())
    archive.runs("r-1")
    parked = put(archive, b"\0" + START.to_bytes(4, "big") + command("waits")[5:], b"waits")
    archive.runs("r-2", "r-3")
    report = the_report(archive.archive())
    archive.runs("r-4")
    later = the_report(archive.archive())
    assert later.events_next > report.events_next, "a second file begins where it is parked"
    assert any(isinstance(CODEC.decode(r.value or b""), CommandParked) for r in archive.in_files())
    assert offsets(archive, CommandParked) == []
    assert report.commands_next == later.commands_next == parked
    assert archive.bounds(Topic.COMMANDS)[0] == parked
    if not positions:
        archive.damage(is_position, None)
    archive.check()
    assert list(archive.seen().parked) == [parked]
    kill_all(archive)
    kept.away = False
    archive.lab.codec = kept.codec()
    archive.lab.worker(archive.app)
    assert archive.lab.run(60, until=lambda: len(archive.vendor.done) == 5)
    archive.lab.run(5)
    archive.check()
    due = archive.due()
    assert due.parked == {}
    assert due.runs["waits"].ended is not None
    events = [CODEC.decode(r.value or b"") for r in archive.whole.values()]
    started = [one for one in events if isinstance(one, RunStarted)]
    assert len(started) == 5, "each run once"
    assert the_report(archive.archive()).commands_next == due.position.command_next


# ---- to be sent


class Refuses(Faults):
    """Appends to one topic of one partition fail, and are not stored, as long as a test says so."""

    def __init__(self, topic: Topic, partition: int) -> None:
        self.place, self.on = (topic, partition), True

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if self.on and (call.topic, call.partition) == self.place:
            return AppendFault((), Answer.ERROR, 1)
        return None


def test_what_a_dead_letter_is_made_of_stays_until_it_is_sent(folder: Path) -> None:
    archive = Archive(folder)
    faults = archive.lab.broker.faults = Refuses(Topic.DEAD_LETTERS, 0)
    archive.runs("r-1")
    bad = put(archive, JUNK)
    archive.runs("r-2", "r-3")
    (rejected,) = offsets(archive, CommandRejected)
    report = the_report(archive.archive())
    assert 0 < report.events_next <= rejected
    assert report.commands_next == archive.bounds(Topic.COMMANDS)[0] == bad
    assert the_report(archive.archive()).record_count == 0, "nor does a second call"
    archive.check()
    kill_all(archive)
    faults.on = False
    archive.lab.worker(archive.app)
    assert archive.lab.run(60, until=lambda: bool(letters(archive)))
    archive.runs("r-4")
    (letter,) = letters(archive)
    assert (letter["offset"], letter["event_offset"]) == (bad, rejected)
    assert base64.b64decode(letter["raw"]) == JUNK
    assert letter["raw_whole"] is True
    report = the_report(archive.archive())
    assert report.events_next > rejected
    assert report.commands_next > bad
    archive.damage(is_position, None)
    archive.check()
    kill_all(archive)
    archive.lab.worker(archive.app)
    archive.runs("r-5")
    assert len(letters(archive)) == 1, "what was sent before the archive ended is not sent again"


def test_a_command_that_is_sent_on_stays_until_it_has_left(folder: Path) -> None:
    archive = Archive(folder, partition_count=2)
    here = [f"r-{n}" for n in range(40) if partition_for(f"r-{n}", 2) == 0]
    there = next(f"t-{n}" for n in range(40) if partition_for(f"t-{n}", 2) == 1)
    faults = archive.lab.broker.faults = Refuses(Topic.COMMANDS, 1)
    archive.runs(here[0])
    put(archive, command(there), there.encode())
    archive.runs(here[1])
    (emitted,) = offsets(archive, CommandEmitted)
    report = the_report(archive.archive())
    assert 0 < report.events_next <= emitted
    assert report.commands_next == 3, "its bytes are in the event"
    assert archive.lab.broker.bounds(Topic.COMMANDS, 1) == (0, 0)
    kill_all(archive)
    faults.on = False
    archive.lab.worker(archive.app)
    assert archive.lab.run(60, until=lambda: len(archive.vendor.done) == 3)
    (arrived,) = archive.lab.broker.records(Topic.COMMANDS, 1)
    assert (arrived.key, arrived.value) == (there.encode(), command(there))
    archive.runs(here[2])
    assert the_report(archive.archive()).events_next > emitted


def test_rejections_behind_an_archive_are_found(folder: Path) -> None:
    """The claim that they count under is in a file."""
    archive = Archive(folder)
    archive.runs("r-1", "r-2")
    the_report(archive.archive())
    bad = put(archive, JUNK)
    archive.runs("r-3")

    async def ask(log: MemoryLog) -> Any:
        async with Client(log) as client:
            elsewhere = [one async for one in client.history_elsewhere("r-3")]
            return [one async for one in client.orders(0)], elsewhere

    ((found, elsewhere),) = archive.process(ask)
    assert [one.event.command_offset for one in found] == [bad]
    assert elsewhere == []


def test_a_rejection_that_is_archived_is_known_by_its_dead_letter(folder: Path) -> None:
    archive = Archive(folder)
    start = StartRun("start-x", "r-x", "nosuch", encode_value(5), None, "them")
    refused = put(archive, CODEC.encode(start), b"r-x")
    archive.runs("r-1")
    archive.runs("r-2")
    the_report(archive.archive())
    assert archive.bounds(Topic.COMMANDS)[0] > refused

    async def ask(log: MemoryLog) -> Any:
        async with Client(log) as client:
            known = await rejected_at(log, client.codec, 0, refused)
            raw = await raw_of(log, 0, refused, None)
            before = await decided_before(log, client.codec, 0)
            return known, raw, before, await letters_of(log, 0, refused + 1)

    ((known, raw, before, of_next),) = archive.process(ask)
    assert known is None, "it is archived"
    assert raw is not None
    assert CODEC.decode(raw) == start
    assert before > refused
    assert of_next == [], "the next command was applied"


# ---- schemas


def ready(place: Place) -> Codec:
    codec = Codec(OuterRegistry(place))
    asyncio.run(codec.ready())
    return codec


def test_an_archive_under_the_ids_of_a_registry_is_read_by_whoever_asks(folder: Path) -> None:
    place = Place()
    archive = Archive(folder, ready(place))
    archive.runs("r-1", "r-2")
    the_report(archive.archive(codec=Codec(OuterRegistry(place))))
    (record,) = archive.snapshots(lambda key: key.startswith("/archived."))
    frame_id = int.from_bytes((record.value or b"")[1:5], "big")
    assert frame_id == place.id_of("refold.snapshots.Archived")
    archive.runs("r-3")
    the_report(archive.archive(codec=Codec(OuterRegistry(place))))
    archive.damage(is_position, None)
    archive.check()
    seen = archive.seen(Codec(OuterRegistry(place)))
    assert set(seen.runs) == {"r-1", "r-2", "r-3"}
    for codec in (Codec(OuterRegistry(place)), CODEC):  # the registry away, and none at all
        place.away = True
        with pytest.raises(SchemaUnavailable):
            archive.seen(codec)  # what is not known now is not gone

    async def ask(log: MemoryLog) -> Any:
        async with Client(log) as client:  # it has no registry
            return [one async for one in client.history("r-3")]

    (error,) = archive.process(ask)
    assert isinstance(error, SchemaUnavailable)


def test_what_cannot_be_written_is_said_before_anything_is_deleted(folder: Path) -> None:
    place = Place()
    archive = Archive(folder, ready(place))
    archive.runs("r-1", "r-2")
    place.ids = {n: one for n, one in place.ids.items() if one[0] != "refold.snapshots.Archived"}
    (error,) = archive.archive(codec=Codec(OuterRegistry(place)))
    assert isinstance(error, SchemasUnregistered)
    assert archive.bounds()[0] == archive.bounds(Topic.COMMANDS)[0] == 0
    dry = the_report(archive.archive(codec=Codec(OuterRegistry(place)), dry=True))
    assert dry.record_count > 0, "a dry run writes nothing"


def test_an_archive_that_cannot_be_read_stops_who_needs_to_know_its_runs(folder: Path) -> None:
    """Else a run of which the snapshot is missing too could be started a second time."""
    archive = Archive(folder)
    archive.runs("r-1")
    first = the_report(archive.archive()).events_next
    archive.runs("r-2")
    the_report(archive.archive())
    archive.damage(is_position, None)
    archive.check()
    archive.damage(lambda key: key == f"/archived.{first}", UNKNOWN)
    with pytest.raises(EventsGone):
        archive.seen(Codec(FileRegistry()))


def test_an_older_snapshot_does_not_stand_in_for_one_that_cannot_be_read(folder: Path) -> None:
    """What lies between the two is gone: the run would have a gap."""
    archive = Archive(folder)
    archive.runs("sleeper", run="reminder")
    older = archive.snapshots(lambda key: key.startswith("sleeper/"))
    assert archive.lab.run(400, until=lambda: len(archive.vendor.done) == 1)
    archive.runs("r-1")
    the_report(archive.archive())
    archive.lab.broker.put(Topic.SNAPSHOTS, 0, older)
    archive.check()
    old_keys = {entry.key for entry in older}
    archive.damage(lambda key: key.startswith("sleeper/") and key.encode() not in old_keys, UNKNOWN)
    with pytest.raises(EventsGone) as gone:
        archive.seen()
    assert "sleeper" in str(gone.value)
