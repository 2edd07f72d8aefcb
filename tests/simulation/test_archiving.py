"""Archiving under owners that work, die and take over: nothing needed is ever gone.

F22: a reset policy skipped commands in silence. F23: recovery waited for what could not come.
"""

import asyncio
import gzip
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.client import Client, RunHandle
from refold.engine.bases import base_of
from refold.log.memory import MemoryLog
from refold.log.port import Ack, Entry, Record, Topic
from refold.testing.sim_loop import SimProcess, current_process
from refold_projections.fold import Ended, PartitionFold
from refold_schemas.codec import RecordHeader
from refold_schemas.errors import EventsGone, LogUnavailable, RefoldError
from refold_schemas.errors.cli import CommandUnknown, FunctionUnknown
from refold_schemas.events import CommandRejected, RunStarted
from refold_schemas.snapshots import Archived
from refold_tools.archive import Archiving, Plan, read_archive
from refold_tools.archive.errors import ArchiveDamaged, ArchiveRefused, ArchiveUnwritable
from support.archive_lab import LATER_MS, Archive, is_position, the_report
from support.lab import CODEC, EPOCH_MS


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


# ---- what goes, what stays


def test_finished_runs_go_to_a_file_and_their_ids_stay_taken(archive: Archive) -> None:
    archive.runs("r-1", "r-2", "r-3")
    report = the_report(archive.archive())
    start, end = archive.bounds()
    assert (report.events_from, report.events_next) == (0, start)
    assert start == end - 1  # the last record stays: positions are verified by it
    assert report.run_count == 3
    assert archive.in_files() == [archive.whole[at] for at in range(start)]
    assert archive.bounds(Topic.COMMANDS) == (3, 3)
    archive.check()
    # For the living owner and for the next one: the same id is the same run, and nothing happens.
    for _ in range(2):
        archive.lab.start("order", 4160, run_id="r-1")
        archive.lab.start("order", 1, run_id="r-2")
        archive.lab.run(3)
        archive.lab.workers.clear()
        for process in list(archive.lab.universe.processes):
            process.kill()
        archive.lab.worker(archive.app)
        archive.lab.run(8)
    archive.note()
    events = [CODEC.decode(archive.whole[at].value or b"") for at in sorted(archive.whole)]
    assert sum(isinstance(event, RunStarted) for event in events) == 3
    rejected = [event.reason for event in events if isinstance(event, CommandRejected)]
    assert rejected == ["run_exists", "run_exists_other_input"] * 2
    assert len(archive.vendor.done) == 3
    archive.check()


def test_a_run_that_goes_on_keeps_what_is_behind_its_start(archive: Archive) -> None:
    archive.runs("r-1", "r-2")
    archive.runs("sleeper", run="reminder")
    archive.runs("r-3")
    report = the_report(archive.archive())
    started = next(
        offset
        for offset, record in sorted(archive.whole.items())
        if record.key == b"sleeper" and b"reminder" in (record.value or b"")
    )
    assert (report.events_next, report.held_by) == (started, "sleeper")
    assert report.run_count == 2
    archive.check()
    # What the live run needs is in the log: without its snapshot it is folded from its start.
    archive.damage(lambda key: key.startswith("sleeper/"), b"\0\0\0\xff\xff of a later version")
    archive.check()
    assert the_report(archive.archive()).record_count == 0
    beyond = the_report(archive.archive(past_live=True))
    assert beyond.record_count == 0  # no position to go by: a snapshot of it cannot be read
    for process in list(archive.lab.universe.processes):
        process.kill()
    archive.lab.worker(archive.app)
    archive.lab.run(8)  # the next owner writes them anew
    beyond = the_report(archive.archive(past_live=True))
    assert beyond.held_by is None
    assert archive.bounds()[0] == beyond.events_next > started
    archive.check()
    assert archive.lab.run(400, until=lambda: len(archive.vendor.done) == 4)
    archive.check()


def test_what_ended_too_short_a_time_ago_stays(archive: Archive) -> None:
    archive.runs("r-1")
    middle_ms = archive.lab.now_ms()
    archive.runs("r-2")
    report = the_report(archive.archive(before_ms=middle_ms, commands_before_ms=middle_ms))
    assert archive.bounds(Topic.COMMANDS) == (1, 2)
    assert report.run_count == 1
    assert {record.key for record in archive.in_files()} <= {None, b"r-1"}
    assert b"r-2" in {record.key for record in archive.lab.broker.records(Topic.EVENTS, 0)}
    archive.check()


