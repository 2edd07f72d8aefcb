"""The fold under random histories: live state, re-folded state and all readers are equal."""

from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from refold_projections.fold import (
    Facts,
    Mark,
    PartitionFold,
    Position,
    Verdict,
    boundary,
    from_snapshot,
    state_hash,
    to_snapshot,
)
from refold_projections.fold.evolve import _APPLIERS
from refold_schemas.events import (
    StepResolved,
)
from refold_schemas.events.types import RunEvent
from refold_schemas.snapshots import RunSnapshot
from support.histories import (
    CODEC,
    ERROR,
    SLOTS,
    VALUE,
    Action,
    Partition,
    actions,
    begin,
    do,
    event_of,
    play,
)


@settings(max_examples=100, deadline=None)
@given(actions)
def test_the_folded_log_gives_the_live_state_after_every_step(steps: list[Action]) -> None:
    partition = begin()
    reader = PartitionFold(CODEC)
    for action in steps:
        do(partition, action)
        reader.apply_all(partition.log[reader.position.offset_next :])
        assert reader.runs == partition.live
    assert partition.fold().runs == partition.live


def _restored(fold: PartitionFold) -> PartitionFold:
    """A reader that was stopped and started again from what it had stored."""
    again = PartitionFold(CODEC)
    again.position = Position(*fold.position)
    again.facts = Facts(*fold.facts)
    for run_id, state in fold.runs.items():
        body = CODEC.encode(to_snapshot(state, fold.marks[run_id]))
        kept = CODEC.decode(body)
        assert isinstance(kept, RunSnapshot)
        again.runs[run_id], again.marks[run_id] = from_snapshot(kept)
    return again


@settings(max_examples=60, deadline=None)
@given(actions)
def test_readers_that_start_anywhere_agree(steps: list[Action]) -> None:
    partition = play(steps)
    whole = partition.fold()
    hashes = {run_id: state_hash(state) for run_id, state in whole.runs.items()}
    reader = PartitionFold(CODEC)
    for record in partition.log:
        stopped = _restored(reader)
        stopped.apply_all(partition.log[record.offset :])
        assert stopped.position == whole.position
        assert stopped.facts == whole.facts
        assert {r: state_hash(s) for r, s in stopped.runs.items()} == hashes
        before = reader.position
        if reader.apply(record).verdict is Verdict.CLAIM:
            # Run states from snapshots, the claim rule from a claim that counts: nothing else.
            fresh = _restored(reader)
            fresh.position = Position(
                offset_next=record.offset,
                claim_epoch=before.claim_epoch,
                command_next=before.command_next,
                time_last_ms=before.time_last_ms,
            )
            fresh.facts = reader.facts
            for later in partition.log[record.offset :]:
                fresh.apply(later)
            assert {r: state_hash(s) for r, s in fresh.runs.items()} == hashes
            assert fresh.position == whole.position


@settings(max_examples=100, deadline=None)
@given(actions)
def test_the_boundary_is_total_and_puts_each_step_in_one_place(steps: list[Action]) -> None:
    partition = play(steps)
    fold = partition.fold()
    for state in fold.runs.values():
        found = boundary(state, fold.claim_id)
        places = [
            *(e.slot for e in found.done),
            *(e.slot for e in (*found.under_way, *found.in_doubt)),
            *(e.slot for e in found.failed),
        ]
        assert len(places) == len(set(places))
        for name in state.open_slots:
            if state.slots[name].policy == "re_executable" or state.slots[name].outcome:
                continue  # not started; done, and its handle acquired anew
            assert name in {e.slot for e in (*found.under_way, *found.in_doubt)}


@settings(max_examples=100, deadline=None)
@given(
    st.permutations(["completed", "failed", "never_started", "settle"]),
    st.sampled_from(["absent", "done", "failed", "never_started"]),
)
def test_evidence_and_settlement_commute(order: list[str], verdict: str) -> None:
    """Conflict is a function of evidence and settlement, whichever came first."""
    ends = []
    for sequence in (order, sorted(order)):
        partition = Partition()
        partition.claim("p")
        partition.write("run-a", event_of(0, SLOTS[0], 1, False))
        partition.write("run-a", event_of(2, SLOTS[0], 1, True))
        for what in sequence:
            if what == "settle":
                resolved = StepResolved(
                    SLOTS[0], 1, verdict, "lookup", VALUE, ERROR, False, None, None, None
                )
                partition.write("run-a", resolved)
            else:
                partition.report(0, what)
        state = partition.fold().runs["run-a"]
        ends.append((state.red, state.slots[SLOTS[0]].attempts))
    assert ends[0] == ends[1]


def test_a_mark_names_the_last_record_of_a_run_reports_included() -> None:
    partition = Partition()
    partition.claim("p")
    partition.write("run-a", event_of(0, SLOTS[0], 1, False))
    partition.write("run-a", event_of(2, SLOTS[0], 1, True))
    partition.report(0, "completed")
    assert partition.fold().marks["run-a"] == Mark(3, partition.claim_id, 1)


def test_every_event_of_a_run_has_its_applier() -> None:
    assert set(get_args(RunEvent)) == set(_APPLIERS)
