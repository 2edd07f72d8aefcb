"""Judging: every outcome on record against every answer of a far system."""

import shlex
from itertools import product
from typing import Any

import pytest

from refold.client.words import is_ours
from refold_projections.fold import LedgerEntry, RunState, Stamp, evolve, ledger
from refold_schemas.commands import TEXT_CHARS_MAX
from refold_schemas.events import (
    EvidenceConflict,
    RunEvent,
    RunFailed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refold_schemas.values import Argument, ErrorInfo, encode_value
from refold_tools.reconcile.judging import (
    KINDS,
    Answer,
    Judged,
    Recorded,
    finding_id,
    judge,
    settled_ms,
)

CLAIM = b"c" * 16
NO = ErrorInfo("Declined", "shop:Declined", "no", None)
INTENT = StepIntended(
    *("pay#1", "pay", 1, 0, (Argument("pence", encode_value(4160)),), b"f", "key-1"),
    policy="keyed",
    timeout_ms=30_000,
    settle_ms=5_000,
    key_ttl_ms=None,
)


def resolved(verdict: str, evidence: str) -> StepResolved:
    return StepResolved("pay#1", 1, verdict, evidence, None, None, True, None, None, None)


ENDS: dict[str, tuple[RunEvent, ...]] = {
    "done": (StepCompleted("pay#1", 1, encode_value("r-1"), None, None, None, None, None),),
    "failed": (StepFailed("pay#1", 1, NO, True, False, None, None, None),),
    "absent": (resolved("absent", "lookup"),),
    "denied": (resolved("absent", "person"),),
    "never_started": (resolved("never_started", "owner"),),
    "in_doubt": (StepInDoubt("pay#1", 1, "reset", True),),
}
ANSWERS = {
    "same": Answer("found", "r-1"),
    "other": Answer("found", "r-2"),
    "absent": Answer("absent"),
    "rejected": Answer("rejected", RuntimeError("closed")),
    "none": Answer("none", "no answer within 30 s"),
}
DUE = {
    ("done", "same"): None,
    ("done", "other"): "different",
    ("done", "absent"): "missing",
    ("done", "rejected"): "missing",
    **{
        (end, answer): "unexpected" if answer in ("same", "other") else None
        for end, answer in product(
            ("failed", "absent", "denied", "never_started"),
            ("same", "other", "absent", "rejected"),
        )
    },
    **dict.fromkeys(product(("in_doubt",), ("same", "other", "absent", "rejected")), "settleable"),
    **{(end, "none"): None for end in ENDS},
}


def state_after(*events: RunEvent, intent: StepIntended = INTENT) -> RunState:
    state: RunState | None = None
    begun = RunStarted("buy", "1", encode_value(None), b"n" * 32, "c-0", "test")
    for n, event in enumerate((begun, intent, *events)):
        state = evolve(state, "r 1", event, Stamp(1_000 + n, CLAIM, n, 10))
    assert state is not None
    return state


def judged(state: RunState, answer: Answer | None, now_ms: int = 100_000, **options: Any) -> Judged:
    (entry,) = ledger(state, CLAIM)
    recorded = options.get("recorded", Recorded(encode_value("r-1")))
    return judge(state, state.slots["pay#1"], entry, answer, recorded, str, now_ms)


@pytest.mark.parametrize(("end", "answer"), list(product(ENDS, ANSWERS)))
def test_each_outcome_against_each_answer(end: str, answer: str) -> None:
    said = judged(state_after(*ENDS[end]), ANSWERS[answer])
    due = DUE[end, answer]
    assert [one.kind for one in said.findings] == ([] if due is None else [due])
    assert said.agrees == (frozenset() if answer == "none" else frozenset(KINDS) - {due})
    assert (said.unknown != "") == (answer == "none")
    for one in said.findings:
        assert one.finding_id == finding_id("r 1", "key-1", one.kind)
        assert one.status == "open"
        words = shlex.split(one.command)
        assert words[0] == "refold"
        assert words[1] in ("resolve", "retry", "reconcile")
        assert "key-1" in one.detail
        assert max(len(one.detail), len(one.command)) <= TEXT_CHARS_MAX


def test_a_failure_that_ended_the_run_is_retried_while_its_key_lives() -> None:
    def commanded(key_ttl_ms: int | None, now_ms: int) -> list[str]:
        intent = StepIntended(
            *("pay#1", "pay", 1, 0, (), b"f", "key-1", "keyed", 30_000, 5_000, key_ttl_ms)
        )
        state = state_after(*ENDS["failed"], RunFailed(NO), intent=intent)
        (one,) = judged(state, ANSWERS["same"], now_ms).findings
        return shlex.split(one.command)[1:]

    retry = ["retry", "r 1", "--slot", "pay#1"]
    assert commanded(None, 10**12) == retry
    assert commanded(60_000, 60_000) == retry
    accept = ["reconcile", "--accept", finding_id("r 1", "key-1", "unexpected"), "--why", "TEXT"]
    assert commanded(60_000, 61_001) == accept  # the far system may have forgotten the key
    assert commanded(0, 1_002) == accept


@pytest.mark.parametrize("answer", ["same", "absent"])
def test_what_settles_a_run_whose_id_begins_with_a_hyphen_can_be_typed(answer: str) -> None:
    (entry,) = ledger(state_after(*ENDS["in_doubt"]), CLAIM)
    state = state_after(*ENDS["in_doubt"])
    entry = entry._replace(run_id="-7")
    recorded = Recorded(encode_value("r-1"))
    said = judge(state, state.slots["pay#1"], entry, ANSWERS[answer], recorded, str, 100_000)
    (one,) = said.findings
    assert shlex.split(one.command)[-3:] == ["--", "-7", "pay#1"]
    assert is_ours(one.command)


def test_a_result_that_is_not_there_to_compare_is_unknown_and_its_presence_agrees() -> None:
    state = state_after(*ENDS["done"])
    said = judged(state, ANSWERS["same"], recorded=Recorded(None, "it is archived"))
    assert said.findings == ()
    assert said.unknown == "its result was not compared: it is archived"
    assert "missing" in said.agrees
    assert "different" not in said.agrees


def test_a_conflict_is_found_without_an_answer_and_is_settled_by_agreement_alone() -> None:
    conflict = EvidenceConflict("pay#1", 1, "failed", "completed")
    negative = state_after(*ENDS["failed"], conflict)
    for answer in (None, ANSWERS["none"], ANSWERS["absent"]):
        assert [one.kind for one in judged(negative, answer).findings] == ["conflict"]
    kinds = [one.kind for one in judged(negative, ANSWERS["same"]).findings]
    assert kinds == ["unexpected", "conflict"]
    positive = state_after(*ENDS["done"], conflict)
    assert "conflict" in judged(positive, ANSWERS["same"]).agrees
    for words in ("other", "absent", "none"):
        assert "conflict" in {one.kind for one in judged(positive, ANSWERS[words]).findings}


def test_a_result_to_be_typed_is_written_out_where_that_can_be_done() -> None:
    state = state_after(*ENDS["in_doubt"])

    def typed(value: object) -> str:
        (one,) = judged(state, Answer("found", value)).findings
        return shlex.split(one.command)[-1]

    assert typed({"number": "r-1", "it's": [1, None]}) == '{"number":"r-1","it\'s":[1,null]}'
    assert typed("x" * 1_000) == "JSON"
    assert typed(object()) == "JSON"
    assert typed("a\nb") == '"a\\nb"'


def test_settled_counts_timeout_and_settle_from_the_last_word() -> None:
    state = state_after(*ENDS["done"])
    (entry,) = ledger(state, CLAIM)
    assert isinstance(entry, LedgerEntry)
    assert settled_ms(state.slots["pay#1"], entry) == 1_002 + 35_350


def test_findings_have_ids_of_their_own() -> None:
    ids = {finding_id(run, key, kind) for run, key, kind in product("ab", "xy", KINDS)}
    assert len(ids) == 4 * len(KINDS)