def test_a_dry_run_changes_nothing(archive: Archive) -> None:
    archive.runs("r-1", "r-2")
    before = archive.bounds(), archive.bounds(Topic.COMMANDS), archive.bounds(Topic.SNAPSHOTS)
    report = the_report(archive.archive(dry=True))
    assert (report.run_count, report.commands_next) == (2, 2)
    assert before == (
        archive.bounds(),
        archive.bounds(Topic.COMMANDS),
        archive.bounds(Topic.SNAPSHOTS),
    )
    assert not archive.folder.exists()


def test_without_a_checkpoint_nothing_goes(archive: Archive) -> None:
    archive.runs("r-1")
    archive.damage(is_position, None)
    report = the_report(archive.archive())
    assert (report.record_count, report.commands_next) == (0, 0)
    archive.check()


@pytest.mark.parametrize("key", [b"junk/1", b"\xff\xfe/1", b"r-1/x", b"junk", b"a/b/c"])
def test_what_somebody_else_wrote_into_the_snapshots_keeps_nothing(
    archive: Archive, key: bytes
) -> None:
    archive.runs("r-1", "r-2")
    archive.lab.broker.put(Topic.SNAPSHOTS, 0, [Entry(key, b"rubbish")])
    assert the_report(archive.archive()).run_count == 2
    archive.check()


def test_a_file_is_made_of_every_so_many_records(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold_tools.archive.archiving.FILE_RECORDS_MAX", 4)
    archive.runs("r-1", "r-2", "r-3")
    report = the_report(archive.archive())
    assert len(report.files) > 2
    assert [one.record_count for one in report.files[:-1]] == [4] * (len(report.files) - 1)
    assert archive.in_files() == [archive.whole[at] for at in range(report.events_next)]
    archive.check()


def test_refusals_of_runs_that_never_were_are_archived_too(archive: Archive) -> None:
    archive.lab.cancel("nobody")
    archive.runs("r-1")
    the_report(archive.archive())
    assert b"nobody" in {record.key for record in archive.in_files()}
    archive.damage(is_position, None)  # a reader behind the archive asks for no snapshot of it
    archive.check()


# ---- killed anywhere


class Dying(MemoryLog):
    """A handle whose process is killed before or after its nth call that writes."""

    def __init__(self, archive: Archive, kill_at: int, *, after: bool) -> None:
        super().__init__("memory://lab", broker=archive.lab.broker, name="tool")
        self.kill_at, self.after, self.calls = kill_at, after, 0

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        self.calls += 1
        if self.calls == self.kill_at and not self.after:
            await current_process().kill_here()
        ack = await super().append(topic, partition, entries)
        if self.calls == self.kill_at:
            await current_process().kill_here()
        return ack

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        self.calls += 1
        if self.calls == self.kill_at and not self.after:
            await current_process().kill_here()
        start = await super().trim(topic, partition, before_offset)
        if self.calls == self.kill_at:
            await current_process().kill_here()
        return start


@pytest.mark.parametrize("kill_at", range(1, 8))
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_it_has_lost_nothing(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, kill_at: int, after: bool
) -> None:
    monkeypatch.setattr("refold_tools.archive.archiving.FILE_RECORDS_MAX", 6)
    archive.runs("r-1", "r-2", "r-3", "r-4")
    dying = Dying(archive, kill_at, after=after)
    assert archive.archive(dying) == []  # it was killed: two writes a file, and the commands
    archive.check()
    for process in list(archive.lab.universe.processes):
        process.kill()
    archive.lab.worker(archive.app)
    archive.runs("r-5")
    the_report(archive.archive())
    archive.check()
    start, _ = archive.bounds()
    assert archive.in_files() == [archive.whole[at] for at in range(start)]
    assert len(archive.vendor.done) == 5
    archive.damage(is_position, None)
    archive.check()  # behind the archive, which the snapshots name


def test_an_answer_that_is_lost_deletes_nothing(archive: Archive) -> None:
    archive.runs("r-1")

    class Lost(MemoryLog):
        async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
            await super().append(topic, partition, entries)
            return Ack(None)

    log = Lost("memory://lab", broker=archive.lab.broker, name="tool")
    (error,) = archive.archive(log)
    assert isinstance(error, RefoldError)
    assert error.code == "R314"
    assert archive.bounds()[0] == 0
    the_report(archive.archive())
    archive.check()


# ---- snapshots and positions that are not as they should be, behind an archive


@pytest.fixture
def trimmed(archive: Archive) -> Archive:
    """Two archived runs, a live one and one that has ended since."""
    archive.runs("r-1", "r-2")
    archive.runs("sleeper", run="reminder")
    archive.runs("r-3")
    assert the_report(archive.archive()).record_count > 0
    return archive


JUNK = b"\0" + (2_000_003_999).to_bytes(4, "big") + b" of a later version"


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (is_position, None),
        (is_position, JUNK),
        (lambda key: key.startswith("r-3/"), JUNK),
        (lambda key: key.startswith("sleeper/"), JUNK[:3]),
    ],
    ids=["no position", "a position of a later version", "an ended run", "a live run"],
)
def test_what_cannot_be_used_is_folded_behind_the_archive(
    trimmed: Archive, wanted: Callable[[str], bool], value: bytes | None
) -> None:
    trimmed.damage(wanted, value)
    trimmed.check()
    for process in list(trimmed.lab.universe.processes):
        process.kill()
    trimmed.lab.worker(trimmed.app)
    trimmed.runs("r-4")
    assert len(trimmed.vendor.done) == 4
    trimmed.check()


