"""A position and the snapshots beside it: what an owner would take over is what the log says."""

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.engine import checkpoints, keeping, stored
from refold.engine.bases import Base
from refold.engine.books import Books
from refold.engine.checkpoints import Restored
from refold.engine.clock import SystemClock
from refold.engine.keeping import Keeper
from refold.engine.log_clock import LogClock
from refold.engine.settings import WorkerSettings
from refold.engine.stored import LABELS_MAX, Kept
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Entry, Record, Topic
from refold.log.sizes import batch_size
from refold_projections.fold import (
    PartitionFold,
    RunStates,
    Verdict,
    snapshot_pieces,
    state_hash,
    to_snapshot,
)
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, Codec, RecordHeader
from refold_schemas.errors import LogUnavailable
from refold_schemas.events import PartitionClaimed, RunCompleted, RunStarted, StepCompleted
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value

CLAIMED = PartitionClaimed("w", "p", "app", "0", (), (), 1, 1)
CODEC = Codec(FileRegistry())
MEGABYTE = 1 << 20


def through(work: Coroutine[Any, Any, Any]) -> Any:
    """Run what waits for nothing but its next turn."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


def raised(run_id: str, error: Exception) -> None:
    raise error


class OutOfDisk(LogUnavailable):
    """What a snapshot append meets when it is told to fail."""

    def __init__(self) -> None:
        super().__init__("memory://t", "no space")


class Stage:
    """A log and one owner after the other, written by hand: the engine's books, no engine.

    `fail_at`: which of the next appends to the snapshots fail, and whether it was stored.
    """

    def __init__(self, batch_size_max: int = 4 * MEGABYTE) -> None:
        self.broker = MemoryBroker("t", now_ms=lambda: 0)
        self.broker.batch_size_max = batch_size_max
        self.broker.exists = True
        self.log = MemoryLog("memory://t", broker=self.broker)
        through(self.log.open(create=False))
        self.claim_id, self.epoch, self.n = bytes(16), 0, 0
        self.completed: dict[str, int] = {}
        self.fail_at: dict[int, bool] = {}
        self.appends: list[list[Entry]] = []
        self.take_over()

    # ---- the owner

    def take_over(self) -> None:
        self.epoch += 1
        self.claim_id, self.n = bytes([self.epoch % 256]) * 16, 0
        self._put(None, replace(CLAIMED, process=f"p{self.epoch}"), KIND_CLAIM)
        self.n = 0
        restored, self.fold = self.taken_over()
        states = self.fold.runs
        assert isinstance(states, RunStates)
        clock = LogClock(
            SystemClock(), append_ms=0, sent_boot_ms=0, told_boot_ms=0, skew_max_ms=5_000
        )
        self.books = Books(
            self.fold,
            states,
            CODEC,
            clock,
            epoch=self.epoch,
            batch_size_max=self.broker.batch_size_max,
            limits=WorkerSettings(),
            on_timer=lambda run_id, event: None,
            on_change=lambda run_id: None,
            on_limit=lambda run_id: None,
            failed=raised,
        )
        self.kept = restored.kept
        self.keeper = Keeper(
            self.books,
            CODEC,
            0,
            restored.kept,
            restored.base,
            self._append,
            batch_size_max=lambda: self.log.facts.batch_size_max,
        )

    def start(self, run_id: str) -> None:
        self.event(run_id, RunStarted("order", "1", encode_value(1), bytes(32), run_id, "t"))

    def step(self, run_id: str, size: int) -> None:
        number = self.completed[run_id] = self.completed.get(run_id, 0) + 1
        value = encode_value("x" * size)
        self.event(
            run_id,
            StepCompleted(f"read#{number}", 1, value, None, None, "read", bytes(32), ()),
        )

    def event(self, run_id: str, event: Any) -> None:
        self._put(run_id.encode(), event, KIND_EVENT)
        applied = self.fold.apply(self.events()[-1])
        assert applied.verdict is Verdict.COUNTS
        self.books.dirty[run_id] = None

    def checkpoint(self, *, whole: bool = False) -> None:
        """As the owner does it. Raises OutOfDisk where an append is to fail."""
        self.appends.clear()
        old = through(
            self.keeper.checkpoint(lambda: Base(self.fold.position, self.fold.facts), whole=whole)
        )
        through(self.keeper.delete(old))

    async def _append(self, entries: list[Entry]) -> int:
        stored = self.fail_at.pop(len(self.appends), None)
        self.appends.append(entries)
        offset: int | None = None
        if stored is not False:
            offset = (await self.log.append(Topic.SNAPSHOTS, 0, entries)).offset
        if stored is not None:
            raise OutOfDisk
        assert offset is not None
        return offset

    def _put(self, key: bytes | None, event: Any, kind: int) -> None:
        header = RecordHeader(kind, self.claim_id, self.epoch, self.n, 0, 0)
        self.broker.put(Topic.EVENTS, 0, [Entry(key, CODEC.encode(event), header.pack())])
        self.n += 1

    # ---- what others see

    def events(self) -> tuple[Record, ...]:
        return self.broker.records(Topic.EVENTS, 0)

    def standing(self) -> dict[bytes, bytes]:
        """The snapshots and positions that were not deleted."""
        found: dict[bytes, bytes | None] = {}
        for record in self.broker.records(Topic.SNAPSHOTS, 0):
            assert record.key is not None
            found[record.key] = record.value
        return {key: value for key, value in found.items() if value is not None}

    def loaded(self) -> Restored:
        restored: Restored = through(checkpoints.load(self.log, 0, CODEC))
        return restored

    def taken_over(self) -> tuple[Restored, PartitionFold]:
        restored = self.loaded()
        fold = restored.fold
        start = fold.position.offset_next
        fold.apply_all(r for r in self.events() if r.offset >= start)
        return restored, fold

    def check(self) -> int:
        """A takeover now equals the whole fold; returns where it began."""
        restored, fold = self.taken_over()
        due = PartitionFold(CODEC)
        due.apply_all(self.events())
        assert (fold.position, fold.facts) == (due.position, due.facts)
        assert {r: state_hash(s) for r, s in fold.runs.items()} == {
            r: state_hash(s) for r, s in due.runs.items()
        }
        assert fold.marks == due.marks
        return restored.base.position.offset_next


@contextmanager
def small_limits(*, redo: int = 100_000) -> Iterator[None]:
    """Snapshots of a few hundred bytes are large, and of more than a thousand cut into parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "LARGE_BYTES", 400)
        patch.setattr(keeping, "LARGE_BYTES", 400)
        patch.setattr(keeping, "PART_BYTES", 1_000)
        patch.setattr(keeping, "BATCH_BYTES", 1_500)
        patch.setattr(keeping, "REDO_EVENTS_MAX", redo)
        yield


