"""The effect ledger: one entry for each key, its outcome, its amounts, what is only believed."""

from decimal import Decimal

import pytest

from refold.engine import decide
from refold_projections.fold import (
    Finding,
    LedgerEntry,
    Mark,
    RunState,
    Stamp,
    amounts_json,
    evolve,
    from_snapshot,
    ledger,
    state_hash,
    to_snapshot,
)
from refold_projections.fold.ledger import Amount, amount_of
from refold_schemas.commands import RecordFinding
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    CommandRejected,
    FindingRecorded,
    RunCompleted,
    RunEvent,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refold_schemas.values import Argument, ErrorInfo, encode_value

CLAIM = b"c" * 16
LATER = b"d" * 16
NO = ErrorInfo("CardDeclined", "shop:CardDeclined", "no", None)


def intent(
    attempt: int = 1,
    generation: int = 0,
    *,
    policy: str = "keyed",
    slot: str = "pay#1",
    **given: object,
) -> StepIntended:
    arguments = tuple(Argument(name, encode_value(value)) for name, value in given.items())
    key = f"key-{slot}-{generation}"
    return StepIntended(
        slot, "pay", attempt, generation, arguments, b"f", key, policy, 30_000, 1_000, None
    )


def folded(*events: RunEvent) -> RunState:
    state: RunState | None = None
    begun = RunStarted("buy", "1", encode_value(None), b"n" * 32, "c-0", "test")
    for n, event in enumerate((begun, *events)):
        state = evolve(state, "run-1", event, Stamp(1_000 + n, CLAIM, n, 10))
    assert state is not None
    return state


def completed(attempt: int = 1, value: object = "r") -> StepCompleted:
    return StepCompleted("pay#1", attempt, encode_value(value), None, None, None, None, None)


def entries(state: RunState, claim: bytes = CLAIM) -> list[LedgerEntry]:
    return list(ledger(state, claim))


def test_a_done_effect_with_its_amounts() -> None:
    state = folded(
        AmountsDeclared("pay", ("pence", "fee")),
        intent(order="48211", pence=4160, fee=Decimal("1.250")),
        completed(),
    )
    (entry,) = entries(state)
    assert entry == LedgerEntry(
        *("key-pay#1-0", "run-1", "pay#1", "pay", "keyed", 0, 1, "done", ()),
        {"pence": 4160, "fee": Decimal("1.250")},
        absent_until_proven=False,
        first_ms=1_002,
        last_ms=1_003,
        attempt=1,
    )
    assert amounts_json(entry.amounts) == '{"pence":4160,"fee":1.250}'


def test_amounts_outlive_the_values_of_a_completed_run() -> None:
    state = folded(
        AmountsDeclared("pay", ("pence",)),
        intent(order="48211", pence=4160),
        completed(),
        RunCompleted(encode_value(None)),
    )
    again, _ = from_snapshot(to_snapshot(state, Mark(0, CLAIM, 0)))
    assert [a.name for a in again.slots["pay#1"].arguments] == ["pence"]
    assert entries(again) == entries(state)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (4160, 4160),
        (-(10**30), -(10**30)),
        (Decimal("0.10"), Decimal("0.10")),
        (1.1, Decimal("1.1")),
        (True, None),
        ("4160", None),
        ({"pence": 1}, None),
        (None, None),
    ],
)
def test_an_amount_is_an_exact_number_or_none(value: object, amount: object) -> None:
    assert amount_of(encode_value(value)) == amount


def test_amounts_json_writes_no_number_that_nobody_could_read() -> None:
    amounts: dict[str, Amount] = {
        "a": Decimal("1E+50"),
        "b": Decimal("1E+99999"),
        "c": 10**5_000,
        "d": None,
    }
    assert amounts_json(amounts) == ('{"a":' + "1" + "0" * 50 + ',"b":null,"c":null,"d":null}')


def test_each_generation_of_a_key_is_an_effect_of_its_own() -> None:
    state = folded(
        intent(),
        StepFailed("pay#1", 1, NO, False, True, None, None, None),
        intent(2, 1),
        completed(2),
    )
    first, second = entries(state)
    assert (first.effect_key, first.generation, first.outcome) == ("key-pay#1-0", 0, "failed")
    assert (second.effect_key, second.attempts, second.outcome) == ("key-pay#1-1", 1, "done")
    again, _ = from_snapshot(to_snapshot(state, Mark(0, CLAIM, 0)))
    assert (entries(again), state_hash(again)) == ([first, second], state_hash(state))


def test_an_attempt_is_under_way_in_its_claim_and_in_doubt_after_it() -> None:
    state = folded(intent())
    assert [e.outcome for e in entries(state)] == ["under_way"]
    assert [e.outcome for e in entries(state, LATER)] == ["in_doubt"]
    doubted = folded(intent(), StepInDoubt("pay#1", 1, "reset", False))
    assert [e.outcome for e in entries(doubted)] == ["in_doubt"]