def test_an_old_snapshot_that_is_stored_late_changes_nothing(archive: Archive) -> None:
    archive.runs("sleeper", run="reminder")
    old = archive.snapshots(lambda key: key.startswith("sleeper/"))
    assert archive.lab.run(400, until=lambda: len(archive.vendor.done) == 1)
    archive.runs("r-1")
    the_report(archive.archive())
    archive.lab.broker.put(Topic.SNAPSHOTS, 0, old)
    archive.check()
    archive.damage(is_position, None)
    archive.check()


@pytest.mark.parametrize(
    ("value", "position"),
    [(JUNK, True), (None, False), (None, True)],
    ids=["unreadable", "deleted", "deleted, and a position stands"],
)
def test_a_run_of_which_nothing_is_left_stops_the_takeover(
    trimmed: Archive, value: bytes | None, position: bool
) -> None:
    """F23: with a clear word, at once, and not a claim is written."""
    if not position:
        trimmed.damage(is_position, None)
    trimmed.damage(lambda key: key.startswith("r-1/"), value)
    with pytest.raises(EventsGone) as gone:
        trimmed.seen()
    assert gone.value.runs == ("r-1",)
    start, end = trimmed.bounds()
    assert f"events 0\u2013{start - 1} are gone and no snapshot covers them: runs r-1" in str(
        gone.value
    )
    for process in list(trimmed.lab.universe.processes):
        process.kill()
    late = trimmed.lab.worker(trimmed.app)
    trimmed.lab.run(10, until=lambda: late.name in trimmed.lab.failures)
    failure = trimmed.lab.failures[late.name]
    assert (failure.code, failure.exit_code) == ("R317", 4)
    assert trimmed.bounds()[1] == end


# ---- trimmed by somebody else


def test_a_partition_trimmed_up_to_its_end_is_ready_at_once_f23(archive: Archive) -> None:
    archive.runs("r-1", "r-2")
    due = archive.due()
    for process in list(archive.lab.universe.processes):
        process.kill()
    _, end = archive.bounds()
    assert archive.seen().position.offset_next == end
    archive.lab.broker.trim(Topic.EVENTS, 0, end)
    assert archive.bounds() == (end, end)
    assert set(archive.seen().runs) == set(due.runs)
    archive.lab.worker(archive.app)
    archive.runs("r-3")
    assert len(archive.vendor.done) == 3
    archive.check()


def test_events_trimmed_beyond_every_position_stop_it_f23(archive: Archive) -> None:
    archive.runs("sleeper", run="reminder")
    for process in list(archive.lab.universe.processes):
        process.kill()
    position = archive.seen().position.offset_next
    archive.lab.broker.put(Topic.EVENTS, 0, [Entry(None, b"x")] * 200)
    archive.lab.broker.trim(Topic.EVENTS, 0, position + 100)
    with pytest.raises(EventsGone) as gone:
        archive.seen()
    assert (gone.value.offset_first, gone.value.offset_next) == (position, position + 100)
    assert gone.value.runs == ("sleeper",)
    (error,) = archive.archive()
    assert isinstance(error, EventsGone)


def test_what_something_else_has_trimmed_is_not_archived(archive: Archive) -> None:
    archive.runs("r-1", "r-2")
    archive.lab.broker.trim(Topic.EVENTS, 0, 2)
    archive.check()  # the checkpoint covers it
    (error,) = archive.archive()
    assert isinstance(error, ArchiveRefused)
    assert archive.bounds()[0] == 2