# ---- what a reader takes


def test_a_snapshot_ahead_of_its_position_is_not_folded_twice() -> None:
    stage = Stage()
    stage.start("run-1")
    stage.start("run-2")
    stage.checkpoint()
    stage.event("run-1", RunCompleted(encode_value(2)))
    stage.fail_at = {1: False}  # the snapshot stands, the position does not: and then it died
    with pytest.raises(OutOfDisk):
        stage.checkpoint()
    assert stage.check() == 3


def test_an_old_copy_that_is_stored_late_does_not_replace_a_newer_snapshot() -> None:
    stage = Stage()
    stage.start("run-1")
    stage.start("run-2")
    stage.checkpoint()
    old = stage.appends[0]
    stage.event("run-1", RunCompleted(encode_value(2)))
    stage.checkpoint()
    stage.broker.put(Topic.SNAPSHOTS, 0, old)
    stage.broker.compact()
    assert stage.check() == 4


def test_what_was_folded_without_a_snapshot_is_told_apart_from_what_has_one() -> None:
    stage = Stage()
    stage.start("run-1")
    stage.start("run-2")
    stage.checkpoint()
    stage.event("run-1", RunCompleted(encode_value(2)))
    assert list(stage.taken_over()[1].touched) == ["run-1"]


def test_snapshots_go_into_the_batches_that_the_log_takes() -> None:
    """And so do the keys that are deleted: of many small ones most of it is not key and value."""
    stage = Stage(batch_size_max=16_000)
    stage.start("large")
    stage.step("large", 15_000)
    for _ in range(2):
        for number in range(300):
            stage.start(f"run-{number}")
        stage.step("large", 15_000)
        stage.checkpoint()
        assert stage.check() == len(stage.events())
        assert max(map(batch_size, stage.appends)) <= 16_000


