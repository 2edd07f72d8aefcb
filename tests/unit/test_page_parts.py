"""What the page is made of, without a browser: scale, cards, badge, tiles, texts."""

import asyncio
import json
import socket
import threading
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.gateway.page import figures, lists, reading, run_view, showing, timeline
from refold.gateway.page.routes import router
from refold.gateway.page.site import environment, etag_of, lag_of, static, url
from refold_tools.dev import page as dev_page
from refold_tools.dev.errors import DevExtraMissing, DevRunning
from refold_tools.dev.folder import held

NOW = datetime(2026, 8, 8, 14, 7, 0, tzinfo=UTC)
START = NOW - timedelta(days=9)
INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def at(**after: float) -> datetime:
    return START + timedelta(**after)


# ---- texts


@given(st.text())
def test_nothing_that_one_cannot_see_is_left_in_a_text(text: str) -> None:
    shown = showing.visible(text)
    kept = "\n\t\u200c\u200d"
    assert not [one for one in shown if unicodedata.category(one) in INVISIBLE and one not in kept]
    assert len(shown) >= len(text)
    assert len(showing.line(text, 20)) <= 20


@given(st.text(), st.text())
def test_whatever_an_id_is_it_stays_in_its_place_of_an_address(one: str, other: str) -> None:
    made = url("/run", id=one, slot=other)
    path, _, query = made.partition("?")
    assert path == "/run"
    assert query.count("=") == (one != "") + (other != "")
    assert made.isascii()
    assert "#" not in made


@given(st.text())
def test_templates_escape_what_comes_from_runs(text: str) -> None:
    template = environment().from_string('<p title="{{ t|line }}">{{ t|pretty }}</p>')
    made = template.render(t=text)
    inside = made.removeprefix('<p title="').removesuffix("</p>")
    assert not {"<", "'"} & set(inside)
    assert inside.count('"') == 1
    assert inside.count(">") == 1


# ---- the picture


def span(slot: str, attempt: int, status: str, began: datetime, **more: Any) -> timeline.Span:
    return timeline.Span(slot, attempt, status, began, more.get("ended"), more.get("claim", "c1"))


def test_nine_days_of_sleep_leave_room_for_the_second_before_them() -> None:
    spans = [
        span("load#1", 1, "done", at(seconds=1), ended=at(seconds=1)),
        span("charge#1", 1, "in_doubt", at(seconds=1), ended=at(seconds=4)),
        span("charge#1", 2, "done", at(seconds=4), ended=at(seconds=5), claim="c2"),
        span("mail#1", 1, "done", at(days=9), ended=at(days=9), claim="c2"),
    ]
    picture = timeline.picture(spans, START, at(days=9, seconds=1))
    assert [row.slot for row in picture.rows] == ["load#1", "charge#1", "mail#1"]
    first, second = picture.rows[1].bars
    assert (first.tone, second.tone) == ("doubt", "good")
    assert first.x + first.width == pytest.approx(second.x)
    assert first.width > 50, "three seconds are seen beside nine days"
    assert [name.words for name in picture.names if "d" in name.words] == ["8 d 23 h"]
    (mark,) = picture.marks
    assert mark.x == pytest.approx(second.x)
    assert "owner changed 1 time" in picture.words


def test_an_attempt_that_a_crash_left_open_is_crossed_by_the_next_claim() -> None:
    spans = [span("charge#1", 1, "in_doubt", at(seconds=1))]
    claim = ("c2", at(seconds=9))
    picture = timeline.picture(spans, START, at(seconds=20), claim)
    (bar,) = picture.rows[0].bars
    (mark,) = picture.marks
    assert bar.open_end
    assert bar.x < mark.x < bar.x + bar.width
    assert timeline.picture(spans, START, at(seconds=20), ("c1", at(seconds=9))).marks == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 10**9), st.none() | st.integers(0, 10**9)),
        max_size=120,
    )
)
def test_a_picture_stays_within_its_frame(given_spans: list[tuple[int, int, int | None]]) -> None:
    spans = [
        span(
            f"s#{slot}",
            1,
            "done",
            at(milliseconds=began),
            ended=None if more is None else at(milliseconds=began + more),
        )
        for slot, began, more in given_spans
    ]
    picture = timeline.picture(spans, START, NOW)
    assert len(picture.rows) <= timeline.ROWS_MAX
    assert len(picture.rows) + picture.more_rows == len({one.slot for one in spans})
    for row in picture.rows:
        for bar in row.bars:
            assert bar.x >= 0
            assert bar.width > 0
            assert bar.x + bar.width <= timeline.WIDTH + 0.001


# ---- cards


