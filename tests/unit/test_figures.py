"""Live figures: what each event counts, and that splits, restarts and copies change nothing."""

import asyncio
import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.live.keeping import Keeper, restored
from refold.log import Record, Topic
from refold.log.memory import MemoryBroker
from refold_projections.figures import (
    BOUNDS_MS,
    COUNTERS,
    HISTOGRAMS,
    KEPT_MS,
    TOTAL,
    WIDTHS_MS,
    CellKey,
    Figures,
    PartitionFigures,
    QuestionRefused,
    RecordsChanged,
    histogram,
)
from refold_projections.figures import cells as cells_of
from refold_projections.figures import partition as partition_of
from refold_projections.figures.memory import OpenRun
from refold_projections.figures.stored import (
    STANDING,
    StoredKey,
    newer,
    pack_run,
    pack_standing,
    unpack_run,
    unpack_standing,
)
from refold_projections.fold import NO_CLAIM, PartitionFold, boundary
from refold_schemas.events import (
    PartitionReleased,
    RunBlocked,
    RunCompleted,
    RunDiverged,
    RunFailed,
    RunResumed,
    StepCompleted,
    StepInDoubt,
    StepResolved,
    TimerScheduled,
)
from refold_schemas.values import ModelUse
from support.live_history import ERROR, OK, Log, history
from support.written_log import CODEC, NOON_MS, Writer, done, intended, started

Table = dict[bytes, bytes]


def counted(records: list[Record], *, traces: bool = False) -> PartitionFigures:
    figures = PartitionFigures(CODEC, traces=traces)
    for record in records:
        figures.apply(record)
    return figures


def of(figures: PartitionFigures, step: str = "", run: str = "shop") -> dict[str, int]:
    return figures.cells[CellKey(TOTAL, 0, run, step)].counts


# ---- what each event counts


def test_a_run_counts_its_steps_models_and_durations() -> None:
    log = Log()
    writer = log.writer
    writer.claim()
    writer.write("r1", *started())  # at +1 s
    writer.write("r1", done("load#1"))  # +2 s: a second after the start
    use = ModelUse("m-1", "end", 30, 7, 1_250)
    think = StepCompleted("think#1", 1, OK, None, use, "think", bytes(32), ())
    writer.write("r1", think, intended("charge#1"))
    writer.write("r1", StepCompleted("charge#1", 1, OK, None, None, None, None, None))
    writer.write("r1", RunCompleted(OK))
    figures = counted(log.records)
    assert of(figures)["runs_started"] == of(figures)["runs_completed"] == 1
    assert histogram(of(figures), "run_ms").sum_ms == 5_000
    assert of(figures, "load")["steps_done"] == 1
    assert histogram(of(figures, "load"), "step_ms").sum_ms == 1_000
    spent = of(figures, "think")
    names = ("model_calls", "input_tokens", "output_tokens", "price_usd_micros")
    assert [spent[name] for name in names] == [1, 30, 7, 1_250]
    assert of(figures, "charge")["attempts_started"] == of(figures, "charge")["steps_done"] == 1
    assert histogram(of(figures, "charge"), "step_ms").buckets[BOUNDS_MS.index(1_000)] == 1
    assert figures.standing().open_runs == {}


def test_what_waits_is_told_with_its_age_and_for_whom() -> None:
    log = Log()
    writer = log.writer
    writer.claim()
    writer.write("r1", *started(), intended("charge#1", policy="keyed"))  # at +2 s
    writer.write("r2", *started(), intended("mail#1"), StepInDoubt("mail#1", 1, "timeout", True))
    writer.write("r3", *started(), RunBlocked("limit", "too many events"))
    writer.write("r4", *started(), RunDiverged("load#1", "step 1", "2"))
    writer.write("r5", *started(), TimerScheduled("t", 1, "sleep", "sleep#1", NOON_MS + 10**9))
    at_ms = writer.at_ms
    writer.claim("worker-2", process="p2")
    figures = counted(log.records)
    assert of(figures, "charge")["steps_in_doubt"] == 1  # by the claim
    view = Figures(lambda: {0: figures}, lambda: at_ms)
    told = view.waiting()
    found = {(w["kind"], w["step"]): w for w in told["waiting"]}
    assert set(found) == {
        ("in_doubt", "charge"),
        ("in_doubt", "mail"),
        ("person", "mail"),
        ("person", None),
        ("blocked", None),
        ("diverged", None),
    }
    assert found["in_doubt", "charge"]["age_ms"] == at_ms - (NOON_MS + 2_000)
    assert {o["status"]: o["count"] for o in told["open_runs"]} == {
        "in_doubt": 2,
        "blocked": 1,
        "diverged": 1,
        "waiting": 1,
    }