def test_absence_is_believed_until_it_is_proven() -> None:
    def resolved(verdict: str, evidence: str) -> StepResolved:
        return StepResolved("pay#1", 1, verdict, evidence, None, None, True, None, None, None)

    (absent,) = entries(folded(intent(), resolved("absent", "lookup")))
    assert (absent.outcome, absent.absent_until_proven) == ("absent", True)
    (denied,) = entries(folded(intent(), resolved("absent", "person")))
    assert (denied.outcome, denied.absent_until_proven) == ("denied", True)
    (never,) = entries(folded(intent(), resolved("never_started", "owner")))
    assert (never.outcome, never.absent_until_proven) == ("never_started", False)


def test_evidence_that_contradicts_is_told() -> None:
    absent = StepResolved("pay#1", 1, "absent", "lookup", None, None, True, None, None, None)
    report = AttemptReported("pay#1", 1, "key", "completed", None, None, "w")
    state = folded(intent(), absent)
    told = evolve(state, "run-1", report, Stamp(2_000, CLAIM, 1, 10))
    assert told is not None
    (entry,) = entries(told)
    assert (entry.outcome, entry.reported) == ("absent", ("completed", "conflict"))


def test_what_changes_nothing_outside_is_no_effect() -> None:
    assert entries(folded(intent(policy="re_executable"))) == []


# ---- findings


def command(status: str = "open", detail: str = "differs", **other: str) -> RecordFinding:
    given = {"command_id": "c-1", "slot": "pay#1", "finding_id": "f-1", "why": "", **other}
    return RecordFinding(
        given["command_id"],
        "run-1",
        given["finding_id"],
        "missing",
        given["slot"],
        "pay",
        "key-pay#1-0",
        detail,
        "refold history run-1",
        status,
        "reconcile",
        given["why"],
    )


def decided(state: RunState, given: RecordFinding) -> FindingRecorded | CommandRejected:
    (event,) = decide.record_finding(state, given, 7)
    assert isinstance(event, FindingRecorded | CommandRejected)
    return event


def after(state: RunState, *given: RecordFinding) -> RunState:
    for n, one in enumerate(given):
        event = decided(state, one)
        assert isinstance(event, FindingRecorded), event
        told = evolve(state, "run-1", event, Stamp(5_000 + n, CLAIM, 10 + n, 10))
        assert told is not None
        state = told
    return state


def refused(state: RunState | None, given: RecordFinding) -> str:
    (event,) = decide.record_finding(state, given, 7)
    assert isinstance(event, CommandRejected)
    return event.reason


def test_a_finding_is_kept_also_in_a_run_that_has_ended() -> None:
    over = folded(intent(), completed(), RunCompleted(encode_value(None)))
    state = after(over, command())
    assert state.findings["f-1"] == Finding(
        *("f-1", "missing", "pay#1", "pay", "key-pay#1-0", "differs", "refold history run-1"),
        status="open",
        at_ms=5_000,
    )
    assert state.ended == over.ended
    again, _ = from_snapshot(to_snapshot(state, Mark(0, CLAIM, 0)))
    assert again.findings == state.findings
    assert again.findings["f-1"].is_open


def test_the_same_finding_is_not_written_again_and_another_detail_is() -> None:
    state = after(folded(intent(), completed()), command())
    assert refused(state, command(command_id="c-2")) == "duplicate"
    assert refused(state, command(detail="other")) == "duplicate"  # the same command id
    changed = after(state, command(command_id="c-3", detail="other"))
    assert changed.findings["f-1"].detail == "other"
    assert len(changed.findings) == 1


def test_a_settled_finding_can_be_found_again_and_an_accepted_one_only_if_it_differs() -> None:
    state = after(folded(intent(), completed()), command())
    agreed = after(state, command("agreed", command_id="c-2"))
    assert not agreed.findings["f-1"].is_open
    assert after(agreed, command(command_id="c-3")).findings["f-1"].is_open
    accepted = after(state, command("accepted", command_id="c-2", why="paid by hand"))
    assert refused(accepted, command(command_id="c-3")) == "duplicate"
    assert after(accepted, command(command_id="c-3", detail="worse")).findings["f-1"].is_open


def test_what_a_finding_cannot_be_about_is_refused() -> None:
    state = folded(intent(), completed())
    assert refused(None, command()) == "unknown_run"
    assert refused(state, command(slot="pay#2")) == "unknown_slot"
    assert refused(state, command("agreed")) == "nothing_to_settle"
    assert refused(state, command("forgiven")) == "input_invalid"
    settled = after(state, command(), command("agreed", command_id="c-2"))
    assert refused(settled, command("accepted", command_id="c-3")) == "nothing_to_settle"


def test_a_run_keeps_so_many_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "FINDINGS_MAX", 1)
    state = after(folded(intent(), completed()), command())
    assert refused(state, command(command_id="c-2", finding_id="f-2")) == "too_large"
    assert after(state, command("agreed", command_id="c-2")).findings["f-1"].status == "agreed"
