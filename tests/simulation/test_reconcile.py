"""Reconciliation: what it finds, what it does not take for an answer, and what is put on record."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import Absent, Found, Pending, Rejected
from refold.client import Client
from refold.log.port import Entry, Topic
from refold_schemas.codec import KIND_REPORT, RecordHeader
from refold_schemas.errors.cli import CommandUnknown, NothingToSettle
from refold_schemas.events import AttemptReported, CommandRejected
from refold_tools.reconcile import Limits, Window
from support.reconcile_lab import ALL, Receipt, Reconciliation, kinds
from support.vendor import drop

OTHER = Receipt(number="r-9", pence=4610)


def test_agreement_is_no_finding_and_leaves_nothing_in_the_log() -> None:
    it = Reconciliation()
    it.runs("a", "b")
    it.settle()
    report = it.look()
    assert (report.asked, report.agreed, report.findings, report.unknown) == (2, 2, [], [])
    assert not report.has_findings
    assert it.recorded("a") == []


def test_done_here_and_not_there() -> None:
    it = Reconciliation()
    it.runs("a", "b")
    it.settle()
    del it.bank.books[it.key("a")]
    report = it.look()
    assert kinds(report) == [("a", "missing", "new")]
    (told,) = report.findings
    assert told.recorded
    assert told.finding.detail.startswith(
        f"pay#1 is done here (attempt 1), and under its key {it.key('a')}"
    )
    assert told.finding.command.startswith("refold reconcile --accept ")
    assert it.recorded("a") == [("missing", "open")]
    (said,) = [one for one in it.lab.told if one.kind == "finding"]
    assert (said.run_id, said.text.startswith("pay#1 missing, open: ")) == ("a", True)


def test_what_is_not_known_to_be_on_record_is_not_called_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    del it.bank.books[it.key("a")]

    async def silent(_: Client, run_id: str, *arguments: Any, **named: Any) -> None:
        raise CommandUnknown(run_id, "RecordFinding", "c-1", "no answer")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "record_finding", silent)
        report = it.look()
    assert (len(report.unrecorded), report.refused) == (1, [])
    assert not report.findings[0].recorded


def test_a_finding_with_a_text_that_no_worker_takes_does_not_end_the_look() -> None:
    it = Reconciliation()
    it.runs("a", "b")
    it.settle()
    for run_id in ("a", "b"):
        del it.bank.books[it.key(run_id)]
    report = it.look(by="x" * 10_001)
    assert (report.asked, len(report.refused)) == (2, 2)
    assert [one.recorded for one in report.findings] == [False, False]


def test_done_here_and_refused_there() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()

    async def refuse(key: str) -> Rejected:
        return Rejected(RuntimeError("closed account"))

    it.bank.answer = refuse
    (told,) = it.look().findings
    assert (told.finding.kind, "has refused it" in told.finding.detail) == ("missing", True)


def test_failed_here_and_there_after_all() -> None:
    it = Reconciliation()
    it.bank.declines = 2
    it.runs("a")
    it.runs("b", run="tolerant")
    it.settle()
    for run_id in ("a", "b"):
        it.bank.books[it.key(run_id)] = OTHER
    report = it.look()
    assert kinds(report) == [("a", "unexpected", "new"), ("b", "unexpected", "new")]
    by_run = {one.run_id: one.finding for one in report.findings}
    # A retry of the failed run repeats it under the key that it has there.
    assert by_run["a"].command == "refold retry a --slot pay#1".replace("pay#1", "'pay#1'")
    assert "undo it there" in by_run["b"].detail
    it.lab.retry("a")
    assert it.lab.run(20, until=lambda: it.lab.status("a") == "completed")
    it.settle()
    again = it.look()
    assert kinds(again) == [("b", "unexpected", "known")]
    assert [(one.run_id, one.finding.kind) for one in again.settled] == [("a", "unexpected")]
    assert it.recorded("a") == [("unexpected", "open"), ("unexpected", "agreed")]


def test_denied_by_a_person_and_there_after_all() -> None:
    it = Reconciliation()

    async def away(key: str) -> Any:
        raise ConnectionError("away")

    it.bank.answer, it.bank.vendor.after = away, [drop]
    it.runs("a", run="booking")
    assert it.lab.run(300, until=lambda: it.lab.needs("person", "a"))
    it.lab.run(20)
    it.lab.cancel("a")
    it.lab.resolve("book#1", happened=False, run_id="a")
    assert it.lab.run(30, until=lambda: it.lab.ended("a"))
    it.bank.answer = None
    it.settle()
    assert it.look().agreed == 1
    it.bank.books[it.key("a")] = OTHER
    (told,) = it.look().findings
    assert told.finding.kind == "unexpected"
    assert told.finding.detail.startswith("book#1 did not happen, as a person has said, here")


def test_absence_that_was_believed_is_contradicted_by_both() -> None:
    it = Reconciliation()
    it.bank.vendor.after = [drop]  # it was done, and the books show it days later
    it.lab.start("booking", 1, run_id="a")
    it.lab.run(1)
    it.lab.cancel("a")
    assert it.lab.run(60, until=lambda: it.lab.ended("a"))
    it.settle()
    assert it.look().agreed == 1
    it.bank.books[it.key("a")] = OTHER
    assert kinds(it.look()) == [("a", "unexpected", "new")]
    it.lab.run(90)  # its owner looks once more, later
    assert kinds(it.look()) == [("a", "conflict", "new"), ("a", "unexpected", "known")]


def test_a_step_without_a_lookup_is_said_not_to_be_asked() -> None:
    it = Reconciliation()
    it.runs("a", run="letter")
    it.settle()
    report = it.look()
    assert (report.asked, report.findings, dict(report.not_asked)) == (0, [], {"no_lookup": 1})


def test_another_result_is_named_by_its_path() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    it.bank.books[it.key("a")] = it.bank.books[it.key("a")].model_copy(update={"pence": 4610})
    (told,) = it.look().findings
    assert told.finding.kind == "different"
    assert "result.pence 4160 → 4610" in told.finding.detail
    it.bank.books[it.key("a")] = it.bank.books[it.key("a")].model_copy(update={"pence": 4160})
    assert [one.finding.kind for one in it.look().settled] == ["different"]


def test_evidence_that_conflicts() -> None:
    it = Reconciliation()
    it.bank.declines = 1
    it.runs("a")
    it.settle()
    slot = it.lab.state("a").slots["pay#1"]
    attempt = slot.attempts[0]
    report = AttemptReported("pay#1", 1, slot.effect_key, "completed", None, None, "w-0")
    header = RecordHeader(KIND_REPORT, attempt.claim_id, 0, attempt.n, it.lab.now_ms(), 0)
    it.lab.broker.put(Topic.EVENTS, 0, [Entry(b"a", it.lab.codec.encode(report), header.pack())])
    it.lab.run(2)
    found = it.look(Window(0, 1))  # whatever the window: nobody was told yet
    assert kinds(found) == [("a", "conflict", "new")]
    assert "settled as failed, reported: completed" in found.findings[0].finding.detail
    assert kinds(it.look(Window(0, 1))) == [("a", "conflict", "known")]
    assert it.recorded("a") == [("conflict", "open")]


def test_a_person_is_told_what_the_far_system_says_now() -> None:
    it = Reconciliation()

    async def away(key: str) -> Any:
        raise ConnectionError("away")

    it.bank.answer = away
    it.bank.vendor.after = [drop, drop]
    it.runs("a", "b", run="booking")
    assert it.lab.run(
        300, until=lambda: it.lab.needs("person", "a") and it.lab.needs("person", "b")
    )
    it.bank.answer = None
    it.bank.books = {it.key("a"): Receipt(number="b-1", pence=1)}
    it.settle()
    report = it.look()
    assert kinds(report) == [("a", "settleable", "new"), ("b", "settleable", "new")]
    by_run = {one.run_id: one.finding.command for one in report.findings}
    assert by_run == {
        "a": """refold resolve a 'book#1' --happened --result '{"number":"b-1","pence":1}'""",
        "b": "refold resolve b 'book#1' --did-not-happen",
    }
    it.lab.resolve("book#1", happened=True, result={"number": "b-1", "pence": 1}, run_id="a")
    assert it.lab.run(20, until=lambda: it.lab.status("a") == "completed")
    it.settle()
    assert [(one.run_id, one.finding.kind) for one in it.look().settled] == [("a", "settleable")]


# ---- what is no answer


@pytest.mark.parametrize("how", ["raises", "hangs", "pending", "rubbish", "exits"])
def test_no_answer_is_unknown_and_never_absent(how: str) -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    it.bank.asked.clear()

    async def answer(key: str) -> Any:
        if how == "raises":
            raise KeyError(key)
        if how == "hangs":
            await asyncio.get_running_loop().create_future()
        if how == "exits":
            raise SystemExit(3)
        return Pending() if how == "pending" else {"status": "absent"}

    it.bank.answer = answer
    report = it.look()
    assert (report.findings, report.agreed, report.has_findings) == ([], 0, False)
    assert len(report.unknown) == 1
    assert len(it.bank.asked) == 3  # asked again after a while, and not for ever
    assert it.recorded("a") == []


def test_a_lookup_that_answers_at_the_second_try_is_believed() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    it.bank.asked.clear()

    async def second(key: str) -> Any:
        if len(it.bank.asked) == 1:
            raise ConnectionError("reset")
        return Found(it.bank.books[key])

    it.bank.answer = second
    report = it.look()
    assert (report.agreed, report.lookups) == (1, 2)


def test_a_far_system_that_is_silent_is_left_alone_after_some_keys() -> None:
    it = Reconciliation()
    it.runs(*(f"r-{n}" for n in range(30)))
    it.settle()
    it.bank.asked.clear()

    async def away(key: str) -> Any:
        raise ConnectionError("away")

    it.bank.answer = away
    report = it.look(limits=Limits(at_once=2, tries=2, silent_max=3))
    assert len(report.unknown) == 30
    assert len(it.bank.asked) <= 10
    assert sum("in a row" in one.why for one in report.unknown) >= 25


def test_no_more_lookups_at_once_than_allowed() -> None:
    it = Reconciliation()
    it.runs(*(f"r-{n}" for n in range(20)))
    it.settle()
    now, most = 0, 0

    async def slow(key: str) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.1)
        now -= 1
        return Found(it.bank.books[key])

    it.bank.answer = slow
    assert it.look(limits=Limits(at_once=4)).agreed == 20
    assert most == 4


def test_a_result_that_cannot_be_compared_is_unknown() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()

    async def odd(key: str) -> Any:
        return Found(object())

    it.bank.answer = odd
    report = it.look()
    assert report.findings == []
    assert "its result was not compared" in report.unknown[0].why


# ---- which effects


def test_what_may_still_lag_is_not_judged_and_asked_at_a_later_look() -> None:
    it = Reconciliation()
    it.runs("a")
    it.bank.books.clear()
    it.bank.asked.clear()

    async def twice(client: Client) -> Any:
        reconciler = it.reconciler(client)
        now_ms = it.lab.now_ms()
        first = await reconciler.look(Window(0, now_ms))
        await asyncio.sleep(20)
        return first, await reconciler.look(Window(now_ms, it.lab.now_ms()))

    first, second = it.in_process(twice)
    assert (first.findings, dict(first.not_asked), first.asked) == ([], {"young": 1}, 0)
    assert kinds(second) == [("a", "missing", "new")]


def test_the_window_holds_its_start_and_not_its_end() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    slot = it.lab.state("a").slots["pay#1"]
    assert slot.outcome is not None
    at_ms = slot.outcome.at_ms
    assert [it.look(w).asked for w in (Window(at_ms, at_ms + 1), Window(0, at_ms))] == [1, 0]
    assert it.look(Window(at_ms + 1, at_ms + 2)).asked == 0


def test_what_its_owner_looks_up_by_itself_is_left_to_it() -> None:
    it = Reconciliation()

    async def away(key: str) -> Any:
        raise ConnectionError("away")

    it.bank.answer, it.bank.vendor.after = away, [drop]
    it.runs("a", run="booking")
    report = it.look()
    assert (report.asked, dict(report.not_asked)) == (0, {"busy": 1})


def test_one_look_asks_so_many_and_the_next_goes_on() -> None:
    it = Reconciliation()
    it.runs("a", "b", "c")
    it.settle()
    report = it.look(limits=Limits(keys_max=2))
    assert (report.asked, report.not_asked["beyond"]) == (2, 1)
    assert not report.has_findings


# ---- on record


def test_the_same_finding_is_written_once_whoever_looks_again() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    del it.bank.books[it.key("a")]
    assert kinds(it.look()) == [("a", "missing", "new")]
    assert kinds(it.look(times=3)) == [("a", "missing", "known")]
    assert it.recorded("a") == [("missing", "open")]
    assert it.lab.events(CommandRejected, "a") == []


def test_a_finding_outlives_its_owner_and_is_settled_under_the_next() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    kept = it.bank.books.pop(it.key("a"))
    it.look()
    it.worker.kill()
    it.lab.worker(it.app)
    it.lab.run(5)
    assert kinds(it.look()) == [("a", "missing", "known")]
    it.bank.books[it.key("a")] = kept
    report = it.look()
    assert (kinds(report), len(report.settled)) == ([], 1)
    assert it.recorded("a") == [("missing", "open"), ("missing", "agreed")]
    del it.bank.books[it.key("a")]
    it.look()
    assert it.recorded("a")[-1] == ("missing", "open")


def test_without_a_worker_it_is_sent_once_and_recorded_when_one_comes() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    del it.bank.books[it.key("a")]
    it.worker.kill()
    it.lab.run(10)
    first, second = it.look(), it.look()
    assert [one.recorded for one in (*first.findings, *second.findings)] == [False, False]
    it.lab.worker(it.app)
    it.lab.run(5)
    assert it.recorded("a") == [("missing", "open")]
    assert it.lab.events(CommandRejected, "a") == []


def test_a_dry_run_writes_nothing() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    del it.bank.books[it.key("a")]
    report = it.look(dry=True)
    assert [(one.finding.kind, one.recorded) for one in report.findings] == [("missing", False)]
    assert it.recorded("a") == []


def test_what_a_person_has_dealt_with_is_not_said_again_until_it_changes() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    it.bank.books[it.key("a")] = OTHER
    (told,) = it.look().findings
    accepted = it.accept(told.finding.finding_id)
    assert accepted is not None
    assert accepted[0] == "a"
    with pytest.raises(NothingToSettle):
        it.accept(told.finding.finding_id)
    assert it.accept("nobody-knows") is None
    report = it.look()
    assert (kinds(report), report.has_findings) == ([("a", "different", "accepted")], False)
    it.bank.books[it.key("a")] = OTHER.model_copy(update={"number": "r-10"})
    assert it.look().has_findings
    assert it.recorded("a") == [
        ("different", "open"),
        ("different", "accepted"),
        ("different", "open"),
    ]


def test_former_keys_are_asked_too() -> None:
    it = Reconciliation()
    it.bank.declines = 1
    it.runs("a")
    it.settle()
    former = it.key("a")
    it.lab.retry("a", "pay#1", fresh_key=True)
    assert it.lab.run(20, until=lambda: it.lab.status("a") == "completed")
    it.settle()
    assert it.key("a") != former
    it.bank.books[former] = OTHER
    report = it.look()
    assert [(t.finding.kind, t.finding.effect_key) for t in report.findings] == [
        ("unexpected", former)
    ]


def test_all_of_the_log_is_looked_at() -> None:
    it = Reconciliation()
    it.runs("a")
    it.settle()
    assert it.look(ALL).asked == 1

    async def absent(key: str) -> Absent:
        return Absent()

    it.bank.answer = absent
    assert it.look(ALL).has_findings


# ---- runs that are over, and gone from the log


def test_values_that_snapshots_dropped_are_compared_as_the_log_has_them() -> None:
    it = Reconciliation()
    it.runs("a", "b")
    it.settle()

    async def outcome(client: Client) -> Any:
        return (await client.fold_of(0)).runs["a"].slots["pay#1"].outcome

    assert it.in_process(outcome).value is None  # a new reader has it from a snapshot
    it.bank.books[it.key("b")] = OTHER
    report = it.look()
    assert (report.agreed, kinds(report)) == (1, [("b", "different", "new")])


def test_findings_of_an_archived_run_are_kept(tmp_path: Path) -> None:
    it = Reconciliation()
    it.runs("a", "b")
    it.settle()
    key = it.key("a")
    kept = it.bank.books.pop(key)
    it.archive(tmp_path)
    report = it.look()
    assert kinds(report) == [("a", "missing", "new")]
    assert [one.effect.state.run_id for one in report.unknown] == ["b"]
    assert "archived" in report.unknown[0].why  # it is there, and that is all that can be said
    it.worker.kill()
    it.lab.worker(it.app)
    it.lab.run(5)
    it.archive(tmp_path)  # what tells of the finding goes to a file too
    assert kinds(it.look()) == [("a", "missing", "known")]
    it.bank.books[key] = kept
    again = it.look()
    assert [(one.finding.kind, one.recorded) for one in again.settled] == [("missing", True)]
    assert not again.has_findings