def test_trimmed_while_somebody_reads_it_begins_again_at_the_snapshots_f23(
    archive: Archive,
) -> None:
    archive.runs("r-1", "r-2")
    archive.damage(is_position, None)  # so that a reader has all of it to read
    for process in list(archive.lab.universe.processes):
        process.kill()
    archive.lab.worker(archive.app)

    class Overtaken(MemoryLog):
        """Between its first look and its first read others write a position, and archive."""

        trimmed = False

        async def read(
            self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
        ) -> Sequence[Record]:
            if topic is Topic.EVENTS and not self.trimmed:
                self.trimmed = True
                await asyncio.sleep(5)
                plan = Plan(archive.folder, LATER_MS, LATER_MS)
                other = MemoryLog("memory://lab", broker=archive.lab.broker, name="other")
                await other.open(create=False)
                await Archiving(other, CODEC, plan).partition(0)
            return await super().read(topic, partition, offset, size_max=size_max)

    archive.lab.start("order", 1, run_id="r-3")

    async def ask(log: MemoryLog) -> str:
        async with Client(log) as client:
            return (await client.boundary("r-1")).status

    log = Overtaken("memory://lab", broker=archive.lab.broker, name="tool")
    assert archive.process(ask, log) == ["completed"]
    assert archive.bounds()[0] > 0


def test_commands_that_are_gone_are_said_once_and_those_behind_are_taken_f22(
    archive: Archive,
) -> None:
    for process in list(archive.lab.universe.processes):
        process.kill()
    for number in range(120):
        archive.lab.start("order", number, run_id=f"early-{number}")
    archive.lab.worker(archive.app)
    archive.lab.run(20, until=lambda: len(archive.vendor.done) == 120)
    archive.lab.run(5)
    archive.note()
    for process in list(archive.lab.universe.processes):
        process.kill()
    archive.lab.broker.put(Topic.COMMANDS, 0, [Entry(b"lost", b"lost")] * 380)
    archive.lab.broker.trim(Topic.COMMANDS, 0, 500)
    for number in range(30):
        archive.lab.start("order", number, run_id=f"late-{number}")
    archive.lab.worker(archive.app)
    assert archive.lab.run(20, until=lambda: len(archive.vendor.done) == 150)
    archive.lab.run(2)
    due = archive.due()
    assert due.position.command_next == 530
    assert {f"late-{number}" for number in range(30)} <= set(due.runs)
    rejected = [
        event
        for event in (CODEC.decode(r.value or b"") for r in archive.whole.values())
        if isinstance(event, CommandRejected)
    ]
    assert [(e.reason, e.command_offset) for e in rejected] == [("gone", 120)]
    assert rejected[0].detail.startswith("commands 120\u2013499 are gone")
    warned = [event.text for event in archive.lab.told if "R318" in event.text]
    assert len(warned) == 1
    letters = [
        json.loads(r.value or b"") for r in archive.lab.broker.records(Topic.DEAD_LETTERS, 0)
    ]
    assert [(one["reason"], one["offset"], one["raw"]) for one in letters] == [("gone", 120, None)]


def test_a_position_ahead_of_the_commands_stops_the_worker_f22(archive: Archive) -> None:
    archive.runs("r-1", "r-2")
    for process in list(archive.lab.universe.processes):
        process.kill()
    end = archive.bounds()[1]
    archive.lab.broker.cut(Topic.COMMANDS, 0, 1)
    late = archive.lab.worker(archive.app)
    archive.lab.run(10, until=lambda: late.name in archive.lab.failures)
    failure = archive.lab.failures[late.name]
    assert failure.code == "R013"
    assert "its commands end at 1, below 2" in str(failure)
    assert archive.bounds()[1] == end  # not a claim was written


# ---- the files


