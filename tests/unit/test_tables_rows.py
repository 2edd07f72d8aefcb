"""Rows follow from the fold, however records were batched and whatever was read back in between."""

import json
from datetime import UTC, date
from typing import Any
from unittest.mock import ANY

from hypothesis import given, settings
from hypothesis import strategies as st

from refold_projections.fold import (
    NO_CLAIM,
    amounts_json,
    boundary,
    ledger,
    moment,
    sentence,
)
from refold_projections.tables.book import ANSWER, Noted, Rows
from refold_projections.tables.following import Following, Kept
from refold_projections.tables.keeping import unpack
from refold_projections.tables.shapes import TABLES, Row
from support.histories import CODEC, Action, Partition, actions, play


class Tables:
    """What Postgres does with rows: the last one of a key stays."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[Any, ...], Row]] = {one: {} for one in TABLES}

    def put(self, rows: Rows) -> None:
        for table in TABLES.values():
            for row in getattr(rows, table.name):
                assert len(row) == len(table.columns)
                self.rows[table.name][row[: table.key_size]] = row
        for key in rows.timers_gone:
            self.rows["timers"].pop(key, None)

    def of(self, table: str, run_id: str | None = None) -> list[dict[str, Any]]:
        columns = [column for column, _ in TABLES[table].columns]
        found = [dict(zip(columns, row, strict=True)) for row in self.rows[table].values()]
        return [one for one in found if run_id is None or one["run_id"] == run_id]

    def kept(self, run_id: str) -> Kept | None:
        """What a projector reads back."""
        runs = self.of("runs", run_id)
        if not runs:
            return None
        slots = [one["kept"] for one in self.of("steps", run_id)]
        state, mark = unpack(CODEC, runs[0]["kept"], slots)
        noted = Noted({})
        for one in self.of("effects", run_id):
            place = (one["slot"], one["generation"])
            if one["evidence"] not in (None, ANSWER):
                noted.evidence[place] = one["evidence"]
        return Kept(state, mark, noted)

    def open_runs(self) -> set[str]:
        return {one["run_id"] for one in self.of("runs") if one["open_count"]}


def whole(partition: Partition) -> Tables:
    following, tables = Following(CODEC, 0), Tables()
    for record in partition.log:
        following.apply(record)
    tables.put(following.rows())
    return tables


@settings(max_examples=150, deadline=None)
@given(actions, st.lists(st.tuples(st.integers(1, 9), st.sampled_from("gfr")), min_size=1))
def test_rows_do_not_depend_on_batches_nor_on_what_was_forgotten(
    steps: list[Action], batches: list[tuple[int, str]]
) -> None:
    """After each batch the projector goes on, forgets runs, or is another one that reads back."""
    partition = play(steps)
    following, tables = Following(CODEC, 0), Tables()
    at, turn = 0, 0
    while at < len(partition.log):
        size, then = batches[turn % len(batches)]
        chunk = partition.log[at : at + size]
        at, turn = at + size, turn + 1
        lacking = following.lacks(chunk)
        back = {run_id: tables.kept(run_id) for run_id in lacking}
        following.take_back({run_id: one for run_id, one in back.items() if one is not None})
        for record in chunk:
            following.apply(record)
        owed = {run_id: tables.kept(run_id) for run_id in following.owes()}
        following.take_back({run_id: one for run_id, one in owed.items() if one is not None})
        tables.put(following.rows())
        if then == "f":
            following.forget(list(following.fold.runs))
        elif then == "r":
            following = Following(CODEC, 0, following.at)
            following.open_runs = tables.open_runs()
    assert tables.rows == whole(partition).rows


def by_place(row: dict[str, Any]) -> tuple[str, int]:
    return row["slot"], row["generation"]


@settings(max_examples=150, deadline=None)
@given(actions)
def test_rows_say_what_boundary_and_sentence_say(steps: list[Action]) -> None:
    partition = play(steps)
    tables, fold = whole(partition), partition.fold()
    claim_id = NO_CLAIM if fold.facts.released else fold.claim_id
    assert {one["run_id"] for one in tables.of("runs")} == set(fold.runs)
    for run_id, state in fold.runs.items():
        seen = boundary(state, claim_id)
        (run,) = tables.of("runs", run_id)
        rows = sorted(tables.of("steps", run_id), key=lambda one: one["born"])
        by_status = {
            status: [one for one in rows if one["status"] == status]
            for status in ("done", "under_way", "in_doubt", "failed")
        }
        assert [(d.slot, d.attempt, d.at_ms) for d in seen.done] == [
            (one["slot"], one["attempt"], one["at"]) for one in by_status["done"]
        ]
        for status, entries in (("under_way", seen.under_way), ("in_doubt", seen.in_doubt)):
            assert [(o.slot, o.attempt, o.since_ms, o.policy, o.effect_key) for o in entries] == [
                (one["slot"], one["attempt"], one["since"], one["policy"], one["effect_key"])
                for one in by_status[status]
            ]
        assert [(f.slot, f.attempt, f.at_ms, f.error) for f in seen.failed] == [
            (one["slot"], one["attempt"], one["at"], one["said"]) for one in by_status["failed"]
        ]
        assert (run["status"], run["reason"], run["needs"]) == (
            seen.status,
            seen.reason,
            seen.needs,
        )
        assert (run["wakes_at"], run["done_count"]) == (seen.wakes_ms, len(seen.done))
        assert run["in_doubt_count"] == len(seen.in_doubt)
        assert run["conflict_count"] == len(seen.conflicts)
        remaining = None if run["remaining"] is None else tuple(json.loads(run["remaining"]))
        assert remaining == seen.remaining
        for today in (date(1970, 1, 1), date(2026, 8, 1)):
            told = "".join(
                moment(part, UTC, today) if isinstance(part, int) else part
                for part in json.loads(run["said"])
            )
            assert told == sentence(seen, UTC, today)
        assert sorted(tables.of("effects", run_id), key=by_place) == sorted(
            (
                {
                    **{"run_id": run_id, "slot": e.slot, "generation": e.generation},
                    **{"partition": 0, "effect_key": e.effect_key, "step": e.step},
                    **{"policy": e.policy, "attempts": e.attempts, "outcome": e.outcome},
                    "evidence": ANY,
                    "amounts": amounts_json(e.amounts) if e.amounts else None,
                    "absent_until_proven": e.absent_until_proven,
                    "superseded": e.generation != state.slots[e.slot].generation,
                    **{"first_at": e.first_ms, "last_at": e.last_ms},
                }
                for e in ledger(state, claim_id)
            ),
            key=by_place,
        )
        findings = {one["finding_id"]: one["settled"] for one in tables.of("findings", run_id)}
        assert findings == {one.finding_id: not one.is_open for one in state.findings.values()}
        timers = {one["timer_id"]: one["due_at"] for one in tables.of("timers", run_id)}
        assert timers == {timer.timer_id: timer.deadline_ms for timer in state.timers.values()}
        attempts = {(one["slot"], one["attempt"]) for one in tables.of("attempts", run_id)}
        assert attempts == {
            (slot.name, attempt.number)
            for slot in state.slots.values()
            for attempt in slot.attempts
        }
