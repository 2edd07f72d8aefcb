"""Parts of `refold demo` without its processes: moments, lines, counts, and what is summed up."""

import io
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

import refund_agent.script
from refold_projections.fold import Slot
from refold_tools.demo import absolute, find_examples
from refold_tools.demo.counting import MODEL, executed_twice
from refold_tools.demo.director import Told
from refold_tools.demo.purchase import PurchaseStory
from refold_tools.demo.refund import ROUTES, RefundStory
from refold_tools.demo.timeline import Timeline
from world import World


def refund_story(*kill_at: int) -> RefundStory:
    return RefundStory(refund_agent.script, "order-48211", kill_at)


def counters(**parts: Any) -> dict[str, Any]:
    return {"calls": {}, "calls_by_key": {}, "model": {"calls_by_turn": {}}} | parts


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_moment_counts_the_calls_that_come_before_it() -> None:
    at_22, at_31 = refund_story(31, 22, 31).moments
    assert (at_22.turn, at_22.slot, at_22.effect) == (22, "issue_refund#1", "refund")
    assert (at_31.turn, at_31.slot, at_31.effect) == (31, "decide#31", None)
    assert at_22.after(set()) == 0
    assert at_31.after(set()) == 30
    # After the death at 22 the first 22 answers are recorded: eight more come before the next.
    assert at_31.after({f"decide#{turn}" for turn in range(1, 23)}) == 8
    (again,) = refund_story(37).moments
    assert (again.slot, again.after(set()), again.after({"read_policy#1"})) == (
        "read_policy#2",
        1,
        0,
    )


def test_item_173_is_the_173rd_price_that_is_not_recorded_yet() -> None:
    story = PurchaseStory("purchase")
    first, second = story.moments
    assert first.after(set()) == 172
    recorded = {f"map#1[{start}..{start + 24}]/quote#1" for start in range(0, 150, 25)}
    assert first.after(recorded) == 22
    assert (first.slot, second.slot) == ("map#1[150..174]/quote#1", "book_shipment#1")
    assert second.after(recorded) == 0


def test_every_route_of_a_story_is_one_of_the_worlds() -> None:
    with World() as world:
        known = {route.name for route in world.routes()}
    stories = (refund_story(*range(1, 41)), PurchaseStory("purchase"))
    assert {moment.route for story in stories for moment in story.moments} <= known
    assert set(ROUTES.values()) <= known


def test_who_was_executed_twice_is_told_by_key_by_turn_or_by_who_was_under_way() -> None:
    names = ["decide#1", "decide#2", "open_ticket#1", "read_policy#1", "read_policy#2"]
    slots = {
        name: Slot(name, name.partition("#")[0], place, effect_key=f"key of {name}")
        for place, name in enumerate(names)
    }
    routes = refund_story(22).expected_calls(slots)
    once = {MODEL: 2, "POST /tickets": 1, "GET /policies/{id}": 2}
    assert executed_twice(slots, routes, {}, counters(calls=once)) == []
    seen = counters(
        calls={route: calls + 1 for route, calls in once.items()},
        calls_by_key={"key of open_ticket#1": 2},
        model={"calls_by_turn": {"1": 1, "2": 2}},
    )
    suspects = {"GET /policies/{id}": ["read_policy#1"]}
    found = executed_twice(slots, routes, suspects, seen)
    assert found == ["decide#2", "open_ticket#1", "read_policy#1"]
    # Where nothing tells them apart, none is left out.
    found = executed_twice(slots, routes, {}, seen)
    assert found == ["decide#2", "open_ticket#1", "read_policy#1", "read_policy#2"]


def test_the_quotes_parts_are_due_once_for_each_of_their_lines() -> None:
    names = ["map#1[0..24]/quote#1", "map#1[25..39]/quote#1", "charge#1"]
    slots = {
        name: Slot(name, name.rpartition("/")[2].partition("#")[0], place)
        for place, name in enumerate(names)
    }
    due = PurchaseStory("purchase").expected_calls(slots)
    assert [len(due["GET /prices/{item}"]), len(due["POST /payments/charges"])] == [40, 1]


@pytest.mark.parametrize("settled", [0, 1])
def test_a_person_says_of_an_e_mail_what_the_outbox_shows(settled: int) -> None:
    ledger = [{"kind": "email", "body": {"to": "c@example.com"}}]
    verdict = refund_story(14).judge("send_email", ledger, settled)
    assert verdict is not None
    assert verdict.happened is (settled == 0)
    assert refund_story(14).judge("open_ticket", ledger, 0) is None


def test_a_wrong_amount_or_reference_is_seen() -> None:
    paid = [{"kind": "refund", "body": {"pence": 4160}}]
    assert refund_story(22).holds({"refunded_pence": 4160}, paid) is None
    assert refund_story(22).holds({"refunded_pence": 4160}, paid * 2) is not None
    assert refund_story(22).holds({"refunded_pence": 0}, paid) is not None
    outside = [
        {"kind": kind, "body": {"reference": reference}}
        for kind, reference in (("erp_reference", "PO-1"), ("portal_order", "PO-2"))
    ]
    story = PurchaseStory("purchase")
    assert story.holds({"reference": "PO-1"}, outside) is not None
    assert story.holds({"reference": "PO-1"}, outside[:1]) is None


def test_a_story_is_good_only_if_everything_holds() -> None:
    told = Told(refund_story(22), completed=True)
    assert told.as_json()["completed"] is True
    told.problems.append("two refunds")
    assert told.as_json()["completed"] is False


def test_a_timeline_folds_and_colours_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "70")
    plain, terminal = io.StringIO(), Terminal()
    text = "a line that has rather more words than one row of a small terminal can hold"
    for stream in (plain, terminal):
        Timeline(stream, UTC).say("crash", text, at_ms=1_000, loud=True)
    assert plain.getvalue() == f"00:00:01.0  crash   {text}\n"
    rows = terminal.getvalue().splitlines()
    assert len(rows) == 2
    assert "\x1b[1;31mcrash " in rows[0]
    assert rows[1].startswith(" " * 20)
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = Terminal()
    Timeline(quiet, UTC).say("agent", "done", at_ms=0)
    assert quiet.getvalue() == "00:00:00.0  agent   done\n"


def test_the_examples_are_found_and_a_relative_log_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (find_examples() / "refund_agent" / "app.py").is_file()
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///demo.db?ns=a") == f"sqlite:///{tmp_path}/demo.db?ns=a"