def rows_of(step: Mapping[str, Any], *attempts: Mapping[str, Any]) -> run_view.RunRows:
    usual_step: dict[str, Any] = {
        **{"slot": "charge#1", "step": "charge", "policy": "escalate", "status": "in_doubt"},
        **{"attempt": 1, "since": at(seconds=1), "at": None, "effect_key": "k", "arguments": {}},
        **{"escalated": True, "absent_until_proven": False},
    }
    usual: dict[str, Any] = {
        **{"slot": "charge#1", "status": "in_doubt", "began_at": at(seconds=1), "reason": None},
        **{"timeout_ms": 1_000, "settle_ms": 0, "evidence": [], "claim_id": "c1"},
    }
    run = {"run_id": "order 1", "status": "in_doubt", "reason": None}
    many = [{**usual, "attempt": n + 1, **one} for n, one in enumerate(attempts)]
    return run_view.RunRows(run, [{**usual_step, **step}], many, [], None, from_log=False)


def test_the_card_of_a_doubt_names_evidence_wait_and_the_commands_that_settle_it() -> None:
    rows = rows_of(
        {"attempt": 2},
        {"settle_ms": 60_000, "evidence": ["never_started"]},
        {"began_at": at(seconds=9), "reason": "TimeoutError: no answer"},
    )
    (card,) = run_view.doubts_of(rows, {})
    assert card["reason"] == "TimeoutError: no answer"
    assert card["evidence"] == ["never started"]
    assert (card["attempts_open"], card["attempt_last"]) == (2, 2)
    assert card["wait_ms"] == round(61_000 * 1.01), "the longest of its open attempts"
    assert card["believed_at"] == at(seconds=9, milliseconds=61_610)
    (taken_over,) = run_view.doubts_of(rows, {}, ("c2", at(seconds=60)))
    assert taken_over["believed_at"] == at(seconds=60, milliseconds=61_610), (
        "an owner counts from its own claim"
    )
    assert card["command_absent"] == "refold resolve 'order 1' 'charge#1' --did-not-happen"
    rows.run["run_id"] = "-7"
    (hyphen,) = run_view.doubts_of(rows, {})
    assert hyphen["command_absent"] == "refold resolve --did-not-happen -- -7 'charge#1'"
    assert not card["self_settling"]
    (again,) = run_view.doubts_of(
        rows, {"slot": "charge#1", "happened": "no", "why": "I have seen it"}
    )
    assert (again["open"], again["given_why"]) == ("absent", "I have seen it")


@pytest.mark.parametrize(
    ("detail", "lead", "parts"),
    [
        ("step 5 charge: argument pence 4160 → 4610", "step 5 charge", [("4160", "4610")]),
        (
            "step 5 charge: argument pence 4160 → 4610; argument note a → b",
            "step 5 charge",
            [("4160", "4610"), ("a", "b")],
        ),
        ("step 2: the code calls mail, the record has charge", "", []),
        ("step 5 charge: argument note a → b → c", "", []),
        ("", "", []),
    ],
)
def test_a_divergence_is_taken_apart_only_where_that_is_certain(
    detail: str, lead: str, parts: list[tuple[str, str]]
) -> None:
    found = run_view.difference(detail)
    assert (found[0], [(one["was"], one["now"]) for one in found[1]]) == (lead, parts)


# ---- badge, tag, tiles


def partition(**more: Any) -> dict[str, Any]:
    return {"lag": 0, "read_at": NOW, "applied_at": NOW, **more}


def test_the_badge_says_the_worst() -> None:
    old = NOW - timedelta(minutes=3)
    assert lag_of([partition()], NOW).tone == "good"
    two_s = NOW - timedelta(seconds=2)
    assert lag_of([partition(), partition(lag=3, applied_at=two_s)], NOW).text == "2 s behind"
    assert lag_of([partition(lag=3)], NOW).text == "3 events behind"
    still = lag_of([partition(), partition(read_at=old, applied_at=old)], NOW)
    assert (still.text, still.tone) == ("tables stand still for 3 min", "bad")
    assert lag_of([], NOW).text == "tables are empty"


def test_ages_alone_make_no_new_page() -> None:
    page = '<main><span class="ago" data-at="x">{}</span>{}</main>'
    assert etag_of(page.format("1 s ago", "a")) == etag_of(page.format("2 s ago", "a"))
    assert etag_of(page.format("1 s ago", "a")) != etag_of(page.format("1 s ago", "b"))