def test_a_file_holds_every_byte_and_the_position_it_begins_at(archive: Archive) -> None:
    archive.runs("r-1")
    first = the_report(archive.archive())
    archive.runs("r-2")
    second = the_report(archive.archive())
    one, two = first.files[0].path, second.files[0].path
    assert one.name == f"lab.events.00000.{0:020}-{first.events_next:020}.jsonl.gz"
    header, records = read_archive(two)
    assert (header.namespace, header.partition, header.offset_from) == ("lab", 0, first.events_next)
    found = list(records)
    assert found == [archive.whole[at] for at in range(first.events_next, second.events_next)]
    base = base_of(CODEC.decode(header.base))
    fold = PartitionFold(CODEC, keep=lambda _: False)
    fold.apply_all(archive.whole[at] for at in range(first.events_next))
    assert (base.position, base.facts) == (fold.position, fold.facts)
    told = [
        CODEC.decode(entry.value or b"")
        for entry in archive.snapshots(lambda key: key.startswith("/archived."))
    ]
    names = [archived.file for archived in told if isinstance(archived, Archived)]
    assert names == [one.name, two.name]
    with gzip.open(one, "rt") as lines:
        texts = [json.loads(line) for line in lines]
    assert texts[0]["refold_archive"] == 1
    assert texts[-1]["records"] == len(texts) - 2 == first.record_count


@pytest.mark.parametrize("how", ["cut", "changed", "left out", "appended", "no archive"])
def test_a_file_that_is_not_as_written_is_refused(archive: Archive, how: str) -> None:
    archive.runs("r-1")
    path = the_report(archive.archive()).files[0].path
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    changed = {
        "cut": path.read_bytes()[:-30],
        "changed": gzip.compress(b"".join(lines).replace(b"[1,", b"[2,", 1)),
        "left out": gzip.compress(b"".join([*lines[:2], *lines[3:]])),
        "appended": gzip.compress(b"".join([*lines, lines[2]])),
        "no archive": b"not gzip",
    }[how]
    path.write_bytes(changed)
    with pytest.raises(ArchiveDamaged):
        list(read_archive(path)[1])


def test_a_file_of_another_log_is_not_overwritten(archive: Archive) -> None:
    archive.runs("r-1")
    report = the_report(archive.archive(dry=True))
    name = f"lab.events.00000.{0:020}-{report.events_next:020}.jsonl.gz"
    archive.folder.mkdir()
    (archive.folder / name).write_bytes(b"somebody's only copy")
    (error,) = archive.archive()
    assert isinstance(error, ArchiveUnwritable)
    assert archive.bounds()[0] == 0
    assert [path.name for path in archive.folder.iterdir()] == [name]


def test_a_folder_that_cannot_be_made_is_said(archive: Archive) -> None:
    archive.runs("r-1")
    archive.folder.write_text("a file")
    (error,) = archive.archive()
    assert isinstance(error, ArchiveUnwritable)
    assert archive.bounds()[0] == 0


def test_history_goes_on_from_where_the_archive_ends(trimmed: Archive) -> None:
    """A reader of what is left judges each record as one that has read everything."""
    trimmed.runs("r-9")

    async def ask(log: MemoryLog) -> Any:
        async with Client(log) as client:
            said = [one async for one in client.history("r-9", claims=False)]
            old = [one async for one in client.history("r-1")]
            seen = await client.boundary_at("r-1")
            return said, old, seen, await client.archived("r-9")

    ((said, old, seen, none),) = trimmed.process(ask)
    assert len(said) > 3
    assert all(one.counted for one in said)
    assert (old, none) == ([], ())
    (name,) = seen.archived
    assert (trimmed.folder / name).exists()
    assert (seen.boundary.status, len(seen.boundary.done)) == ("completed", 1)
    header = RecordHeader.read(next(iter(trimmed.in_files())).header)
    assert header is not None


def test_a_client_that_rested_while_its_partition_was_archived_goes_on(archive: Archive) -> None:
    """A gateway lives for months, and nobody asks it about a partition for a day."""
    lab = archive.lab
    came: dict[str, object] = {}
    archived = asyncio.Event()

    async def main() -> None:
        await log.open(create=False)
        async with Client(log) as client:
            slow = await client.start("reminder", 1, run_id="slow")
            came["begun"] = True
            await archived.wait()
            fresh = await client.start("order", 4160, run_id="fresh")
            came["fresh"] = await fresh.result()
            came["slow"] = await slow.result()  # its end stands in what was archived

    log = MemoryLog("memory://lab", broker=lab.broker, name="caller")
    process = SimProcess(lab.universe, "caller", epoch_ms=EPOCH_MS)
    process.on_kill.append(log.kill)
    task = process.start(main())
    lab.run(60, until=lambda: "begun" in came)
    lab.run(400)
    archive.runs("last")
    the_report(archive.archive())
    assert archive.bounds()[0] == archive.bounds()[1] - 1
    archived.set()
    lab.run(60, until=lambda: task.done())
    task.result()
    assert came == {"begun": True, "slow": "receipt-1", "fresh": "receipt-3"}