def test_a_limit_that_falls_during_a_claim_counts_for_its_next_checkpoint() -> None:
    """No decision may be so large for months, and until one is, the claim goes on."""
    stage = Stage()
    stage.start("large")
    stage.step("large", 60_000)
    stage.broker.batch_size_max = 16_000
    stage.checkpoint()
    assert stage.check() == len(stage.events())
    assert max(map(batch_size, stage.appends)) <= 16_000


def test_a_snapshot_that_nobody_can_read_is_not_passed_over() -> None:
    stage = Stage()
    stage.start("run-1")
    stage.start("run-2")
    stage.checkpoint()
    label = stage.kept.snapshots["run-1"][0]
    key = f"run-1/{label}".encode()
    stage.broker.put(Topic.SNAPSHOTS, 0, [Entry(key, b"\0\0\0\xff\xff of a later version")])
    assert stage.check() == 0  # the whole fold: without run-1 the position would be a lie
    stage.take_over()
    stage.checkpoint()
    assert stage.check() == 4
    assert key not in stage.standing()


@pytest.mark.parametrize("compacted", [False, True])
def test_a_run_whose_snapshot_somebody_deleted_is_not_lost(compacted: bool) -> None:
    stage = Stage()
    for number in range(3):
        stage.start(f"run-{number}")
    stage.checkpoint()
    stage.start("run-3")
    stage.checkpoint()
    assert stage.check() == 5
    [label] = stage.kept.snapshots["run-1"]
    stage.broker.put(Topic.SNAPSHOTS, 0, [Entry(f"run-1/{label}".encode(), None)])
    if compacted:
        stage.broker.compact()
    assert "counts on are gone" in stage.loaded().unused
    assert stage.check() == 0
    assert through(checkpoints.load(stage.log, 0, CODEC, keep="run-1".__eq__)).unused
    stage.take_over()
    stage.checkpoint()
    assert stage.check() == 6


def test_a_new_run_with_a_snapshot_and_no_position_stands_in_for_no_deleted_one() -> None:
    stage = Stage()
    stage.start("run-1")
    stage.checkpoint()
    [label] = stage.kept.snapshots["run-1"]
    stage.start("run-2")
    stage.fail_at = {1: False}  # its snapshot stands, the position does not
    with pytest.raises(OutOfDisk):
        stage.checkpoint()
    assert stage.check() == 2
    stage.broker.put(Topic.SNAPSHOTS, 0, [Entry(f"run-1/{label}".encode(), None)])
    assert stage.check() == 0


def test_what_nobody_can_read_and_is_of_no_run_is_taken_away() -> None:
    """Else every takeover would fold the whole log, for ever."""
    stage = Stage()
    stage.start("run-1")
    stage.checkpoint()
    junk = b"nobody/" + b"0" * 32 + b".1"
    stage.broker.put(Topic.SNAPSHOTS, 0, [Entry(junk, b"\0\0\0\xff\xff")])
    assert "cannot be read" in stage.loaded().unused
    stage.take_over()
    stage.fail_at = {0: False}
    stage.start("run-2")
    with pytest.raises(OutOfDisk):
        stage.checkpoint()
    assert junk in stage.standing()
    stage.checkpoint()
    assert junk not in stage.standing()
    assert stage.check() == 4
    assert stage.loaded().unused == ""


def test_snapshots_that_were_deleted_under_a_living_owner_are_written_anew() -> None:
    """A position beside the snapshots of what changed since would say that nothing else was."""
    stage = Stage()
    for number in range(3):
        stage.start(f"run-{number}")
    stage.checkpoint()
    stage.broker.cut(Topic.SNAPSHOTS, 0, 0)  # as a topic that was deleted and made again
    stage.event("run-1", RunCompleted(encode_value(2)))
    stage.checkpoint()
    assert stage.check() == 5
    assert {key.partition(b"/")[0] for key in stage.standing()} == {
        b"run-0",
        b"run-1",
        b"run-2",
        b"",
    }
    stage.checkpoint()
    assert len(stage.appends) == 2  # a position, and the old one deleted: nothing is written twice