def test_an_attempt_that_a_crash_cut_is_one_trace_with_its_repeat_linked() -> None:
    log = Log()
    writer = log.writer
    writer.claim()
    writer.write("r1", *started(), intended("charge#1"))
    writer.claim("worker-2", process="p2")
    writer.write(
        "r1", StepResolved("charge#1", 1, "absent", "lookup", None, None, False, None, None, None)
    )
    writer.write("r1", intended("charge#1", attempt=2))
    writer.write("r1", StepCompleted("charge#1", 2, OK, None, None, None, None, None))
    writer.write("r1", RunCompleted(OK))
    spans = counted(log.records, traces=True).spans
    assert len({span.id.trace for span in spans}) == 1
    cut, settled, repeat, run = spans
    assert (cut.name, cut.outcome, cut.attributes["refold.outcome"]) == (
        "charge",
        "unset",
        "in_doubt",
    )
    assert settled.links == repeat.links == (cut.id,)
    assert repeat.outcome == run.outcome == "ok"
    assert {cut.parent, settled.parent, repeat.parent} == {run.id.span}
    assert run.parent is None
    assert (run.start_ms, run.end_ms) == (NOON_MS + 1_000, NOON_MS + 7_000)


def test_a_failed_run_that_goes_on_is_the_same_trace_in_another_life() -> None:
    log = Log()
    writer = log.writer
    writer.claim()
    writer.write("r1", *started(), RunFailed(ERROR), RunResumed("ann", "fixed", None, False, "c2"))
    writer.write("r1", RunCompleted(OK))
    figures = counted(log.records, traces=True)
    first, second = figures.spans
    assert first.id.trace == second.id.trace
    assert first.id != second.id
    assert second.links == (first.id,)
    assert second.parent == first.id.span
    assert of(figures)["runs_failed"] == of(figures)["runs_resumed"] == 1


def test_fenced_and_stored_twice_is_counted_once() -> None:
    log = Log()
    writer = log.writer
    writer.claim()
    writer.write("r1", *started())
    writer.again("r1", started()[0], n=0)
    old = copy.copy(writer)
    writer.claim("worker-2", process="p2")
    old.write("r1", done("load#1"))  # fenced
    writer.write("r1", done("load#1"))
    writer.raw("r1", b"junk", header=b"not ours")
    figures = counted(log.records)
    assert of(figures)["runs_started"] == 1
    assert of(figures, "load")["steps_done"] == 1
    assert figures.skipped == {"duplicate": 1, "fenced": 1, "foreign": 1}


def test_a_body_that_nobody_can_read_blocks_its_run() -> None:
    log = Log()
    log.writer.claim()
    log.writer.write("r1", *started())
    log.writer.raw("r1", b"\x00\x00\x00\x00\x07junk")
    log.writer.write("r1", done("load#1"))
    figures = counted(log.records)
    assert of(figures)["records_undecodable"] == 1
    assert [w.kind for w in figures.standing().waiting] == ["blocked", "person"]


def test_windows_are_dropped_when_they_are_over_for_long_and_the_total_is_not() -> None:
    log = Log()
    writer = log.writer
    writer.claim()
    writer.write("r1", *started())
    writer.at_ms += KEPT_MS["second"] + 60_000
    writer.write("r2", *started())
    figures = counted(log.records)
    gone = [key for key, cell in figures.changes().cells.items() if cell is None]
    assert {key.width for key in gone} == {"second"}
    assert sorted(key.width for key in figures.cells) == [
        "hour",
        "minute",
        "minute",
        "second",
        "total",
    ]
    view = Figures(lambda: {0: figures}, lambda: writer.at_ms)
    assert len(view.windows("minute")["windows"]) == 2
    assert view.totals()["cells"][0]["counts"] == {"runs_started": 2}


def test_too_many_names_are_counted_under_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_of, "NAMES_MAX", 4)
    log = Log()
    log.writer.claim()
    log.writer.write("r1", *started(), *(done(f"step{n}#1") for n in range(10)))
    figures = counted(log.records)
    totals = {key.step: cell.counts for key, cell in figures.cells.items() if key.width == TOTAL}
    assert len(totals) == 5
    assert sum(counts.get("steps_done", 0) for counts in totals.values()) == 10
    assert totals["(other)"]["steps_done"] == 7


def test_a_log_that_was_cut_under_the_figures_is_noticed() -> None:
    log = Log()
    log.writer.claim()
    log.writer.write("r1", *started())
    figures = counted(log.records)
    other = Log()
    other.writer.claim()
    other.writer.write("r1", done("load#1"), done("load#2"))
    with pytest.raises(RecordsChanged):
        figures.apply(other.records[figures.position.last_offset]._replace(header=None))


@pytest.mark.parametrize("question", ["day", ""])
def test_a_window_that_there_is_not_is_refused_by_name(question: str) -> None:
    with pytest.raises(QuestionRefused, match="second, minute, hour"):
        Figures(dict, lambda: 0).windows(question)


# ---- any split, restart and copy gives the same windows


class Killed(Exception):
    """The process is gone."""