class Stalled(MemoryLog):
    """Reads no events while its gate is closed, as behind a network that is slow."""

    gate: asyncio.Event

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        if topic is Topic.EVENTS:
            await self.gate.wait()
        return await super().read(topic, partition, offset, size_max=size_max)


class Caller:
    """A client in a process of its own that waits while what it waits for is trimmed unread."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.came = archive, dict[str, object]()
        self.log = Stalled("memory://lab", broker=archive.lab.broker, name="caller")
        self.log.gate = asyncio.Event()
        self.log.gate.set()
        self.process = SimProcess(archive.lab.universe, "caller", epoch_ms=EPOCH_MS)
        self.process.on_kill.append(self.log.kill)
        self.task = self.process.start(self._main())
        archive.lab.run(60, until=lambda: "ready" in self.came)

    async def _main(self) -> None:
        await self.log.open(create=False)
        async with Client(self.log) as client:
            await client.start("reminder", 1, run_id="slow")
            self.came["ready"] = True
            await asyncio.sleep(5)
            self.log.gate.clear()
            async with asyncio.TaskGroup() as group:
                for name, work in (
                    ("done", client.start("order", 4160, run_id="done")),
                    ("refused", client.start("nothing", run_id="refused")),
                    ("cancelled", client.cancel("slow")),
                    ("ended", client.handle("slow").ended()),
                ):
                    group.create_task(self._outcome(name, work))

    async def _outcome(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            self.came[name] = await work
        except RefoldError as error:
            self.came[name] = error

    def finish(self) -> None:
        """Let it read on, and wait for all that it waits for."""
        self.log.gate.set()
        assert self.archive.lab.run(60, until=lambda: self.task.done())
        self.task.result()


def test_whoever_waits_while_the_log_is_trimmed_hears_what_is_known(archive: Archive) -> None:
    """Unknown is not failed: they were told R312, as if their commands had come to nothing."""
    caller = Caller(archive)
    archive.lab.run(400)
    archive.runs("last")
    the_report(archive.archive())
    assert archive.bounds()[0] > 0
    caller.finish()
    came = caller.came
    assert isinstance(came["done"], RunHandle), "its run is there, with this input"
    assert came["cancelled"] is None, "its run was cancelled"
    assert isinstance(came["ended"], Ended)
    assert came["ended"].status == "cancelled"
    refused = came["refused"]
    assert isinstance(refused, CommandUnknown), refused
    assert refused.stored
    assert refused.message.startswith("it is not known what became of StartRun for run refused")


def test_what_is_decided_after_the_log_was_trimmed_is_still_heard(archive: Archive) -> None:
    archive.runs("first")
    caller = Caller(archive)
    archive.lab.run(3)  # a checkpoint is written
    for process in list(archive.lab.universe.processes):
        if process is not caller.process:
            process.kill()
    archive.lab.run(5)  # its commands stand, and nobody decides them
    end = archive.bounds()[1]
    archive.lab.broker.put(Topic.EVENTS, 0, [Entry(None, b"x")])
    archive.lab.broker.trim(Topic.EVENTS, 0, end)
    caller.log.gate.set()
    archive.lab.run(5)
    assert {"done", "refused", "cancelled"}.isdisjoint(caller.came), "nobody has decided yet"
    archive.lab.worker(archive.app)
    caller.finish()
    assert isinstance(caller.came["done"], RunHandle)
    assert isinstance(caller.came["refused"], FunctionUnknown)
    assert caller.came["cancelled"] is None


def test_a_log_that_cannot_be_read_says_nothing_of_a_command_that_it_has(archive: Archive) -> None:
    class Away(MemoryLog):
        """Its events cannot be read any more once it has a command."""

        away = False

        async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
            self.away = True
            return await super().append(topic, partition, entries)

        async def read(
            self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
        ) -> Sequence[Record]:
            if self.away:
                raise LogUnavailable(self.url, "its broker does not answer")
            return await super().read(topic, partition, offset, size_max=size_max)

    async def ask(log: MemoryLog) -> object:
        async with Client(log) as client:
            return await client.start("order", 1, run_id="r-1")

    log = Away("memory://lab", broker=archive.lab.broker, name="tool")
    (error,) = archive.process(ask, log)
    assert isinstance(error, CommandUnknown)
    assert error.stored
    assert "its broker does not answer" in error.message