def test_marks_far_apart_are_looked_up_without_reading_what_lies_between() -> None:
    stage = Stage()
    stage.start("busy")
    for number in range(5):
        stage.start(f"run-{number}")
        for _ in range(40):
            stage.step("busy", 20_000)
    stage.checkpoint()
    before = stage.broker.read_count
    sizes: list[int] = []
    read = stage.log.read

    async def counted(topic: Topic, partition: int, offset: int, *, size_max: int) -> Any:
        records = await read(topic, partition, offset, size_max=size_max)
        if topic is Topic.EVENTS:
            sizes.append(sum(len(r.value or b"") for r in records))
        return records

    stage.log.read = counted  # type: ignore[assignment, method-assign]
    assert stage.loaded().base.position.offset_next == 207
    assert stage.broker.read_count > before
    assert sum(sizes) < 1_000_000  # of four million


# ---- runs of any size


def test_a_run_whose_snapshot_fits_no_batch_has_one_in_parts() -> None:
    stage = Stage()
    stage.start("large")
    stage.start("small")
    for _ in range(6):
        stage.step("large", 900_000)
    stage.checkpoint()
    assert stage.check() == 9
    assert sum(key.startswith(b"large/") for key in stage.standing()) > 6
    assert all(len(value) < MEGABYTE for value in stage.standing().values())
    stage.event("large", RunCompleted(encode_value(2)))
    stage.checkpoint(whole=True)
    stage.take_over()
    stage.event("small", RunCompleted(encode_value(2)))
    stage.checkpoint()
    stage.check()
    assert len(stage.standing()) == 3  # values of a run that ended are in the log


@pytest.mark.untraced
def test_fifty_thousand_steps_are_written_in_turns_and_taken_over() -> None:
    stage = Stage()
    stage.start("long")
    header = RecordHeader(KIND_EVENT, stage.claim_id, stage.epoch, 0, 0, 0)
    batch = []
    for number in range(50_000):
        event = StepCompleted(
            f"read#{number + 1}", 1, encode_value(number), None, None, "read", bytes(32), ()
        )
        packed = header._replace(n=stage.n + number).pack()
        batch.append(Entry(b"long", CODEC.encode(event), packed))
    stage.broker.put(Topic.EVENTS, 0, batch)
    stage.n += len(batch)
    stage.fold.apply_all(stage.events()[-len(batch) :])
    stage.books.dirty["long"] = None
    turns = 0
    work = stage.keeper.checkpoint(lambda: Base(stage.fold.position, stage.fold.facts), whole=False)
    try:
        while True:
            work.send(None)
            turns += 1
    except StopIteration:
        pass
    assert turns > 50
    stage.step("long", 10)
    stage.checkpoint()
    assert len(stage.appends) == 2  # a position and the deletion of the one before it
    assert stage.check() == 50_002


@pytest.mark.parametrize("steps", [0, 1, 249, 250, 251, 252, 501, 502, 1_000])
@pytest.mark.parametrize("ended", [False, True])
def test_the_pieces_of_a_snapshot_are_that_snapshot(steps: int, ended: bool) -> None:
    stage = Stage()
    stage.start("run-1")
    for number in range(steps):
        stage.step("run-1", number % 3 * 50)
    if ended:
        stage.event("run-1", RunCompleted(encode_value(1)))
    state, mark = stage.books.states["run-1"], stage.books.marks["run-1"]
    pieces = list(snapshot_pieces(CODEC, state, mark))
    assert CODEC.decode(b"".join(pieces)) == to_snapshot(state, mark)
    assert max(map(len, pieces)) < 60_000


def test_what_happens_while_a_checkpoint_is_written_is_not_lost() -> None:
    stage = Stage()
    with small_limits():
        for number in range(3):
            stage.start(f"run-{number}")
            for _ in range(4):
                stage.step(f"run-{number}", 300)
        work = stage.keeper.checkpoint(
            lambda: Base(stage.fold.position, stage.fold.facts), whole=False
        )
        work.send(None)
        stage.event("run-1", RunCompleted(encode_value(1)))
        through(work)
        assert stage.check() == 16
        assert list(stage.books.dirty) == ["run-1"]
        stage.checkpoint()
        assert stage.check() == 16  # run-1 has not grown by enough
        stage.checkpoint(whole=True)
        assert stage.check() == 17


# ---- a large run stays behind