class Stored:
    """Where a keeper stores: acknowledged in any order, until the process is killed."""

    def __init__(self, table: Table, random: Random, kill: float) -> None:
        self.table, self._random, self._kill = table, random, kill
        self.dead = False

    async def store(self, partition: int, key: bytes, value: bytes | None) -> None:
        for _ in range(self._random.randint(0, 4)):
            await asyncio.sleep(0)
        self.dead = self.dead or self._random.random() < self._kill
        if self.dead:
            raise Killed
        if value is None:
            self.table.pop(key, None)
        elif newer(self.table.get(key), value):
            self.table[key] = value


async def live(table: Table, records: list[Record], random: Random, kill: float) -> bool:
    """One process: what it finds, counts and stores, until it is killed; whether it was not."""
    figures = restored(CODEC, 0, table)
    stored = Stored(table, random, kill)
    keeper = Keeper(0, figures, stored.store)
    at = max(figures.position.last_offset, 0)
    while at < len(records):
        chunk = records[at : at + random.randint(1, 6)]
        at += len(chunk)
        for record in chunk:
            figures.apply(record)
            if random.random() < 0.1:
                figures.apply(record)  # delivered twice
        try:
            await keeper.write()
        except Killed:
            # What is on its way when a process dies may arrive, or not.
            await asyncio.sleep(0)
            return False
    return True


def everything(figures: PartitionFigures) -> dict[str, Any]:
    figures.changes()
    return {
        "cells": {key: cell.counts for key, cell in figures.cells.items()},
        "runs": {run_id: run.packed() for run_id, run in figures.runs.items()},
        "place": figures.place(),
        "standing": figures.standing(),
    }


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(20, 150))
@settings(max_examples=60, deadline=None)
def test_any_split_kill_and_copy_gives_the_figures_of_a_fresh_fold(
    seed: int, kills: int, length: int
) -> None:
    records = history(seed, length)
    random = Random(kills)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_of, "ENDED_KEPT_MAX", 8)
        patch.setattr(partition_of, "FAILED_KEPT_MAX", 8)
        fresh = counted(records)
        table: Table = {}
        lives = 0
        while not asyncio.run(live(table, records, random, 0.02 if lives < 40 else 0)):
            lives += 1
        assert everything(restored(CODEC, 0, table)) == everything(fresh)
        told = unpack_standing(table[StoredKey(STANDING, 0).pack()])
        assert told == fresh.standing()  # as the process that ended said it


def test_what_is_remembered_of_a_run_comes_back_equal() -> None:
    figures = counted(history(7, 150))
    assert len(figures.runs) > 10
    for run in figures.runs.values():
        assert OpenRun.unpacked(unpack_run(pack_run(run)).packed()) == run
    standing = figures.standing()
    assert unpack_standing(pack_standing(standing)) == standing


def test_late_writes_of_a_frozen_process_take_nothing_away() -> None:
    records = history(11, 120)
    half, whole = counted(records[:60]), counted(records)
    table: Table = {}
    for figures in (whole, half):
        asyncio.run(Keeper(0, figures, Stored(table, Random(1), 0).store).write())
    kept = {k: c for k, c in restored(CODEC, 0, table).cells.items() if k in whole.cells}
    assert {k: c.counts for k, c in kept.items()} == {k: c.counts for k, c in whole.cells.items()}
    assert restored(CODEC, 0, table).position == whole.position


def test_every_counter_that_is_counted_is_one_that_is_documented() -> None:
    seen: set[str] = set()
    for seed in range(12):
        for cell in counted(history(seed, 300)).cells.values():
            seen |= {name.partition(".")[0] for name in cell.counts}
    assert seen <= {*COUNTERS, *HISTOGRAMS}
    assert len(seen) > 15
    assert set(WIDTHS_MS) == set(KEPT_MS) == {"second", "minute", "hour"}
    assert tuple(sorted(BOUNDS_MS)) == cells_of.BOUNDS_MS


def test_what_an_owner_left_open_stands_as_in_the_boundary() -> None:
    """Also where it has handed over and no other came; what only repeats was not started."""
    broker = MemoryBroker("default", partition_count=1)
    writer = Writer(broker)
    writer.claim()
    for run_id, policy in (("charges", "escalate"), ("reads", "re_executable")):
        writer.write(run_id, *started(), intended("a#1", policy=policy))
    writer.write(None, PartitionReleased("drained"))
    writer.claim("worker-2", process="p2")
    writer.write("reads", intended("a#1", attempt=2, policy="re_executable"))
    fold, figures = PartitionFold(CODEC), PartitionFigures(CODEC)
    for record in broker.stream(Topic.EVENTS, 0).records:
        fold.apply(record)
        figures.apply(record)
        claim_id = NO_CLAIM if fold.facts.released else fold.claim_id
        for run_id, run in figures.runs.items():
            assert run.status == boundary(fold.runs[run_id], claim_id).status
            assert unpack_run(pack_run(run)) == run
    assert figures.runs["charges"].status == "in_doubt"
    total = [cell.counts for key, cell in figures.cells.items() if key.width == TOTAL]
    assert sum(counts.get("steps_in_doubt", 0) for counts in total) == 1