@pytest.mark.parametrize(
    "said",
    [
        b"no http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\n\r\n{"windows": [7]}',
        b'HTTP/1.1 200 OK\r\n\r\n{"windows": [{"start_ms": 1e400, "cells": []}]}',
        b'HTTP/1.1 200 OK\r\n\r\n{"windows": [{"start_ms": %d, "cells": [{"counts": []}]}]}'
        % (NOW.timestamp() * 1000),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_whatever_keeps_the_figures_says_the_page_is_whole(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles, words = tiles_where(said, monkeypatch)
    assert (tiles, words.startswith("The live figures cannot be read now (")) == ([], True)


@pytest.mark.parametrize(
    ("theirs", "shown"),
    [("shop", True), ("depot", False), ("depot, not shop" * 9_999, False)],
    ids=["ours", "another", "a long name"],
)
def test_figures_of_another_namespace_are_not_shown(
    theirs: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({"namespace": theirs, "windows": []}).encode()
    tiles, words = tiles_where(b"HTTP/1.1 200 OK\r\n\r\n" + said, monkeypatch)
    assert bool(tiles) == shown
    assert ("those of depot, not shop" in words) != shown
    assert len(words) < 200


def tiles_where(said: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[list[figures.Tile], str]:
    """The tiles where whoever keeps the figures answers so."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        one, _ = listener.accept()
        with one:
            one.recv(4_096)
            one.sendall(said)

    live_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    gateway = SimpleNamespace(settings=SimpleNamespace(live_url=live_url), namespace="shop")
    monkeypatch.setattr(figures, "gateway_of", lambda _: gateway)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace()))
    threading.Thread(target=serve, daemon=True).start()
    with listener:
        return asyncio.run(figures.tiles_of(request, NOW))


def test_tiles_add_up_what_the_figures_say() -> None:
    steps = {"count": 2, "sum_ms": 12, "buckets": [1, 1, *[0] * 15]}
    cells = [
        {"counts": {"runs_started": 2, "runs_diverged": 1}, "durations": {"step_ms": steps}},
        {"counts": {"runs_started": 1}, "durations": {}},
    ]
    windows = [{"start_ms": 60_000, "cells": cells}, {"start_ms": 10**9, "cells": cells}]
    found = {tile.name: tile for tile in figures.tiles(windows, 0)}
    assert found["started"].value == "3", "windows of another hour are left out"
    assert found["diverged"].value == "1"
    assert "tokens read" not in found
    assert found["a step, median"].value == "≤ 5 ms"
    assert len(found["started"].points.split()) == figures.MINUTES


# ---- the routes, the files


def test_every_route_of_the_page_says_who_may() -> None:
    from refold.gateway.auth import roles_of, routes_in

    seen = {route.path: roles_of(route) for route in routes_in(router)}
    assert {path for path, roles in seen.items() if roles is None} == {"/page/{name}", "/login"}


def test_the_script_and_the_style_need_nothing_from_elsewhere() -> None:
    for name in ("page.css", "page.js", "favicon.svg"):
        found = static(name)
        assert found is not None
        text = found[0].decode().replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert "eval(" not in text
        assert "innerHTML =" not in text
    for template in environment().list_templates(filter_func=lambda name: name.endswith(".html")):
        loader = environment().loader
        assert loader is not None
        source, _, _ = loader.get_source(environment(), template)
        assert "|safe" not in source, "nothing is believed to be HTML"
        assert " style=" not in source, "the policy allows no inline style"
        assert " onclick=" not in source


# ---- dev


def test_a_folder_has_one_dev(tmp_path: Any) -> None:
    with held(tmp_path / ".refold") as hold:
        hold.tell("http://127.0.0.1:8470/")
        with pytest.raises(DevRunning) as refused, held(tmp_path / ".refold"):
            raise AssertionError("two hold it")
    assert refused.value.url == "http://127.0.0.1:8470/"
    with held(tmp_path / ".refold"):
        told = json.loads((tmp_path / ".refold/dev.lock").read_text())
    assert told["url"] is None


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_page, "find_spec", lambda name: None)
    with pytest.raises(DevExtraMissing, match=r"asyncpg.*refold\[gateway,devstack\]"):
        dev_page.check_installed()


def test_what_ends_beside_the_page_is_said_once_and_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev_page, "AGAIN_S", 0.001)
    said: list[str] = []
    page = dev_page.Page("memory://x", "", 1, "UTC", "ada", said.append)

    async def main() -> int:
        stop = page._stop = asyncio.Event()
        times = 0

        async def work() -> None:
            nonlocal times
            times += 1
            if times == 3:
                stop.set()
            raise ConnectionError("the database is away")

        await page._again("the projector", work)
        return times

    assert asyncio.run(main()) == 3
    assert said == ["the projector stopped, and will begin again: the database is away"]


def test_the_overview_claims_no_more_than_tables_know_while_no_worker_lives() -> None:
    nothing = reading.Needing([], {"in_doubt": 0, "blocked": 0, "diverged": 0}, longest_known=True)
    assert lists._headline(nothing, None)[0] == "Nothing needs a person"
    headline, subline = lists._headline(nothing, showing.unserved_words({0}, 1))
    assert headline == "No worker is alive"
    assert subline.startswith("As far as the tables know")
