"""A position and the snapshots beside it: what an owner would take over is what the log says."""

from collections.abc import Coroutine
from typing import Any

import pytest

from refold.engine import checkpoints
from refold.engine.checkpoints import Kept
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Entry, Topic
from refold_projections.fold import PartitionFold, state_hash, to_snapshot
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, Codec, RecordHeader
from refold_schemas.errors import BatchTooLarge
from refold_schemas.events import PartitionClaimed, RunCompleted, RunStarted
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value

CLAIM = b"c" * 16
CLAIMED = PartitionClaimed("w", "p", "app", "0", (), (), 1, 1)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


class Stage:
    """A log with one claim and two runs, written by hand."""

    def __init__(self) -> None:
        self.codec = Codec(FileRegistry())
        self.broker = MemoryBroker("t", now_ms=lambda: 0)
        self.broker.exists = True
        self.n = 0
        self.kept = Kept()
        self._put(None, CLAIMED, KIND_CLAIM)
        self.n = 0
        for run_id in ("run-1", "run-2"):
            self.event(run_id, RunStarted("order", "1", encode_value(1), bytes(32), run_id, "t"))

    def event(self, run_id: str, event: Any) -> None:
        self._put(run_id.encode(), event, KIND_EVENT)

    def _put(self, key: bytes | None, event: Any, kind: int) -> None:
        header = RecordHeader(kind, CLAIM, 1, self.n, 0, 0)
        self.broker.put(Topic.EVENTS, 0, [Entry(key, self.codec.encode(event), header.pack())])
        self.n += 1

    def fold(self) -> PartitionFold:
        fold = PartitionFold(self.codec)
        fold.apply_all(self.broker.records(Topic.EVENTS, 0))
        return fold

    def snapshots(self, *run_ids: str, label: str) -> list[Entry]:
        fold = self.fold()
        runs = [
            (run_id, self.codec.encode(to_snapshot(fold.runs[run_id], fold.marks[run_id])))
            for run_id in run_ids
        ]
        [batch] = checkpoints.snapshot_batches(label, runs, 1 << 20)
        return batch

    def position(self, label: str) -> list[Entry]:
        fold = self.fold()
        kept = checkpoints.checkpoint_of(0, fold.position, fold.facts)
        return [Entry(f"/{label}".encode(), self.codec.encode(kept))]

    def store(self, entries: list[Entry]) -> None:
        self.broker.put(Topic.SNAPSHOTS, 0, entries)

    def taken_over(self) -> tuple[PartitionFold, Kept]:
        log = MemoryLog("memory://t", broker=self.broker)
        at_once(log.open(create=False))
        restored = at_once(checkpoints.load(log, 0, self.codec))
        fold, kept = restored.fold, restored.kept
        start = fold.position.offset_next
        fold.apply_all(r for r in self.broker.records(Topic.EVENTS, 0) if r.offset >= start)
        return fold, kept

    def check(self) -> None:
        fold, _ = self.taken_over()
        due = self.fold()
        assert fold.position == due.position
        assert {r: state_hash(s) for r, s in fold.runs.items()} == {
            r: state_hash(s) for r, s in due.runs.items()
        }


def test_a_snapshot_ahead_of_its_position_is_not_folded_twice() -> None:
    stage = Stage()
    label = stage.kept.label(CLAIM)
    stage.store(stage.snapshots("run-1", "run-2", label=label))
    stage.store(stage.position(label))
    stage.event("run-1", RunCompleted(encode_value(2)))
    stage.store(stage.snapshots("run-1", label=stage.kept.label(CLAIM)))  # and then it died
    stage.check()


def test_an_old_copy_that_is_stored_late_does_not_replace_a_newer_snapshot() -> None:
    stage = Stage()
    first = stage.kept.label(CLAIM)
    old = stage.snapshots("run-1", "run-2", label=first)
    stage.store(old)
    stage.store(stage.position(first))
    stage.event("run-1", RunCompleted(encode_value(2)))
    second = stage.kept.label(CLAIM)
    stage.store(stage.snapshots("run-1", label=second))
    stage.store(stage.position(second))
    stage.store(old)
    stage.broker.compact()
    stage.check()


def test_what_was_folded_without_a_snapshot_is_told_apart_from_what_has_one() -> None:
    stage = Stage()
    label = stage.kept.label(CLAIM)
    stage.store(stage.snapshots("run-1", "run-2", label=label))
    stage.store(stage.position(label))
    stage.event("run-1", RunCompleted(encode_value(2)))
    fold, _ = stage.taken_over()
    assert list(fold.touched) == ["run-1"]


def test_a_run_too_large_for_a_snapshot_lets_no_position_be_written() -> None:
    with pytest.raises(BatchTooLarge):
        list(checkpoints.snapshot_batches("x", [("run-1", b"s" * 200)], 100))


def test_keys_are_deleted_once_newer_ones_stand_those_of_a_failed_write_too() -> None:
    kept = Kept()
    assert kept.replaced(["a", "b"], "1") == []
    kept.failed(["a"], "2")
    assert kept.replaced(["a"], "3") == [b"/1", b"/2", b"a/1", b"a/2"]
    assert kept.replaced(["b"], "4") == [b"/3", b"b/1"]