def test_a_large_run_is_written_again_once_it_has_grown_and_holds_the_position_meanwhile() -> None:
    stage = Stage()
    with small_limits():
        stage.start("large")
        for _ in range(10):
            stage.step("large", 100)
        stage.checkpoint()
        whole = stage.fold.position.offset_next
        stage.start("other")
        stage.step("large", 10)
        stage.checkpoint()
        assert stage.check() == whole
        assert [key for key in stage.standing() if key.startswith(b"other/")]
        for _ in range(10):
            stage.step("large", 100)
        stage.checkpoint()
        assert stage.check() == stage.fold.position.offset_next


def test_a_large_run_is_written_again_once_too_much_would_have_to_be_read_for_it() -> None:
    stage = Stage()
    with small_limits(redo=20):
        stage.start("large")
        for _ in range(30):
            stage.step("large", 100)
        stage.checkpoint()
        whole = stage.fold.position.offset_next
        stage.step("large", 1)
        for number in range(15):
            stage.start(f"run-{number}")
        stage.checkpoint()
        assert stage.check() == whole
        stage.take_over()  # the next owner knows what waits
        stage.checkpoint()
        assert stage.check() == whole
        for number in range(15, 20):
            stage.start(f"run-{number}")
        stage.checkpoint()
        assert stage.check() == stage.fold.position.offset_next


STEPS = st.tuples(st.just("step"), st.integers(0, 2), st.sampled_from([1, 1, 700]))
CHECKPOINTS = st.tuples(st.just("checkpoint"), st.integers(0, 6), st.integers(0, 5))
OPERATIONS = st.lists(
    st.one_of(
        STEPS,
        STEPS,
        CHECKPOINTS,
        CHECKPOINTS,
        st.tuples(st.just("end"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("pack"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("take over"), st.just(0), st.just(0)),
        st.tuples(st.just("compact"), st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=40,
)


@pytest.mark.untraced
@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_whatever_fails_and_whoever_takes_over_equals_the_whole_fold(
    operations: list[tuple[str, int, int]],
) -> None:
    """Steps, checkpoints cut off at any append (stored or not), takeovers, compaction."""
    stage = Stage()
    with small_limits(redo=12):
        for kind, which, how in operations:
            run_id = f"run-{which}"
            if kind == "step":
                if run_id not in stage.books.states:
                    stage.start(run_id)
                stage.step(run_id, how)
            elif kind == "end":
                if run_id in stage.books.states:
                    stage.event(run_id, RunCompleted(encode_value(1)))
            elif kind == "pack":
                if run_id in stage.books.states:
                    stage.books.states.pack(run_id, stage.books.marks[run_id])
            elif kind == "checkpoint":
                stage.fail_at = {which: how == 0} if how < 2 else {}
                with suppress(OutOfDisk):
                    stage.checkpoint(whole=how == 2)
                stage.fail_at = {}
            elif kind == "take over":
                stage.take_over()
            else:
                stage.broker.compact()
            stage.check()
        # What nobody needs goes: one snapshot of each run, and one position.
        stage.take_over()
        for run_id in stage.books.states:
            stage.books.dirty[run_id] = None
        stage.checkpoint(whole=True)
        standing = stage.standing()
        assert stage.check() == stage.fold.position.offset_next
        assert {key.rpartition(b"/")[0].decode() for key in standing} == {"", *stage.books.states}
        assert sum(key.startswith(b"/") for key in standing) == 1
        assert len({key.split(b"/")[1].split(b".")[1] for key in standing}) == 1


# ---- keys


def test_keys_are_deleted_once_newer_ones_stand_those_of_a_failed_write_too() -> None:
    kept = Kept()
    assert kept.replaced([("a", 1), ("b", 2)], "1") == []
    kept.failed(["a"], "2")
    assert kept.replaced([("a", 1)], "3") == [b"/1", b"/2", b"a/1", b"a/2"]
    assert kept.replaced([("b", 1)], "4") == [b"/3", b"b/1.0", b"b/1.1"]


def test_a_log_that_refuses_snapshots_for_ever_costs_no_memory() -> None:
    kept = Kept()
    for number in range(1_000):
        kept.failed(["a"], str(number))
    assert len(kept.snapshots["a"]) == len(kept.checkpoints) == LABELS_MAX
